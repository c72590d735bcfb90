"""Settings of the simulated scheduler."""

from pydantic import PositiveInt

from hsexp.config.base import Config


class SchedulerConfig(Config):
    """vLLM V1's scheduling as the simulator follows it."""

    token_budget: PositiveInt
    """Most tokens of one step (max_num_batched_tokens)."""
    fast_forward: bool
    """Leap over steps in which nothing but decoding happens; results are identical."""
    separate: bool
    """Prefill and decode never share a step: while anything can be prefilled, the step is that
    prefill and decodes stand still (experiment 10a, Appendix C.1)."""
    stall_steps: PositiveInt
    """Steps or preemptions without progress after which the run fails with a report."""
