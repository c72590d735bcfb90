"""A refused admission that need not be tried again while nothing changed that could turn it."""

from hsexp.memory.cache import Cache
from hsexp.memory.sequence import Hit, SequenceMemory


class StandingRefusal:
    """A refusal beside running requests, with what the cache was like.

    It turns when pages are freed, when its hit is lost, or when its hit gets deeper. For that a
    deeper checkpoint has to be published, or, if there is one already, the block in its gap.
    """

    __slots__ = ("cache", "hit", "losses", "num_tokens", "sequence", "supply")

    def __init__(
        self,
        cache: Cache,
        sequence: SequenceMemory,
        hit: Hit,
        num_tokens: int,
        *,
        losses_matter: bool,
    ) -> None:
        """
        Args:
            hit: what a lookup finds now.
            num_tokens: tokens that the request wanted to be admitted with.
            losses_matter: False if the request would be refused without its hit as well, and no
                branch owes copies. A lost checkpoint frees a slot, which those copies may use.
        """
        self.cache = cache
        self.sequence = sequence
        self.hit = hit
        self.num_tokens = num_tokens
        self.supply = cache.supply
        self.losses = cache.num_losses if losses_matter else None

    def stands(self, sequence: SequenceMemory | None) -> bool:
        """Whether this sequence was refused, and would be again with the same tokens."""
        cache, gap = self.cache, self.hit.gap
        return (
            self.supply == cache.supply
            and self.sequence is sequence
            and (self.losses is None or self.losses == cache.num_losses)
            and (gap is None or gap not in cache.block_index.oldest)
        )
