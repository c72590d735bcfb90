"""The best placement of checkpoints for known restart depths: a bound for every rule that guesses.

    depths         3 requests could restart at 96, one at 192, four at 480
    1 checkpoint   480               saves 4 x 480 = 1,920 tokens of prefill
    2              96, 480           saves 4 x 96 + 4 x 480 = 2,304
    3              96, 192, 480      saves 3 x 96 + 192 + 4 x 480 = 2,400, all that can be saved

A request restarts from the deepest checkpoint that is not beyond its depth, on one chain of
prefixes. A rule of `hsexp.memory.policies.placement` places when it knows of the past alone; this
one knows all depths in advance.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, kw_only=True)
class BestPlacement:
    """Checkpoints, and what they save."""

    boundaries: tuple[int, ...]
    """Tokens of each, in ascending order."""
    saved_tokens: float
    """Tokens that the requests do not compute."""


def best_placement(depths: Mapping[int, float], num_checkpoints: int) -> BestPlacement:
    """The checkpoints that save most, by dynamic programming over the deepest one.

    The next checkpoint above `h` at `i` saves (i - h) tokens for each request whose depth is `i` or
    more. It lies at a depth of some request: between two depths, moving it to the deeper one only
    saves more.

    Args:
        depths: number of requests, or a weight, by the depth in tokens at which they could restart.
        num_checkpoints: most checkpoints that are kept.

    Raises:
        ValueError: a depth or a weight is negative, or so is the number of checkpoints.
    """
    if num_checkpoints < 0:
        raise ValueError(f"num_checkpoints must not be negative, got {num_checkpoints}")
    for depth, weight in depths.items():
        if depth < 0 or weight < 0:
            raise ValueError(f"depths and weights must not be negative, got {depth}: {weight}")
    places = sorted(depth for depth, weight in depths.items() if depth and weight)
    beyond = list(accumulate(depths[place] for place in reversed(places)))[::-1]
    """Weight at each place and deeper."""
    best = BestPlacement(boundaries=(), saved_tokens=0.0)
    ends = [best]
    """The best placements of one size, by their deepest checkpoint."""
    for _ in range(min(num_checkpoints, len(places))):
        ends = [
            max(
                (_with(end, place, weight) for end in ends if _deepest(end) < place),
                key=lambda placement: placement.saved_tokens,
            )
            for place, weight in zip(places, beyond, strict=True)
            if any(_deepest(end) < place for end in ends)
        ]
        best = max(best, *ends, key=lambda placement: placement.saved_tokens)
    return best


def _deepest(placement: BestPlacement) -> int:
    return placement.boundaries[-1] if placement.boundaries else 0


def _with(placement: BestPlacement, boundary: int, weight: float) -> BestPlacement:
    saved = (boundary - _deepest(placement)) * weight
    return BestPlacement(
        boundaries=(*placement.boundaries, boundary), saved_tokens=placement.saved_tokens + saved
    )
