"""Step times in whole nanoseconds, so that clocks add up exactly in any order.

A clock that reads the context gives each step of a row of decodes a time of its own:

    decode steps      | 31 ms | 31.002 ms | 31.004 ms |     the context grows by a token a request
    clock without     | 31 ms | 31 ms     | 31 ms     |
"""

from dataclasses import dataclass, replace
from typing import Protocol

from hsexp.config.device import StepTimeModel

NS_PER_S = 1_000_000_000
PS_PER_NS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class StepContext:
    """What the requests of a step have in memory before it."""

    decoding_tokens: int = 0
    """Tokens of the decoding requests."""
    num_chunks: int = 0
    """Requests that prefill."""
    chunk_tokens: int = 0
    """Tokens that those have before their chunks."""
    num_pairs: int = 0
    """Queries of the chunks, each with the keys before it and its own."""

    @classmethod
    def of_chunks(cls, chunks: list[tuple[int, int]], *, decoding_tokens: int) -> "StepContext":
        """
        Args:
            chunks: tokens before each chunk, and tokens of it.
        """
        return cls(
            decoding_tokens=decoding_tokens,
            num_chunks=len(chunks),
            chunk_tokens=sum(before for before, _ in chunks),
            num_pairs=sum(new * before + new * (new + 1) // 2 for before, new in chunks),
        )

    def grown(self, decode_tokens: int) -> "StepContext":
        """After a step in which so many requests decoded and none prefilled."""
        return replace(self, decoding_tokens=self.decoding_tokens + decode_tokens)


class StepTimes(Protocol):
    """How long a step takes."""

    @property
    def reads_context(self) -> bool:
        """Whether the time depends on what requests have in memory: else all steps of a row of
        decodes are equal, and the scheduler need not count it."""
        ...

    def step_ns(
        self, decode_tokens: int, prefill_tokens: int, context: StepContext | None = None
    ) -> int:
        """Nanoseconds of the next step.

        Args:
            context: None leaves out what depends on it.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class StepClock:
    """t = base + a x decode tokens + b x prefill tokens + c x context, in nanoseconds."""

    base_ns: int
    decode_token_ns: int
    prefill_token_ns: int
    context_token_ps: int = 0
    """Picoseconds: a token of context takes a few nanoseconds. A step is rounded down."""

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
            context_token_ps=to_ps(model.context_token_s or 0.0),
        )

    @property
    def reads_context(self) -> bool:
        return self.context_token_ps > 0

    def step_ns(
        self, decode_tokens: int, prefill_tokens: int, context: StepContext | None = None
    ) -> int:
        step_ns = (
            self.base_ns
            + self.decode_token_ns * decode_tokens
            + self.prefill_token_ns * prefill_tokens
        )
        if context is None:
            return step_ns
        return step_ns + self.context_token_ps * context.decoding_tokens // PS_PER_NS


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaledSteps:
    """Steps of another device that is slower or faster by one factor."""

    steps: StepTimes
    factor: float

    @property
    def reads_context(self) -> bool:
        return self.steps.reads_context

    def step_ns(
        self, decode_tokens: int, prefill_tokens: int, context: StepContext | None = None
    ) -> int:
        return round(self.factor * self.steps.step_ns(decode_tokens, prefill_tokens, context))


def to_ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def to_ps(seconds: float) -> int:
    return round(seconds * NS_PER_S * PS_PER_NS)
