"""Settings of the simulated scheduler."""

from pydantic import PositiveInt

from hsexp.config.base import Config


class SchedulerConfig(Config):
    """Settings of the simulator's version of vLLM V1 scheduling."""

    token_budget: PositiveInt
    """Most tokens of one step (max_num_batched_tokens)."""
    fast_forward: bool
    """Leap over steps in which nothing but decoding happens; results are identical."""
    separate: bool
    """Prefill and decode never share a step: while anything can be prefilled, the step is that
    prefill and decodes stand still (experiment 10a, Appendix C.1)."""
    stall_steps: PositiveInt
    """Steps or preemptions without progress after which the run fails with a report."""
