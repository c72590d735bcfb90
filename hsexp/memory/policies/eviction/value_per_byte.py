"""Restart points by recency and by what they save for their bytes: Marconi's rule.

    score = recency + alpha x efficiency

Marconi (arXiv 2411.19379, Section 4.2) divides the FLOPs that a hit saves by the bytes of its
states, and scales recency and efficiency to [0, 1] over what can be evicted. Here a token stands
for its FLOPs, since a prefill costs about the same for each. Marconi tunes alpha on the first
requests; here it is a setting. With 0 the order is that of the last hit.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from hsexp.memory.policies.eviction.ranked import RankedEviction
from hsexp.memory.prefixes import Prefixes, Restart


class ValuePerByte(RankedEviction):
    """The restart point of the least value for its bytes."""

    kind: Literal["value_per_byte"]
    alpha: Annotated[float, Field(ge=0.0)]
    """Weight of the tokens per byte; recency weighs 1."""

    def scores(self, restarts: Sequence[Restart], prefixes: Prefixes) -> list[float]:
        recency = _scaled([restart.last_used for restart in restarts])
        efficiency = _scaled([restart.tokens / prefixes.bytes_of(restart) for restart in restarts])
        return [
            recent + self.alpha * efficient
            for recent, efficient in zip(recency, efficiency, strict=True)
        ]


def _scaled(values: Sequence[float]) -> list[float]:
    """To [0, 1]; equal values all become 0."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    return [(value - low) / (high - low) if high > low else 0.0 for value in values]
