"""Attention KV of sequences: the blocks that their tokens take, and which of them others reuse.

An organization keeps it in an `AttentionStore`. The store here has whole pages; the other one packs
what does not fill a page (`hsexp.memory.tails`).

    whole pages   [ page of 512 ][ page of 512 ][ page |      ]
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from hsexp.memory.pool import PagePool
from hsexp.memory.sequence import SequenceMemory


class AttentionStore(ABC):
    """Keeps the attention KV of all sequences of one cache in one pool.

    A block has an id that is unique among all blocks of the same number of tokens. Ids count blocks
    of `kernel_block_size` tokens: page p consists of ids p n to p n + n - 1.
    """

    allows_branches: ClassVar[bool] = True
    """Whether sequences may share a block that is not full (forks, leaves) and write drafts."""

    def __init__(self, pool: PagePool, *, block_size: int, kernel_block_size: int) -> None:
        """
        Args:
            block_size: tokens of a page, which is what is cached.
            kernel_block_size: tokens of the smallest block, which generated tokens take.
        """
        self.pool = pool
        self.block_size = block_size
        self.kernel_block_size = kernel_block_size

    @property
    def num_free_slots(self) -> int:
        """Blocks that can be taken without a page."""
        return 0

    @property
    def blocks_per_page(self) -> int:
        return self.block_size // self.kernel_block_size

    # -- what others may reuse ---------------------------------------------------------------------

    @abstractmethod
    def cacheable_end(self, sequence: SequenceMemory) -> int:
        """Tokens of the sequence that can be cached; whatever ends beyond them is never reused."""

    def reach(self, sequence: SequenceMemory, num_tokens: int) -> int:
        """`num_tokens`, as far as a lookup may go: a hit is shorter, and can be cached."""
        return min(num_tokens, self.cacheable_end(sequence) + 1)

    def num_full(self, sequence: SequenceMemory, num_tokens: int) -> int:
        """Full blocks of the first `num_tokens` tokens that can be cached."""
        return min(num_tokens, self.cacheable_end(sequence)) // self.block_size

    # -- room --------------------------------------------------------------------------------------

    # Blocks are counted as (pages of their own, slots of shared pages).

    @abstractmethod
    def to_admit(
        self, num_tokens: int, *, num_prompt_tokens: int, hit_tokens: int
    ) -> tuple[int, int]:
        """Blocks of the first `num_tokens` tokens behind a hit.

        Args:
            num_prompt_tokens: of the request as it arrived.
        """

    @abstractmethod
    def missing(self, sequence: SequenceMemory, end: int) -> tuple[int, int]:
        """Blocks that the sequence does not have yet for its first `end` tokens; not above 0 if it
        has them all."""

    @abstractmethod
    def pages_for(self, pages: int, slots: int) -> int:
        """Free pages that these blocks would use up now."""

    def pages_alone(self, num_tokens: int) -> int:
        """Pages that `num_tokens` tokens take in an otherwise empty pool."""
        return -(-num_tokens // self.block_size)

    # -- blocks ------------------------------------------------------------------------------------

    @abstractmethod
    def take(self, sequence: SequenceMemory, end: int) -> None:
        """Take the missing blocks for the first `end` tokens; there is room."""

    @abstractmethod
    def release(self, sequence: SequenceMemory) -> None:
        """Drop the sequence's references, the last block first."""

    @abstractmethod
    def quiet_end(self, sequence: SequenceMemory, end: int) -> int:
        """Tokens up to which no block has to be taken or published, and no state to be published;
        0 if the step after `end` may have to."""

    @abstractmethod
    def num_blocks(self, sequence: SequenceMemory) -> int:
        """Number of `block_ids`."""

    @abstractmethod
    def block_ids(self, sequence: SequenceMemory, start: int = 0) -> list[int]:
        """Ids of the sequence's blocks in token order, as kernels see them.

        Args:
            start: blocks to leave out.
        """

    # -- recount -----------------------------------------------------------------------------------

    @abstractmethod
    def shared_pages(self) -> Iterable[int]:
        """Pages that the store itself references, each once."""

    @abstractmethod
    def check_integrity(self, sequences: Iterable[SequenceMemory]) -> None:
        """Recount what the store keeps in addition to its pool, from all live sequences."""


class WholePages(AttentionStore):
    """Every block is a page of its own (S0, S1, S2, D0)."""

    def __init__(self, pool: PagePool, *, block_size: int) -> None:
        super().__init__(pool, block_size=block_size, kernel_block_size=block_size)

    def cacheable_end(self, sequence: SequenceMemory) -> int:
        return sys.maxsize

    def reach(self, sequence: SequenceMemory, num_tokens: int) -> int:
        return num_tokens

    def num_full(self, sequence: SequenceMemory, num_tokens: int) -> int:
        return num_tokens // self.block_size

    def to_admit(
        self, num_tokens: int, *, num_prompt_tokens: int, hit_tokens: int
    ) -> tuple[int, int]:
        return -(-num_tokens // self.block_size) - hit_tokens // self.block_size, 0

    def missing(self, sequence: SequenceMemory, end: int) -> tuple[int, int]:
        return -(-end // self.block_size) - len(sequence.blocks), 0

    def pages_for(self, pages: int, slots: int) -> int:
        return pages

    def take(self, sequence: SequenceMemory, end: int) -> None:
        blocks = sequence.blocks
        blocks += self.pool.take(-(-end // self.block_size) - len(blocks))

    def release(self, sequence: SequenceMemory) -> None:
        # So a prefix loses its end before its start.
        self.pool.release(reversed(sequence.blocks), "attention")

    def quiet_end(self, sequence: SequenceMemory, end: int) -> int:
        # Nothing is due before the partial block is full: every boundary is the end of a block.
        num_full, offset = divmod(end, self.block_size)
        if offset and sequence.num_published_blocks >= num_full:
            return end - offset + self.block_size - 1
        return 0

    def num_blocks(self, sequence: SequenceMemory) -> int:
        return len(sequence.blocks)

    def block_ids(self, sequence: SequenceMemory, start: int = 0) -> list[int]:
        return sequence.blocks[start:]

    def shared_pages(self) -> Iterable[int]:
        return ()

    def check_integrity(self, sequences: Iterable[SequenceMemory]) -> None:
        for sequence in sequences:
            assert not sequence.tail
            assert sequence.quiet_end <= len(sequence.blocks) * self.block_size
            assert sequence.quiet_end < (sequence.num_published_blocks + 1) * self.block_size
            assert not sequence.quiet_end or (sequence.quiet_end + 1) % self.block_size == 0
