"""The cache of a memory: contents of its pages, their keys, and the sequences that use them.

    pools, states ........................ pages and checkpoints, by reference
    block_index, checkpoint_index ........ cached entries, by key
    sequences ............................ requests that hold memory now

This class publishes entries and loses them, for any reason. `hsexp.memory.hybrid` decides whether a
request is admitted, grows or stays.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from hsexp.memory.attention import AttentionStore
from hsexp.memory.checkpoint import Checkpoint, Slab, StateStore
from hsexp.memory.index import CacheIndex
from hsexp.memory.observer import LossCause, Observer, PoolWatcher
from hsexp.memory.pool import PagePool
from hsexp.memory.prefixes import Prefixes
from hsexp.memory.sequence import MISS, Hit, PrefixKeys, SequenceMemory


@dataclass(kw_only=True, slots=True)
class MemoryCounters:
    """Totals since the start; never reset."""

    preemptions: int = 0
    refusals: int = 0
    published_checkpoints: int = 0
    lost_checkpoints: int = 0
    lost_blocks: int = 0
    reclaimed_slabs: int = 0
    retained_checkpoints: int = 0
    pinned_checkpoints: int = 0


class Cache:
    """Pools, states, indexes and live sequences of one memory."""

    def __init__(
        self,
        *,
        pools: Sequence[PagePool],
        states: StateStore,
        attention: AttentionStore,
        checkpoint_grid: int,
        observer: Observer | None = None,
        prefixes: Prefixes | None = None,
    ) -> None:
        """
        Args:
            pools: attention's pool first; states may share it.
            prefixes: follows the entries; None if no policy asks for it.
        """
        self.pools = pools
        self.attention_pool = pools[0]
        self.attention = attention
        self.states = states
        self.block_size = attention.block_size
        self.checkpoint_grid = checkpoint_grid
        self.observer: Observer | None = None
        self.prefixes = prefixes
        self.block_index: CacheIndex[int] = CacheIndex()
        self.checkpoint_index: CacheIndex[Checkpoint] = CacheIndex()
        self.sequences: dict[int | str, SequenceMemory] = {}
        self.counters = MemoryCounters()
        self.step = 0
        """Number of the step that is being scheduled; the scheduler advances it."""
        self.supply = 0
        """Grows whenever pages are freed, a checkpoint is published, or an entry is lost although
        no page is taken (see `StandingRefusal`)."""
        self.num_kept_promises = 0
        """Steps in which a request took what its admission had counted."""
        self._recurrent = pools.index(states.pool)
        self._is_shared = self._recurrent == 0
        """One pool holds attention blocks and states."""
        self._blocks_ahead: set[int] = set()
        """Attention pages that step `_ahead_step` publishes before it computes them."""
        self._ahead_step = -1
        for pool in pools:
            pool.on_reassign = partial(self._on_reassign, pool)
        if observer is not None:
            self.watch(observer)

    def watch(self, observer: Observer) -> None:
        """Notify an observer from here on."""
        self.observer = observer
        for number, pool in enumerate(self.pools):
            pool.watch = PoolWatcher(observer, number)

    # -- what is found -----------------------------------------------------------------------

    def deepest_joint(self, keys: PrefixKeys, num_tokens: int) -> Hit:
        """The deepest boundary below `num_tokens` that both kinds of state reach."""
        grid = self.checkpoint_grid
        checkpoints = self.checkpoint_index.oldest
        index = (num_tokens - 1) // grid
        checkpoint_keys, gap = keys.checkpoints, None
        while index > 0:
            checkpoint = checkpoints.get(checkpoint_keys[index - 1])
            if checkpoint is not None:
                tokens = index * grid
                num_blocks = tokens // self.block_size
                block_keys = keys.attention[:num_blocks]
                blocks = list(map(self.block_index.oldest.get, block_keys))
                if None not in blocks:
                    return Hit(
                        tokens=tokens,
                        blocks=cast("list[int]", blocks),  # None was excluded
                        checkpoint=checkpoint,
                        ready=self.is_computed(checkpoint) and self.are_computed(blocks),
                        gap=gap,
                    )
                missing = blocks.index(None)
                if gap is None:
                    gap = block_keys[missing]
                # Continue at the deepest boundary that the attention prefix reaches.
                index = missing * self.block_size // grid + 1
            index -= 1
        return MISS if gap is None else Hit(tokens=0, gap=gap)

    def attention_depth(self, keys: PrefixKeys, start: int, end: int) -> int:
        """Tokens of the contiguous attention prefix in whole blocks, up to `end`.

        Args:
            start: tokens that it is known to reach.
        """
        block_size, oldest, block_keys = self.block_size, self.block_index.oldest, keys.attention
        num_blocks, most = start // block_size, min(end // block_size, len(block_keys))
        # One by one: most prompts end here at once, and a key may have to be made.
        while num_blocks < most and block_keys[num_blocks] in oldest:
            num_blocks += 1
        return num_blocks * block_size

    def are_computed(self, blocks: Iterable[int | None]) -> bool:
        """False if the step that is being scheduled has yet to compute one of these pages."""
        return self._ahead_step != self.step or self._blocks_ahead.isdisjoint(blocks)

    def is_computed(self, checkpoint: Checkpoint) -> bool:
        """False if the step that is being scheduled has yet to compute this entry."""
        return checkpoint.published_step < self.step

    # -- room --------------------------------------------------------------------------------

    def has_room(self, new_pages: int, new_state: bool) -> bool:
        """Whether attention pages and a state can be taken together."""
        states = self.states.pages_needed(1) if new_state else 0
        if self._is_shared:
            return new_pages + states <= self.attention_pool.num_free
        return new_pages <= self.attention_pool.num_free and states <= self.states.pool.num_free

    def by_pool(self, attention_pages: int, state_pages: int) -> list[int]:
        """Pages of each pool that attention and states take."""
        if self._is_shared:
            return [attention_pages + state_pages]
        pages = [attention_pages] + [0] * (len(self.pools) - 1)
        pages[self._recurrent] = state_pages
        return pages

    def release_blocks(self, pages: Iterable[int]) -> None:
        """Drop a reference from each attention page."""
        self.attention_pool.release(pages, "attention")
        self.supply += 1

    def release_attention(self, sequence: SequenceMemory) -> None:
        """Drop a sequence's references from all of its attention."""
        self.attention.release(sequence)
        self.supply += 1

    def release_state(self, checkpoint: Checkpoint) -> None:
        """Drop a reference from a state."""
        self.states.release(checkpoint)
        self.supply += 1

    # -- publication -------------------------------------------------------------------------

    def publish_computed(self, sequence: SequenceMemory, num_tokens: int) -> None:
        """Publish the full blocks of the first `num_tokens` tokens, which are computed."""
        num_full = self.attention.num_full(sequence, num_tokens)
        if num_full > sequence.num_published_blocks:
            self.publish_blocks(sequence, num_full)

    def publish_ahead(self, sequence: SequenceMemory, num_full: int) -> None:
        """Publish the blocks that the coming step completes."""
        if self._ahead_step != self.step:
            self._ahead_step = self.step
            self._blocks_ahead.clear()
        self._blocks_ahead.update(sequence.blocks[sequence.num_published_blocks : num_full])
        self.publish_blocks(sequence, num_full, ahead=True)

    def publish_blocks(
        self, sequence: SequenceMemory, num_full: int, *, ahead: bool = False
    ) -> None:
        """Publish the first `num_full` blocks under their keys, as far as those are known.

        Args:
            ahead: the coming step computes them.
        """
        start = sequence.num_published_blocks
        keys = sequence.keys.attention[start:num_full]
        # An asynchronous engine schedules a step before it knows the last token of the previous
        # one. A block that has no key for that reason is published later.
        num_full = start + len(keys)
        pages, entries = sequence.blocks[start:num_full], self.attention_pool.entries
        for page, key in zip(pages, keys, strict=True):
            entries[page] = key
        self.block_index.add_all(keys, pages)
        sequence.num_published_blocks = num_full
        if self.prefixes is not None:
            self.prefixes.add_blocks(sequence.keys, start, keys, pages)
        if self.observer is not None and keys:
            self.observer.on_publish_blocks(sequence, start, keys, pages, ahead=ahead)

    def publish_boundary(self, sequence: SequenceMemory, computed: int) -> None:
        """Publish the state of an earlier step whose key was not known when it was scheduled."""
        boundary, offset = divmod(computed, self.checkpoint_grid)
        if offset or not boundary:
            return
        checkpoint = None
        if sequence.state_index == boundary - 1:
            checkpoint = sequence.state
        elif sequence.state_index == boundary:
            checkpoint = sequence.superseded
        if checkpoint is None or checkpoint.key is not None or checkpoint.awaits_copy:
            return
        self.publish_state(sequence, checkpoint, computed, step=self.step - 1)

    def publish_state(
        self, sequence: SequenceMemory, checkpoint: Checkpoint | None, end: int, *, step: int
    ) -> None:
        """Publish the state that `step` leaves at boundary `end`, if its key is known by now and
        its attention can be cached."""
        assert checkpoint is not None
        index = end // self.checkpoint_grid - 1
        if checkpoint.key is not None or index >= len(sequence.keys.checkpoints):
            return
        if end > self.attention.cacheable_end(sequence):
            return
        key = sequence.keys.checkpoints[index]
        checkpoint.tokens = end
        checkpoint.published_step = step
        self.states.publish(checkpoint, key)
        self.checkpoint_index.add(key, checkpoint)
        self.counters.published_checkpoints += 1
        self.supply += 1
        if self.prefixes is not None:
            self.prefixes.add_checkpoint(checkpoint, sequence.keys)
        if self.observer is not None:
            self.observer.on_publish_state(sequence, checkpoint, ahead=step == self.step)

    def end_at(
        self, sequence: SequenceMemory, computed: int, *, with_boundary: bool = True
    ) -> None:
        """The sequence stops after `computed` tokens: publish them and withdraw the rest.

        Args:
            with_boundary: whether the state is published, if it is at a boundary of the grid.
        """
        self._withdraw(sequence, computed)
        self.publish_computed(sequence, computed)
        if with_boundary:
            self.publish_boundary(sequence, computed)

    def _withdraw(self, sequence: SequenceMemory, computed: int) -> None:
        """Withdraw entries that the sequence published ahead of the coming step, which it leaves.

        Nobody else will compute them, even if another sequence holds their pages: a copy only reads
        older contents. Entries of earlier steps are computed, also if `computed` does not count the
        last of these steps.
        """
        start = computed // self.block_size
        entries = self.attention_pool.entries
        for page in sequence.blocks[start : sequence.num_published_blocks]:
            key = entries[page]
            if key is not None and not self.are_computed((page,)):
                self.lose(self.attention_pool, page, key, cause="withdrawn")
        sequence.num_published_blocks = min(start, sequence.num_published_blocks)
        checkpoint = sequence.state
        if (
            checkpoint is not None
            and checkpoint.key is not None
            and checkpoint.tokens > computed
            and not self.is_computed(checkpoint)
        ):
            self.lose_checkpoint(checkpoint, cause="withdrawn")

    # -- loss --------------------------------------------------------------------------------

    def _on_reassign(self, pool: PagePool, pages: list[int]) -> None:
        """Lose the entries of queued pages before the pages get a new owner."""
        entries = pool.entries
        if self.observer is not None:
            self._announce_lost_blocks(pool, pages)
        keys: list[Hashable] = []
        blocks: list[int] = []
        for page in pages:
            entry = entries[page]
            if entry is None:
                continue
            kind = type(entry)
            if kind is not Checkpoint and kind is not Slab:
                entries[page] = None
                keys.append(entry)
                blocks.append(page)
                continue
            self._lose_blocks(keys, blocks)
            keys, blocks = [], []
            if kind is Checkpoint:
                self.lose_checkpoint(entry, cause="reassigned")
            else:
                self.counters.reclaimed_slabs += 1
                for checkpoint in list(entry.checkpoints()):
                    self.lose_checkpoint(checkpoint, cause="slab")
        self._lose_blocks(keys, blocks)

    def _lose_blocks(self, keys: Sequence[Hashable], pages: Sequence[int]) -> None:
        """Remove the keys of these attention pages, which cache nothing any more."""
        if not keys:
            return
        self.counters.lost_blocks += len(keys)
        prefixes = self.prefixes
        if prefixes is None:
            self.block_index.remove_all(keys, pages)
            return
        for key, page in zip(keys, pages, strict=True):  # each loss sees those before it
            self.block_index.remove(key, page)
            prefixes.lose_block(key, page, self.block_index.oldest.get(key))

    def _announce_lost_blocks(self, pool: PagePool, pages: list[int]) -> None:
        """Notify the observer of attention blocks that are about to be reassigned."""
        assert self.observer is not None
        entries = ((page, pool.entries[page]) for page in pages)
        others = (type(None), Checkpoint, Slab)
        lost = [page for page, entry in entries if type(entry) not in others]
        if lost:
            self.observer.on_lose_blocks(self.pools.index(pool), lost, "reassigned")

    def lose(self, pool: PagePool, page: int, entry: Any, *, cause: LossCause) -> None:
        """Remove the key of the entry that a page caches."""
        if type(entry) is Checkpoint:
            self.lose_checkpoint(entry, cause=cause)
        elif type(entry) is not Slab:  # a slab goes with its last checkpoint
            pool.entries[page] = None
            self._lose_blocks((entry,), (page,))
            if self.observer is not None:
                self.observer.on_lose_blocks(self.pools.index(pool), (page,), cause)

    def lose_checkpoint(self, checkpoint: Checkpoint, *, cause: LossCause) -> None:
        """Remove a checkpoint's key; its holders keep its pages."""
        key = checkpoint.key
        assert key is not None
        assert checkpoint.refs == 0 or cause in ("withdrawn", "leaf")
        self.checkpoint_index.remove(key, checkpoint)
        self.states.forget(checkpoint)
        self.counters.lost_checkpoints += 1
        if self.prefixes is not None:
            self.prefixes.lose_checkpoint(checkpoint, self.checkpoint_index.oldest.get(key))
        if self.observer is not None:
            self.observer.on_lose_state(checkpoint, cause)

    def reset(self) -> int:
        """Lose every entry that nobody references. Returns how many."""
        num_entries = len(self.block_index) + len(self.checkpoint_index)
        if self.observer is not None:
            self.observer.on_act(None, "reset")
        self.supply += 1
        for pool in self.pools:
            for page in pool.free_pages():
                entry = pool.entries[page]
                if entry is not None:
                    self.lose(pool, page, entry, cause="reset")
        return num_entries - len(self.block_index) - len(self.checkpoint_index)

    @property
    def stamp(self) -> tuple[int, int, int]:
        """Changes whenever a key is added or lost, and so whenever a lookup may find another
        depth."""
        return len(self.block_index.oldest), len(self.checkpoint_index.oldest), self.num_losses

    @property
    def uncounted(self) -> tuple[int, int, int]:
        """Changes with what an admission need not take pages for any more: blocks of attention and
        convolution slots that are there already, and promises to others."""
        free_slots = self.attention.num_free_slots
        return free_slots, self.states.free_active_slots, self.num_kept_promises

    @property
    def num_losses(self) -> int:
        """Cached entries lost so far."""
        return self.counters.lost_checkpoints + self.counters.lost_blocks
