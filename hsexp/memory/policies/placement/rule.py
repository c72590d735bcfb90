"""The seam: at a lookup the memory asks its placement where the prefill behind the hit must stop.

    scheduler   lookup of a request   ->  placement  -> stops, in tokens
                a chunk that would pass a stop ends there, and its state becomes a checkpoint

A chunk leaves a checkpoint where it ends on the checkpoint grid. Without stops it ends where the
budget of its step does, or at the last boundary of the prompt. A stop costs the request one more
step, and nothing else: admission, pages and publication are the same.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from hsexp.config.fields import Choice
from hsexp.memory.sequence import Hit, PrefixKeys


class Cached(Protocol):
    """What a rule may ask about the cache. Asking changes nothing."""

    checkpoint_grid: int

    def attention_depth(self, keys: PrefixKeys, start: int, end: int) -> int:
        """Tokens of the contiguous attention prefix, from `start`, which it reaches, to `end` at
        most."""
        ...


class Placement(ABC):
    """Where the prefills of one memory leave checkpoints."""

    @abstractmethod
    def stops(self, keys: PrefixKeys, hit: Hit, num_tokens: int) -> Sequence[int]:
        """Boundaries of the checkpoint grid at which the prefill stops, in ascending order.

        Those that are not beyond the hit are skipped.

        Args:
            keys: cache keys of the request's prefix.
            hit: where the prefill starts.
            num_tokens: as in the lookup; a hit of the same request is shorter.
        """


class PlacementSettings(Choice):
    """Settings of a placement of checkpoints."""

    @abstractmethod
    def build(self, cache: Cached) -> Placement:
        """The placement of one memory.

        Args:
            cache: of this memory.
        """
