"""The paper's workload law, seeded: shared contexts, lognormal suffixes, gamma outputs.

Outputs are rescaled to the same mean in every seed, or left as they were drawn, so that seeds
scatter; then some of them may be short answers.

A prompt is a context of fixed length and a private suffix:

    sharing request      [ shared context, content_id = its index ][ suffix, private ]
    the same, q = 0      [ private, same length                    ][ suffix, private ]
"""

from typing import Annotated, Literal, Self

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from hsexp.config.base import Config
from hsexp.config.fields import Fraction, Name, OpenFraction
from hsexp.workload.arrivals import ArrivalsConfig, arrival_times
from hsexp.workload.request import Segment, Workload


class _WorkloadLaw(Config):
    """Settings of both laws of the outputs."""

    name: Name
    num_requests: PositiveInt
    num_contexts: PositiveInt
    """Shared contexts (Section 4.2: eight)."""
    zipf_exponent: Annotated[float, Field(ge=0.0)]
    """Popularity of the contexts: weight of rank k is k**-exponent."""
    shared_tokens: Annotated[int, Field(ge=0)]
    """Length of a shared context."""
    sharing: Fraction
    """Fraction q of requests whose context is shared; the others get private content of the same
    lengths."""
    suffix_median_tokens: PositiveFloat
    suffix_sigma: PositiveFloat
    """Standard deviation of the log suffix length."""
    suffix_min_tokens: PositiveInt
    suffix_max_tokens: PositiveInt
    prompt_mean_tokens: PositiveFloat
    """Mean prompt length after rescaling the suffixes (clip, multiply, round, at least 1)."""
    output_shape: PositiveFloat
    """Shape of the gamma law of output lengths."""
    output_min_tokens: PositiveInt
    output_max_tokens: PositiveInt
    output_mean_tokens: PositiveFloat

    @model_validator(mode="after")
    def _bounds_are_ordered(self) -> Self:
        if self.suffix_min_tokens > self.suffix_max_tokens:
            raise ValueError("suffix_min_tokens must not exceed suffix_max_tokens")
        if self.output_min_tokens > self.output_max_tokens:
            raise ValueError("output_min_tokens must not exceed output_max_tokens")
        if self.prompt_mean_tokens <= self.shared_tokens:
            raise ValueError("prompt_mean_tokens must exceed shared_tokens")
        return self


class SyntheticWorkload(_WorkloadLaw):
    """Outputs whose mean is `output_mean_tokens` in every seed, after rescaling."""

    kind: Literal["synthetic"]


class DrawnWorkload(_WorkloadLaw):
    """Outputs as they were drawn: `output_mean_tokens` is the mean of the law, before its clip."""

    kind: Literal["synthetic_drawn"]
    output_short_fraction: OpenFraction
    """Fraction of short answers, whose lengths are uniform from `output_min_tokens` on; the others
    follow the gamma law."""
    output_short_max_tokens: PositiveInt
    """Longest short answer."""

    @model_validator(mode="after")
    def _answers_have_a_length(self) -> Self:
        if self.output_short_max_tokens < self.output_min_tokens:
            raise ValueError("output_short_max_tokens must not be below output_min_tokens")
        if self.output_mean_tokens <= self.output_short_mean_tokens:
            raise ValueError("output_mean_tokens must exceed the mean of short answers")
        return self

    @property
    def output_short_mean_tokens(self) -> float:
        return (self.output_min_tokens + self.output_short_max_tokens) / 2

    @property
    def output_long_mean_tokens(self) -> float:
        """Mean of the gamma law, so that `output_mean_tokens` is that of all outputs."""
        short = self.output_short_fraction
        return (self.output_mean_tokens - short * self.output_short_mean_tokens) / (1.0 - short)


def generate(
    spec: SyntheticWorkload | DrawnWorkload, arrivals: ArrivalsConfig, seed: int
) -> Workload:
    """Draw the requests of one seed.

    One generator per seed, draws in a fixed order: contexts, suffixes, outputs, gaps, sharing, and
    short answers where the law has some. Sharing compares one uniform number per request with q, so
    lengths, contexts and arrivals do not depend on q, and a request that shares at q also shares at
    any larger q.
    """
    rng = np.random.default_rng(seed)
    n = spec.num_requests
    contexts = rng.choice(spec.num_contexts, size=n, p=zipf(spec.num_contexts, spec.zipf_exponent))
    suffix_law = np.exp(rng.normal(np.log(spec.suffix_median_tokens), spec.suffix_sigma, size=n))
    gammas = rng.standard_gamma(spec.output_shape, size=n)
    times = arrival_times(arrivals, n, rng)
    shares = rng.random(n) < spec.sharing

    suffixes = _token_counts(
        np.clip(suffix_law, spec.suffix_min_tokens, spec.suffix_max_tokens),
        mean=spec.prompt_mean_tokens - spec.shared_tokens,
    )
    outputs = _outputs(spec, gammas, rng)
    return Workload.numbered(
        spec.name,
        (
            (
                times[i],
                spec.shared_tokens + suffixes[i],
                outputs[i],
                _context(spec, int(contexts[i])) if shares[i] else (),
            )
            for i in range(n)
        ),
    )


def zipf(num_contexts: int, exponent: float) -> NDArray[np.float64]:
    """Probability of each context: rank**-exponent, normalised."""
    weights = np.arange(1, num_contexts + 1, dtype=np.float64) ** -exponent
    probabilities: NDArray[np.float64] = weights / weights.sum()
    return probabilities


def _outputs(
    spec: SyntheticWorkload | DrawnWorkload, gammas: NDArray[np.float64], rng: Generator
) -> list[int]:
    """Output lengths from standard gamma numbers."""
    match spec:
        case SyntheticWorkload():
            law = gammas * (spec.output_mean_tokens / spec.output_shape)
            clipped = np.clip(law, spec.output_min_tokens, spec.output_max_tokens)
            return _token_counts(clipped, mean=spec.output_mean_tokens)
        case DrawnWorkload():
            law = gammas * (spec.output_long_mean_tokens / spec.output_shape)
            clipped = np.clip(law, spec.output_min_tokens, spec.output_max_tokens)
            is_short = rng.random(len(gammas)) < spec.output_short_fraction
            shorts = rng.integers(
                spec.output_min_tokens, spec.output_short_max_tokens + 1, size=len(gammas)
            )
            return [round(length) for length in np.where(is_short, shorts, clipped).tolist()]


def _token_counts(clipped: NDArray[np.float64], *, mean: float) -> list[int]:
    """Lengths multiplied to the mean and rounded, at least 1. They are not clipped again."""
    scaled = clipped * (mean / clipped.mean())
    return [max(1, round(length)) for length in scaled.tolist()]


def _context(spec: _WorkloadLaw, index: int) -> tuple[Segment, ...]:
    if spec.shared_tokens == 0:
        return ()
    return (Segment(end_tokens=spec.shared_tokens, content_id=index),)
