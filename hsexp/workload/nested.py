"""Nested prefixes: a tree of contexts, of which every request takes a path from root to leaf.

    [ system prompt ][ tenant 3 ........ ][ document 5 of tenant 3 ... ][ suffix, private ]
      level 0          level 1              level 2

Requests share as many levels as their paths do.
"""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveInt

from hsexp.config.base import Config
from hsexp.config.fields import Fraction, Name
from hsexp.workload.arrivals import ArrivalsConfig, arrival_times
from hsexp.workload.lengths import GammaTokens, LognormalTokens
from hsexp.workload.prefixes import Prefixes
from hsexp.workload.request import Segment, Workload
from hsexp.workload.synthetic import zipf


class LevelConfig(Config):
    """One level of the tree."""

    tokens: PositiveInt
    """Length of a context of this level, without those above it."""
    fan_out: PositiveInt
    """Contexts below each one of the level above."""
    zipf_exponent: Annotated[float, Field(ge=0.0)]
    """Popularity among siblings: weight of rank k is k**-exponent."""


class NestedWorkload(Config):
    """Requests over a tree of contexts."""

    kind: Literal["nested"]
    name: Name
    num_requests: PositiveInt
    levels: Annotated[tuple[LevelConfig, ...], Field(min_length=1)]
    """From the root to the leaves."""
    sharing: Fraction
    """Fraction q of requests whose contexts are shared, on all levels; the others get private
    content of the same lengths."""
    suffix: LognormalTokens
    """What is private to a request."""
    output: GammaTokens

    @property
    def shared_tokens(self) -> int:
        return sum(level.tokens for level in self.levels)


def nest(spec: NestedWorkload, arrivals: ArrivalsConfig, seed: int) -> Workload:
    """Draw the requests of one seed.

    One generator per seed, draws in a fixed order: the child taken at each level from the root on,
    suffixes, outputs, gaps, sharing. Sharing compares one uniform number per request with q, so
    that nothing else depends on q.
    """
    rng = np.random.default_rng(seed)
    n = spec.num_requests
    children = [
        rng.choice(level.fan_out, size=n, p=zipf(level.fan_out, level.zipf_exponent))
        for level in spec.levels
    ]
    suffixes = spec.suffix.draw(rng, n)
    outputs = spec.output.draw(rng, n)
    times = arrival_times(arrivals, n, rng)
    shares = rng.random(n) < spec.sharing

    prefixes = Prefixes()
    paths = [_path(spec, prefixes, [int(child[i]) for child in children]) for i in range(n)]
    return Workload.numbered(
        spec.name,
        (
            (
                times[i],
                spec.shared_tokens + int(suffixes[i]),
                int(outputs[i]),
                paths[i] if shares[i] else (),
            )
            for i in range(n)
        ),
    )


def _path(spec: NestedWorkload, prefixes: Prefixes, children: list[int]) -> tuple[Segment, ...]:
    path: list[Segment] = []
    for level, child in zip(spec.levels, children, strict=True):
        parent = path[-1] if path else None
        start = parent.end_tokens if parent else 0
        path.append(prefixes.extend(parent, child, start + level.tokens))
    return tuple(path)
