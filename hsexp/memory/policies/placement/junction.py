"""At the junction: where a prompt leaves a prefix whose attention is cached, but not its state.

    prompts        200 shared + 120 own tokens, grid 96
    first          0 --------------------- 288 - 320     leaves a state among its own tokens
    second         0 -------- 192 -------- 288 - 320     finds attention to 200 and no state: stops
    third, ...              [ 192 -------- 288 - 320     hit

The rule of vLLM 0.27.1 (`shared_prefix_boundary`, after Marconi): cached attention that is deeper
than the joint restart point shows a prefix that two requests share. The second one stops there, at
the last boundary of the grid, so that every later one hits. A request that is preempted is looked
up again, and so is its junction.
"""

from collections.abc import Sequence
from typing import Literal

from hsexp.memory.policies.placement.rule import Cached, Placement, PlacementSettings
from hsexp.memory.sequence import Hit, PrefixKeys


class Junction(PlacementSettings):
    """A stop where cached attention ends; it has no settings."""

    kind: Literal["junction"]

    def build(self, cache: Cached) -> Placement:
        return AtJunction(cache)


class AtJunction(Placement):
    """The last boundary that cached attention reaches, if it is beyond the hit."""

    def __init__(self, cache: Cached) -> None:
        self._cache = cache

    def stops(self, keys: PrefixKeys, hit: Hit, num_tokens: int) -> Sequence[int]:
        grid = self._cache.checkpoint_grid
        last = (num_tokens - 1) // grid * grid
        if hit.tokens >= last:
            return ()
        junction = self._cache.attention_depth(keys, hit.tokens, last) // grid * grid
        return (junction,) if junction > hit.tokens else ()
