"""Packed tails: the ragged end of a prompt and the generated tokens share pages (S3).

    prompt of 1,100 tokens, 30 generated      page of 512 tokens, blocks of 16
    own pages   [ 0 ... 511 ][ 512 ... 1023 ]                  cached, reused
    tail slabs  [ .. | 1024 ... 1039 | 1040 .. | ... | 1120 . | .. of others .. ]

A tail slab is a page of the pool with a slot for each block. Slots are private: they are never
cached, and are freed with their request. A slab is referenced while one of its slots is in use, and
is an ordinary page again when its last slot leaves. So that slabs empty, a block takes a slot of
the fullest slab that has one.

What lies in own pages follows from the prompt as it arrived. A preempted request that comes back
recomputes its generated tokens into a tail, as it computed them the first time. No state beyond the
own pages is published: without cached attention nobody could continue from it.
"""

from collections.abc import Iterable
from typing import ClassVar

from hsexp.memory.attention import AttentionStore
from hsexp.memory.pool import PagePool
from hsexp.memory.sequence import SequenceMemory


class PackedTails(AttentionStore):
    """Whole pages for the prompt, slots of shared slabs for the rest."""

    allows_branches: ClassVar[bool] = False

    def __init__(self, pool: PagePool, *, block_size: int, tail_block_size: int) -> None:
        super().__init__(pool, block_size=block_size, kernel_block_size=tail_block_size)
        self.num_slots = self.blocks_per_page
        self._num_free_slots = 0
        """Free slots of all slabs."""
        self._masks: dict[int, int] = {}
        """Free slots of each slab, by page: bit k stands for slot k."""
        self._by_free: list[dict[int, None]] = [{} for _ in range(self.num_slots + 1)]
        """Slabs by the number of their free slots; those that came first to it come first."""

    @property
    def num_free_slots(self) -> int:
        return self._num_free_slots

    @property
    def num_slabs(self) -> int:
        return len(self._masks)

    def free_slots(self) -> dict[int, int]:
        """Free slots of each slab, by page: bit k stands for slot k."""
        return dict(self._masks)

    # -- what others may reuse ---------------------------------------------------------------------

    def cacheable_end(self, sequence: SequenceMemory) -> int:
        return self._own_end(sequence.num_prompt_tokens)

    def _own_end(self, num_prompt_tokens: int) -> int:
        """Tokens in own pages."""
        return num_prompt_tokens - num_prompt_tokens % self.block_size

    # -- room --------------------------------------------------------------------------------------

    def to_admit(
        self, num_tokens: int, *, num_prompt_tokens: int, hit_tokens: int
    ) -> tuple[int, int]:
        pages, slots = self._split(num_tokens, num_prompt_tokens)
        return pages - hit_tokens // self.block_size, slots

    def missing(self, sequence: SequenceMemory, end: int) -> tuple[int, int]:
        pages, slots = self._split(end, sequence.num_prompt_tokens)
        return pages - len(sequence.blocks), slots - len(sequence.tail)

    def pages_for(self, pages: int, slots: int) -> int:
        """Free slots come first."""
        return pages + max(-(-(slots - self.num_free_slots) // self.num_slots), 0)

    def _split(self, end: int, num_prompt_tokens: int) -> tuple[int, int]:
        """Own pages and tail blocks of the first `end` tokens."""
        own = self._own_end(num_prompt_tokens)
        if end <= own:
            return -(-end // self.block_size), 0
        return own // self.block_size, -(-(end - own) // self.kernel_block_size)

    # -- blocks ------------------------------------------------------------------------------------

    def take(self, sequence: SequenceMemory, end: int) -> None:
        pages, slots = self.missing(sequence, end)
        sequence.blocks += self.pool.take(pages)
        for _ in range(slots):
            sequence.tail.append(self._take_slot())

    def release(self, sequence: SequenceMemory) -> None:
        for block_id in reversed(sequence.tail):
            self._free_slot(block_id)
        self.pool.release(reversed(sequence.blocks), "attention")

    def _take_slot(self) -> int:
        slabs = next((slabs for slabs in self._by_free[1:] if slabs), None)
        if slabs is None:
            page = self.pool.take(1, "tail")[0]
            self._masks[page] = (1 << self.num_slots) - 1
            self._num_free_slots += self.num_slots
            slabs = self._by_free[self.num_slots]
            slabs[page] = None
        page = next(iter(slabs))
        mask = self._masks[page]
        lowest = mask & -mask
        self._change(page, mask ^ lowest)
        return page * self.num_slots + lowest.bit_length() - 1

    def _free_slot(self, block_id: int) -> None:
        page, slot = divmod(block_id, self.num_slots)
        self._change(page, self._masks[page] | 1 << slot)
        if self._masks[page].bit_count() == self.num_slots:
            del self._masks[page], self._by_free[self.num_slots][page]
            self._num_free_slots -= self.num_slots
            self.pool.release((page,), "attention")

    def _change(self, page: int, mask: int) -> None:
        before, after = self._masks[page].bit_count(), mask.bit_count()
        assert before != after
        self._masks[page] = mask
        del self._by_free[before][page]
        self._by_free[after][page] = None
        self._num_free_slots += after - before

    def quiet_end(self, sequence: SequenceMemory, end: int) -> int:
        own, size = self._own_end(sequence.num_prompt_tokens), self.block_size
        num_full, offset = divmod(min(end, own), size)
        if sequence.num_published_blocks < num_full:
            return 0
        if end > own:  # nothing in the tail is published: not before it needs another block
            return end + -end % self.kernel_block_size
        return end - offset + size - 1 if offset else 0

    def num_blocks(self, sequence: SequenceMemory) -> int:
        return len(sequence.blocks) * self.num_slots + len(sequence.tail)

    def block_ids(self, sequence: SequenceMemory, start: int = 0) -> list[int]:
        num_own = len(sequence.blocks) * self.num_slots
        if start >= num_own:
            return sequence.tail[start - num_own :]
        pages = sequence.blocks[start // self.num_slots :]
        ids = [page * self.num_slots + block for page in pages for block in range(self.num_slots)]
        return ids[start % self.num_slots :] + sequence.tail

    # -- recount -----------------------------------------------------------------------------------

    def shared_pages(self) -> Iterable[int]:
        return self._masks

    def check_integrity(self, sequences: Iterable[SequenceMemory]) -> None:
        used: dict[int, int] = {}
        for sequence in sequences:
            for block_id in sequence.tail:
                page, slot = divmod(block_id, self.num_slots)
                assert not used.get(page, 0) >> slot & 1, f"block {block_id} has two owners"
                used[page] = used.get(page, 0) | 1 << slot
            own = self._own_end(sequence.num_prompt_tokens)
            assert len(sequence.blocks) * self.block_size <= own
            assert not sequence.tail or len(sequence.blocks) * self.block_size == own
            reach = own + len(sequence.tail) * self.kernel_block_size
            assert sequence.quiet_end <= reach
            assert sequence.quiet_end <= own or (
                sequence.num_published_blocks == own // self.block_size
            )
        every = (1 << self.num_slots) - 1
        assert {page: every ^ mask for page, mask in used.items()} == self._masks
        assert all(self.pool.refs[page] == 1 for page in used)
        assert all(self.pool.entries[page] is None for page in used)
        num_free = {page: mask.bit_count() for page, mask in self._masks.items()}
        assert sum(num_free.values()) == self.num_free_slots
        assert num_free == {
            page: count for count, slabs in enumerate(self._by_free) for page in slabs
        }
