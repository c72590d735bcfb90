"""At every n-th boundary of the checkpoint grid, and where chunks end anyway.

    intervals 2, grid 96    0 ------ 192 ------ 384 ------ 576 - 600

With one interval a prefill leaves every checkpoint that there can be, one step for each.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import PositiveInt

from hsexp.memory.policies.placement.rule import Cached, Placement, PlacementSettings
from hsexp.memory.sequence import Hit, PrefixKeys


class Every(PlacementSettings):
    """Stops at a fixed distance, counted from the start of the prompt."""

    kind: Literal["every"]
    intervals: PositiveInt
    """Intervals of the checkpoint grid from stop to stop."""

    def build(self, cache: Cached) -> Placement:
        return AtMultiples(self.intervals * cache.checkpoint_grid)


class AtMultiples(Placement):
    """Multiples of a number of tokens, which is on the grid."""

    def __init__(self, distance: int) -> None:
        self._distance = distance

    def stops(self, keys: PrefixKeys, hit: Hit, num_tokens: int) -> Sequence[int]:
        distance = self._distance
        return range((hit.tokens // distance + 1) * distance, num_tokens, distance)
