"""A refused admission that need not be retried until something relevant has changed."""

from hsexp.memory.cache import Cache
from hsexp.memory.sequence import Hit, SequenceMemory


class StandingRefusal:
    """A refusal while other requests run, with the state of the cache that it depends on.

    It may change when pages are freed, when its hit is lost, or when its hit gets deeper. A hit
    gets deeper when a deeper checkpoint is published, or the block in its gap if there is one.
    A refusal by price may also change with the ranks of restart points, with every loss, and when
    others take pages that it would need less of: a slab that has room for it too, or what it has to
    leave them. Fewer pages are free then, and as many fewer needed, but each of them is worth more.
    """

    __slots__ = ("cache", "hit", "losses", "num_tokens", "ranks", "sequence", "supply",
                 "uncounted")  # fmt: skip

    def __init__(
        self,
        cache: Cache,
        sequence: SequenceMemory,
        hit: Hit,
        num_tokens: int,
        *,
        losses_matter: bool,
        by_price: bool = False,
    ) -> None:
        """
        Args:
            hit: result of a lookup now.
            num_tokens: tokens of the refused admission.
            losses_matter: False if the request would be refused without its hit as well, and no
                branch owes copies and no promises count. A lost checkpoint frees a slot, which
                these copies and the states of promises count on.
            by_price: whether it was refused by price.
        """
        self.cache = cache
        self.sequence = sequence
        self.hit = hit
        self.num_tokens = num_tokens
        self.supply = cache.supply
        prefixes = cache.prefixes if by_price else None
        self.ranks = None if prefixes is None else prefixes.version
        self.uncounted = cache.uncounted if by_price else None
        self.losses = cache.num_losses if losses_matter or by_price else None

    def stands(self, sequence: SequenceMemory | None) -> bool:
        """Whether this sequence was refused, and would be refused again with the same tokens."""
        cache, gap = self.cache, self.hit.gap
        return (
            self.supply == cache.supply
            and self.sequence is sequence
            and (self.losses is None or self.losses == cache.num_losses)
            and (cache.prefixes is None or self.ranks in (None, cache.prefixes.version))
            and self.uncounted in (None, cache.uncounted)
            and (gap is None or gap not in cache.block_index.oldest)
        )
