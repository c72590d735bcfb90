"""A refused admission that need not be tried again while nothing changed that could turn it."""

from typing import TYPE_CHECKING

from hsexp.memory.sequence import Hit, SequenceMemory

if TYPE_CHECKING:
    from hsexp.memory.hybrid import HybridMemory


class StandingRefusal:
    """A refusal beside running requests, with what the memory was like.

    It turns when pages are freed, when its hit is lost, or when its hit gets deeper. For that a
    deeper checkpoint has to be published, or, if there is one already, the block in its gap.
    """

    __slots__ = ("hit", "losses", "memory", "num_tokens", "sequence", "supply")

    def __init__(
        self,
        memory: "HybridMemory",
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
            losses_matter: False if the request would be refused without its hit as well.
        """
        self.memory = memory
        self.sequence = sequence
        self.hit = hit
        self.num_tokens = num_tokens
        self.supply = memory.supply
        self.losses = memory.num_losses if losses_matter else None

    def stands(self, sequence: SequenceMemory | None) -> bool:
        """Whether this sequence was refused, and would be again with the same tokens."""
        memory, gap = self.memory, self.hit.gap
        return (
            self.supply == memory.supply
            and self.sequence is sequence
            and (self.losses is None or self.losses == memory.num_losses)
            and (gap is None or gap not in memory.block_index.oldest)
        )
