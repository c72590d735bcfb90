"""The paper's workload law, seeded: shared contexts, lognormal suffixes, gamma outputs.

A prompt is a context of fixed length and a private suffix:

    sharing request      [ shared context, content_id = its index ][ suffix, private ]
    the same, q = 0      [ private, same length                    ][ suffix, private ]
"""

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from hsexp.config.base import Config
from hsexp.config.fields import Fraction, Name
from hsexp.workload.arrivals import ArrivalsConfig, arrival_times
from hsexp.workload.request import Request, Segment, Workload


class SyntheticWorkload(Config):
    """The paper's workload law: shared contexts, lognormal suffixes, gamma outputs."""

    kind: Literal["synthetic"]
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
    """Mean output length after rescaling."""

    @model_validator(mode="after")
    def _bounds_are_ordered(self) -> "SyntheticWorkload":
        if self.suffix_min_tokens > self.suffix_max_tokens:
            raise ValueError("suffix_min_tokens must not exceed suffix_max_tokens")
        if self.output_min_tokens > self.output_max_tokens:
            raise ValueError("output_min_tokens must not exceed output_max_tokens")
        if self.prompt_mean_tokens <= self.shared_tokens:
            raise ValueError("prompt_mean_tokens must exceed shared_tokens")
        return self


def generate(spec: SyntheticWorkload, arrivals: ArrivalsConfig, seed: int) -> Workload:
    """Draw the requests of one seed.

    One generator per seed, draws in a fixed order: contexts, suffixes, outputs, gaps, sharing.
    Sharing comes last and compares one uniform number per request with q, so lengths, contexts
    and arrivals do not depend on q, and a request that shares at q also shares at any larger q.
    """
    rng = np.random.default_rng(seed)
    n = spec.num_requests
    contexts = rng.choice(spec.num_contexts, size=n, p=_zipf(spec.num_contexts, spec.zipf_exponent))
    suffix_law = np.exp(rng.normal(np.log(spec.suffix_median_tokens), spec.suffix_sigma, size=n))
    output_law = rng.gamma(spec.output_shape, spec.output_mean_tokens / spec.output_shape, size=n)
    times = arrival_times(arrivals, n, rng)
    shares = rng.random(n) < spec.sharing

    suffixes = _token_counts(
        np.clip(suffix_law, spec.suffix_min_tokens, spec.suffix_max_tokens),
        mean=spec.prompt_mean_tokens - spec.shared_tokens,
    )
    outputs = _token_counts(
        np.clip(output_law, spec.output_min_tokens, spec.output_max_tokens),
        mean=spec.output_mean_tokens,
    )
    return Workload(
        name=spec.name,
        requests=tuple(
            Request(
                request_id=i,
                arrival_s=times[i],
                prompt_tokens=spec.shared_tokens + suffixes[i],
                output_tokens=outputs[i],
                segments=_context(spec, int(contexts[i])) if shares[i] else (),
            )
            for i in range(n)
        ),
    )


def _zipf(num_contexts: int, exponent: float) -> NDArray[np.float64]:
    """Probability of each context: rank**-exponent, normalised."""
    weights = np.arange(1, num_contexts + 1, dtype=np.float64) ** -exponent
    probabilities: NDArray[np.float64] = weights / weights.sum()
    return probabilities


def _token_counts(clipped: NDArray[np.float64], *, mean: float) -> list[int]:
    """Lengths multiplied to the mean and rounded, at least 1. They are not clipped again."""
    scaled = clipped * (mean / clipped.mean())
    return [max(1, round(length)) for length in scaled.tolist()]


def _context(spec: SyntheticWorkload, index: int) -> tuple[Segment, ...]:
    if spec.shared_tokens == 0:
        return ()
    return (Segment(end_tokens=spec.shared_tokens, content_id=index),)
