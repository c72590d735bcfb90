"""Step times in whole nanoseconds, so that clocks add up exactly in any order."""

from dataclasses import dataclass
from typing import Protocol

from hsexp.config.device import StepTimeModel

NS_PER_S = 1_000_000_000


class StepTimes(Protocol):
    """How long a step takes."""

    def step_ns(self, decode_tokens: int, prefill_tokens: int) -> int:
        """Nanoseconds of the next step."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class StepClock:
    """t = base + a x decode tokens + b x prefill tokens, in nanoseconds."""

    base_ns: int
    decode_token_ns: int
    prefill_token_ns: int

    @classmethod
    def of(cls, model: StepTimeModel, *, paged: bool = False) -> "StepClock":
        """
        Args:
            paged: recurrent kernels read states page by page.
        """
        return cls(
            base_ns=to_ns(model.base_s),
            decode_token_ns=to_ns(model.decode_token_of(paged=paged)),
            prefill_token_ns=to_ns(model.prefill_token_s),
        )

    def step_ns(self, decode_tokens: int, prefill_tokens: int) -> int:
        return (
            self.base_ns
            + self.decode_token_ns * decode_tokens
            + self.prefill_token_ns * prefill_tokens
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaledSteps:
    """Steps of another device that is slower or faster by one factor."""

    steps: StepTimes
    factor: float

    def step_ns(self, decode_tokens: int, prefill_tokens: int) -> int:
        return round(self.factor * self.steps.step_ns(decode_tokens, prefill_tokens))


def to_ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)
