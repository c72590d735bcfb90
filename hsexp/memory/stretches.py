"""The steps of a run, as stretches of identical steps."""

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class StepStretch:
    """A run of identical steps."""

    first_step: int
    num_steps: int
    start_ns: int
    step_ns: int
    decode_tokens: int
    prefill_tokens: int
    running: int
    waiting: int

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.num_steps * self.step_ns
