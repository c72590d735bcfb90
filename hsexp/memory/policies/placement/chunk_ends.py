"""Where chunks end anyway: with the budget of a step, or at the last boundary of the prompt.

    prompt    200 shared + 120 own tokens, grid 96, one chunk for all of it
    chunks    0 --------------------- 288 - 320      a checkpoint at 288, in the own tokens

So a prefix that ends between the last two boundaries of each prompt is reused, and a shorter one
never is, unless a budget happens to cut a chunk inside it.
"""

from collections.abc import Sequence
from typing import Literal

from hsexp.memory.policies.placement.rule import Cached, Placement, PlacementSettings
from hsexp.memory.sequence import Hit, PrefixKeys


class ChunkEnds(PlacementSettings):
    """No stops; it has no settings."""

    kind: Literal["chunk_ends"]

    def build(self, cache: Cached) -> Placement:
        return NoStops()


class NoStops(Placement):
    """Nothing stops a chunk."""

    def stops(self, keys: PrefixKeys, hit: Hit, num_tokens: int) -> Sequence[int]:
        return ()
