"""The memory of a hybrid model: joint lookup, admission, growth, publication and release.

One class serves all organizations; what differs is behind `Organization` (sizes) and `StateStore`
(where states lie). A life of a request:

    lookup -> refusal? -> admit -> extend, extend, ... -> release (finished) or preempt
              (nothing moved)      one call a step

`extend` is called when a step is scheduled, before anything is computed: entries published by it
are usable by others from the next step on, and are withdrawn if the request is preempted or
cancelled within the step. Nothing here knows a clock, a configuration framework or an engine.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hsexp.memory.admission import HeadroomAdmission
from hsexp.memory.branching import Branching
from hsexp.memory.checkpoint import Checkpoint, StateStore
from hsexp.memory.copies import Copy
from hsexp.memory.drafting import Drafting
from hsexp.memory.index import CacheIndex
from hsexp.memory.lifetime import ReleaseSuperseded
from hsexp.memory.observer import LossCause, Observer
from hsexp.memory.pinning import NoPinning
from hsexp.memory.policies.eviction import ReleaseOrder
from hsexp.memory.pool import MemoryFault, PagePool
from hsexp.memory.sequence import Depths, Hit, PrefixKeys, Refusal, SequenceMemory
from hsexp.memory.slab import Slab

MISS = Hit(tokens=0)


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


class HybridMemory:
    """Attention blocks and checkpoints of all live requests, and what is cached of past ones."""

    def __init__(
        self,
        *,
        attention_pool: PagePool,
        states: StateStore,
        block_size: int,
        checkpoint_grid: int,
        num_admission_states: int,
        order: ReleaseOrder,
        admission: HeadroomAdmission,
        lifetime: ReleaseSuperseded,
        pinning: NoPinning,
        observer: Observer | None = None,
        max_leaves: int = 0,
        max_drafts: int = 0,
    ) -> None:
        self.attention_pool = attention_pool
        self.states = states
        self.block_size = block_size
        self.checkpoint_grid = checkpoint_grid
        self.num_admission_states = num_admission_states
        self.order = order
        self.admission = admission
        self.lifetime = lifetime
        self.pinning = pinning
        self.observer = observer
        self.pools = admission.pools
        self._attention = self.pools.index(attention_pool)
        self._recurrent = self.pools.index(states.pool)
        self.block_index: CacheIndex[int] = CacheIndex()
        self.checkpoint_index: CacheIndex[Checkpoint] = CacheIndex()
        self.sequences: dict[int | str, SequenceMemory] = {}
        self.branching = Branching(self, max_leaves=max_leaves)
        self._sharers = self.branching.sharers
        self.drafting = Drafting(self, max_drafts=max_drafts)
        self.counters = MemoryCounters()
        self.step = 0
        """Number of the step that is being scheduled; the scheduler advances it."""
        self.supply = 0
        """Grows whenever pages are freed or a checkpoint is published (see `StandingRefusal`)."""
        self._blocks_ahead: set[int] = set()
        """Attention pages that step `_ahead_step` publishes before it computes them."""
        self._ahead_step = -1
        for pool in self.pools:
            pool.on_reassign = partial(self._on_reassign, pool)

    # -- lookup and admission ----------------------------------------------------------------

    def enter(self, sequence: SequenceMemory, num_tokens: int) -> None:
        """Tell an observer what a request that joins the queue could reuse at once."""
        if self.observer is not None:
            self.observer.on_enter(sequence, self.depths(sequence.keys, num_tokens))

    def lookup(self, sequence: SequenceMemory, num_tokens: int) -> Hit:
        """The deepest joint restart point below `num_tokens`, without touching anything.

        The last token is always computed, so a boundary is at most num_tokens - 1.
        """
        hit = self._deepest_joint(sequence.keys, num_tokens)
        if self.observer is not None:
            self.observer.on_lookup(sequence, hit, self.depths(sequence.keys, num_tokens))
        return hit

    def _deepest_joint(self, keys: PrefixKeys, num_tokens: int) -> Hit:
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
                        blocks=blocks,  # type: ignore[arg-type]  # None was excluded
                        checkpoint=checkpoint,
                        ready=checkpoint.published_step < self.step and self.are_computed(blocks),
                        gap=gap,
                    )
                missing = blocks.index(None)
                if gap is None:
                    gap = block_keys[missing]
                # Go on at the deepest boundary that the attention prefix reaches.
                index = missing * self.block_size // grid + 1
            index -= 1
        return MISS if gap is None else Hit(tokens=0, gap=gap)

    def are_computed(self, blocks: Iterable[int | None]) -> bool:
        """Whether none of these pages is published ahead of the step that is being scheduled."""
        return self._ahead_step != self.step or self._blocks_ahead.isdisjoint(blocks)

    def depths(self, keys: PrefixKeys, num_tokens: int) -> Depths:
        """Amax, Rmax and Jadopt of a lookup, for observers and traces."""
        limit = (num_tokens - 1) // self.checkpoint_grid
        num_blocks = 0
        max_blocks = limit * self.checkpoint_grid // self.block_size
        for key in keys.attention[:max_blocks]:
            if key not in self.block_index.oldest:
                break
            num_blocks += 1
        recurrent = 0
        for index in range(limit, 0, -1):
            if keys.checkpoints[index - 1] in self.checkpoint_index.oldest:
                recurrent = index
                break
        return Depths(
            attention=num_blocks * self.block_size // self.checkpoint_grid * self.checkpoint_grid,
            recurrent=recurrent * self.checkpoint_grid,
            joint=self._deepest_joint(keys, num_tokens).tokens,
        )

    def admission_need(self, hit: Hit, num_tokens: int, *, with_drafts: bool = True) -> list[int]:
        """Pages per pool that admitting `num_tokens` with this hit counts (rule 9).

        All missing blocks of the full prompt, the hit's unreferenced pages, the request's own
        states, what running branches have yet to copy, and room for drafts where there are any.
        """
        max_drafts = self.drafting.max_drafts if with_drafts else 0
        blocks = -(-(num_tokens + max_drafts) // self.block_size) - hit.tokens // self.block_size
        num_states = self.num_admission_states + (max_drafts > 0)
        if self._sharers:
            owed_blocks, owed_states = self.branching.owed()
            blocks += owed_blocks
            num_states += owed_states
        states = self.states.pages_needed(num_states)
        if hit.checkpoint is not None:
            blocks += self.attention_pool.count_unreferenced(hit.blocks)
            states += self.states.pages_to_hold(hit.checkpoint)
        if self._attention == self._recurrent:
            return [blocks + states]
        need = [0] * len(self.pools)
        need[self._attention], need[self._recurrent] = blocks, states
        return need

    def refusal(
        self, sequence: SequenceMemory, hit: Hit, num_tokens: int, *, nothing_runs: bool
    ) -> Refusal | None:
        """None if the request may be admitted now. Nothing moves either way.

        Drafts are optional: a request that would run alone comes in without room for them.
        """
        need = self.admission_need(hit, num_tokens, with_drafts=not nothing_runs)
        refusal = self.admission.refusal(need, nothing_runs=nothing_runs)
        if refusal is not None:
            self.counters.refusals += 1
            if self.observer is not None:
                self.observer.on_refuse(sequence, refusal)
        return refusal

    def admit(self, sequence: SequenceMemory, hit: Hit) -> None:
        """Start the request: references on its hit first, then its pins may go (B.2)."""
        assert sequence.request_id not in self.sequences and not sequence.blocks
        self.sequences[sequence.request_id] = sequence
        if hit.checkpoint is not None:
            self.attention_pool.hold(hit.blocks)
            self.states.hold(hit.checkpoint)
            sequence.blocks = list(hit.blocks)
            sequence.num_published_blocks = hit.tokens // self.block_size
            sequence.state = hit.checkpoint
            sequence.state_index = (hit.tokens - 1) // self.checkpoint_grid
            if hit.tokens % self.checkpoint_grid:
                self.branching.share(sequence, hit.tokens)
            else:
                self.pinning.on_adopt(
                    sequence.request_id, sequence.keys.checkpoints[sequence.state_index]
                )
        self.unpin(sequence.request_id)
        num_boundaries = (sequence.num_prompt_tokens - 1) // self.checkpoint_grid
        self.lifetime.on_admission(sequence.request_id, sequence.keys.checkpoints[:num_boundaries])
        if self.observer is not None:
            self.observer.on_adopt(sequence, hit)

    def max_need(self, num_tokens: int) -> list[int]:
        """Pages per pool that a request takes at its widest when it runs alone.

        It computes `num_tokens` in all. Crossing a boundary needs the old and the new state.
        """
        need = [0] * len(self.pools)
        need[self._attention] += -(-num_tokens // self.block_size)
        crosses = num_tokens > self.checkpoint_grid
        num_states = max(2 if crosses else 1, self.num_admission_states)
        need[self._recurrent] += self.states.pages_alone(num_states)
        return need

    def never_fits(self, num_tokens: int) -> str | None:
        """Why a request that computes `num_tokens` in all could never finish here, or None."""
        need = self.max_need(num_tokens)
        for pool, pages in zip(self.pools, need, strict=True):
            if pages > pool.spec.num_usable:
                return (
                    f"needs {pages} pages of pool {pool.spec.name} alone, "
                    f"which has {pool.spec.num_usable}"
                )
        return None

    # -- branches ----------------------------------------------------------------------------

    def fork(self, parent: SequenceMemory, child: SequenceMemory, num_tokens: int) -> None:
        """Start `child` from the `num_tokens` that `parent` has computed (`Branching.fork`)."""
        self.branching.fork(parent, child, num_tokens)

    def take_copies(self) -> list[Copy]:
        """Copies to be done before the step that was scheduled (`Copies.take`)."""
        return self.branching.copies.take()

    # -- growth and publication --------------------------------------------------------------

    def extend(self, sequence: SequenceMemory, computed: int, end: int) -> bool:
        """Make room for a step over tokens [computed, end), and publish what it completes.

        False means that there is not enough room: the superseded state is gone (the failure
        test comes after that release), nothing else has moved.
        """
        if end <= sequence.quiet_end:  # most decode steps
            return True
        if sequence.superseded is not None:
            self._give_up_superseded(sequence)
        block_size, grid = self.block_size, self.checkpoint_grid
        if computed // block_size > sequence.num_published_blocks:
            self._publish_blocks(sequence, computed // block_size)
        if not computed % grid and sequence.state is not None and sequence.state.key is None:
            self._publish_boundary(sequence, computed)
        new_blocks = -(-end // block_size) - len(sequence.blocks)
        state_index = (end - 1) // grid
        new_state = state_index > sequence.state_index
        if self._sharers and not self.branching.own(
            sequence, computed, new_blocks=max(new_blocks, 0), new_state=new_state
        ):
            return False
        if new_blocks > 0 or new_state:
            if not self.has_room(new_blocks, new_state):
                return False
            if new_blocks > 0:
                sequence.blocks += self.attention_pool.take(new_blocks)
            if new_state:
                sequence.superseded = sequence.state
                sequence.state = self.states.allocate()
                sequence.state_index = state_index
            if self.observer is not None:
                self.observer.on_allocate(sequence, max(new_blocks, 0), int(new_state))
        num_full, offset = divmod(end, block_size)
        if num_full > sequence.num_published_blocks:
            self._publish_ahead(sequence, num_full)
        if end % grid == 0:
            self.publish_state(sequence, sequence.state, end, step=self.step)
        # Nothing is due before the block that was begun is full: a boundary is the end of one.
        quiet = (
            offset > 0 and sequence.superseded is None and sequence.num_published_blocks >= num_full
        )
        sequence.quiet_end = end - offset + block_size - 1 if quiet else 0
        return True

    def publish_computed(self, sequence: SequenceMemory, num_tokens: int) -> None:
        """Give the full blocks of what was computed their keys."""
        num_full = num_tokens // self.block_size
        if num_full > sequence.num_published_blocks:
            self._publish_blocks(sequence, num_full)

    def _publish_ahead(self, sequence: SequenceMemory, num_full: int) -> None:
        """Publish the blocks that the coming step completes."""
        if self._ahead_step != self.step:
            self._ahead_step = self.step
            self._blocks_ahead.clear()
        self._blocks_ahead.update(sequence.blocks[sequence.num_published_blocks : num_full])
        self._publish_blocks(sequence, num_full)

    def has_room(self, new_blocks: int, new_state: bool) -> bool:
        """Whether blocks and a state can be taken together."""
        states = self.states.pages_needed(1) if new_state else 0
        if self._attention == self._recurrent:
            return new_blocks + states <= len(self.attention_pool.queue)
        return new_blocks <= len(self.attention_pool.queue) and states <= len(
            self.states.pool.queue
        )

    def _publish_blocks(self, sequence: SequenceMemory, num_full: int) -> None:
        start = sequence.num_published_blocks
        oldest, add = self.block_index.oldest, self.block_index.add
        entries = self.attention_pool.entries
        keys = sequence.keys.attention[start:num_full]
        # An asynchronous engine schedules a step before it knows the last token of the one before.
        # A block without a key for that reason follows when it has one.
        num_full = start + len(keys)
        for page, key in zip(sequence.blocks[start:num_full], keys, strict=True):
            entries[page] = key
            if key in oldest:
                add(key, page)
            else:
                oldest[key] = page
        sequence.num_published_blocks = num_full
        if self.observer is not None:
            for block, key in enumerate(keys, start + 1):
                self.observer.on_publish(sequence, "attention", key, block * self.block_size)

    def _publish_boundary(self, sequence: SequenceMemory, computed: int) -> None:
        """Publish the state of an earlier step whose key was not known when it was scheduled."""
        boundary, offset = divmod(computed, self.checkpoint_grid)
        if offset or not boundary:
            return
        checkpoint = None
        if sequence.state_index == boundary - 1:
            checkpoint = sequence.state
        elif sequence.state_index == boundary:
            checkpoint = sequence.superseded
        if checkpoint is not None and checkpoint.key is None:
            self.publish_state(sequence, checkpoint, computed, step=self.step - 1)

    def publish_state(
        self, sequence: SequenceMemory, checkpoint: Checkpoint | None, end: int, *, step: int
    ) -> None:
        """Publish the state that `step` leaves at boundary `end`, if its key is known by now."""
        assert checkpoint is not None
        index = end // self.checkpoint_grid - 1
        if checkpoint.key is not None or index >= len(sequence.keys.checkpoints):
            return
        key = sequence.keys.checkpoints[index]
        checkpoint.tokens = end
        checkpoint.published_step = step
        self.states.publish(checkpoint, key)
        self.checkpoint_index.add(key, checkpoint)
        self.counters.published_checkpoints += 1
        self.supply += 1
        if self.observer is not None:
            self.observer.on_publish(sequence, "checkpoint", key, end)

    # -- release -----------------------------------------------------------------------------

    def release(
        self, sequence: SequenceMemory, computed: int, *, leaf: Hashable | None = None
    ) -> None:
        """The request finished or was cancelled after `computed` tokens: drop its references.

        What was published beyond them will not be computed and is withdrawn.

        Args:
            leaf: names the computed tokens: keep them as a restart point (`Branching.keep_leaf`).
        """
        self._withdraw(sequence, computed)
        self.publish_computed(sequence, computed)
        self._publish_boundary(sequence, computed)
        if leaf is not None:
            self.branching.keep_leaf(sequence, computed, leaf)
        self._release(sequence)
        self.unpin(sequence.request_id)
        if self.observer is not None:
            self.observer.on_release(sequence, preempted=False)

    def preempt(self, sequence: SequenceMemory, computed: int) -> None:
        """Take the request's memory away; it will be recomputed from a new lookup.

        `computed` counts the tokens of earlier steps. What it published in this very step will
        not be computed and is withdrawn.
        """
        self._withdraw(sequence, computed)
        self.publish_computed(sequence, computed)
        self._publish_boundary(sequence, computed)
        self._pin_rightmost(sequence, computed)
        self._release(sequence)
        self.counters.preemptions += 1
        if self.observer is not None:
            self.observer.on_release(sequence, preempted=True)

    def unpin(self, request_id: int | str) -> None:
        """Drop the pin of a request that runs again or will not come back."""
        if self.pinning.num_pins:
            self.pinning.unpin(request_id)
            self.supply += 1

    def unpin_all(self) -> None:
        """Nothing else can run: pins must not keep the last request out."""
        self.pinning.unpin_all()
        self.supply += 1

    def give_way(self, sequence: SequenceMemory | None = None) -> bool:
        """Last resort while nothing runs, or nothing but `sequence`: what is kept beyond execution
        must not keep the last request out.

        Pins go first, then the request's own retained states, then the cache, one kind a call.
        After all three there is room for whatever `never_fits` let pass. False: nothing was left.
        """
        if self.pinning.num_pins:
            self.unpin_all()
            return True
        self.supply += 1
        if sequence is not None and sequence.retained:
            for checkpoint in sequence.retained:
                self.states.release(checkpoint)
            sequence.retained = []
            return True
        return self.reset_cache() > 0

    def reset_cache(self) -> int:
        """Lose every cached entry that nobody references. Returns how many."""
        num_entries = len(self.block_index) + len(self.checkpoint_index)
        for pool in self.pools:
            for page in pool.queue:
                entry = pool.entries[page]
                if entry is not None:
                    self.lose(pool, page, entry, cause="reset")
        return num_entries - len(self.block_index) - len(self.checkpoint_index)

    def _give_up_superseded(self, sequence: SequenceMemory) -> None:
        checkpoint = sequence.superseded
        assert checkpoint is not None
        sequence.superseded = None
        if self.lifetime.keeps(checkpoint):
            sequence.retained.append(checkpoint)
            self.counters.retained_checkpoints += 1
            if self.observer is not None:
                self.observer.on_hold(checkpoint, "retained")
        else:
            self.states.release(checkpoint)
            self.supply += 1

    def _release(self, sequence: SequenceMemory) -> None:
        if self.sequences.pop(sequence.request_id, None) is not sequence:
            raise MemoryFault(f"request {sequence.request_id} is released but does not run")
        order = self.order
        # Last block first, so that a prefix loses its end before its start.
        self.attention_pool.release(
            reversed(sequence.blocks), hashed=order.hashed, plain=order.plain_attention
        )
        for checkpoint in sequence.states:
            self.states.release(checkpoint)
        sequence.blocks = []
        sequence.num_published_blocks = 0
        sequence.state = sequence.superseded = sequence.scratch = None
        sequence.state_index = -1
        sequence.retained = []
        sequence.quiet_end = 0
        self.branching.on_released(sequence)
        self.supply += 1

    def _withdraw(self, sequence: SequenceMemory, computed: int) -> None:
        """Take back what was published of a step that will not be computed."""
        start = computed // self.block_size
        entries = self.attention_pool.entries
        for page in sequence.blocks[start : sequence.num_published_blocks]:
            key = entries[page]
            if key is None or self.attention_pool.refs[page] > 1:
                continue  # a branch goes on from it, so it is computed
            entries[page] = None
            self.block_index.remove(key, page)
            self.counters.lost_blocks += 1
            if self.observer is not None:
                self.observer.on_lose("attention", key, "withdrawn")
        sequence.num_published_blocks = min(start, sequence.num_published_blocks)
        checkpoint = sequence.state
        if (
            checkpoint is not None
            and checkpoint.key is not None
            and checkpoint.tokens > computed
            and checkpoint.refs == 1
        ):
            self.lose_checkpoint(checkpoint, cause="withdrawn")

    def _pin_rightmost(self, sequence: SequenceMemory, computed: int) -> None:
        """Ask for a pin on the deepest resident checkpoint of the request's own history."""
        keys, resident = sequence.keys.checkpoints, self.checkpoint_index.oldest
        for index in range(computed // self.checkpoint_grid, 0, -1):
            checkpoint = resident.get(keys[index - 1])
            if checkpoint is None:
                continue
            if self.pinning.pin(sequence.request_id, checkpoint):
                self.counters.pinned_checkpoints += 1
                if self.observer is not None:
                    self.observer.on_hold(checkpoint, "pinned")
            return

    # -- loss --------------------------------------------------------------------------------

    def _on_reassign(self, pool: PagePool, pages: list[int]) -> None:
        """Queued pages get a new owner: what they cached is lost first."""
        entries, lost_blocks = pool.entries, 0
        oldest, duplicates = self.block_index.oldest, self.block_index.duplicates
        for page in pages:
            entry = entries[page]
            if entry is None:
                continue
            kind = type(entry)
            if kind is Checkpoint:
                self.lose_checkpoint(entry, cause="reassigned")
            elif kind is Slab:
                self.counters.reclaimed_slabs += 1
                for checkpoint in list(entry.checkpoints()):
                    self.lose_checkpoint(checkpoint, cause="slab")
            else:
                entries[page] = None
                if entry in duplicates:
                    self.block_index.remove(entry, page)
                else:
                    del oldest[entry]
                lost_blocks += 1
                if self.observer is not None:
                    self.observer.on_lose("attention", entry, "reassigned")
        self.counters.lost_blocks += lost_blocks

    def lose(self, pool: PagePool, page: int, entry: Any, *, cause: LossCause) -> None:
        """Take the key away from what a page caches."""
        if type(entry) is Checkpoint:
            self.lose_checkpoint(entry, cause=cause)
        elif type(entry) is not Slab:  # a slab goes with its last checkpoint
            self.block_index.remove(entry, page)
            pool.entries[page] = None
            self.counters.lost_blocks += 1
            if self.observer is not None:
                self.observer.on_lose("attention", entry, cause)

    def lose_checkpoint(self, checkpoint: Checkpoint, *, cause: LossCause) -> None:
        """Take a checkpoint's key away; who holds it keeps its pages."""
        key = checkpoint.key
        assert key is not None
        assert checkpoint.refs == 0 or cause in ("withdrawn", "leaf")
        self.checkpoint_index.remove(key, checkpoint)
        self.states.forget(checkpoint)
        self.counters.lost_checkpoints += 1
        if self.observer is not None:
            self.observer.on_lose("checkpoint", key, cause)

    @property
    def num_losses(self) -> int:
        """Cached entries lost so far."""
        return self.counters.lost_checkpoints + self.counters.lost_blocks

    # -- what it looks like ------------------------------------------------------------------

    def describe(self) -> str:
        """One line a pool, for reports of a stalled run."""
        lines = []
        for pool in self.pools:
            cached = sum(pool.entries[page] is not None for page in pool.queue)
            lines.append(
                f"pool {pool.spec.name}: {pool.spec.num_usable} pages, {pool.num_free} free "
                f"({cached} of them cached), {pool.spec.num_usable - pool.num_free} referenced"
            )
        lines.append(f"pins: {self.pinning.num_pins}")
        return "\n".join(lines)

    def check_integrity(self) -> None:
        """Recount references, entries and slots from the live sequences and the indexes."""
        for pool in self.pools:
            pool.check_integrity()
        self.states.check_integrity()
        block_refs = [0] * self.attention_pool.spec.num_pages
        state_refs: dict[int, int] = {}
        held: dict[int, Checkpoint] = {}
        holders = [sequence.states for sequence in self.sequences.values()]
        for sequence in self.sequences.values():
            self._check_quiet(sequence)
            for page in sequence.blocks:
                block_refs[page] += 1
        for page in self.branching.copies.held_pages():
            block_refs[page] += 1
        holders.append(tuple(self.branching.copies.held_states()))
        for checkpoint in (*sum(holders, ()), *self.pinning.pins().values()):
            held[id(checkpoint)] = checkpoint
            state_refs[id(checkpoint)] = state_refs.get(id(checkpoint), 0) + 1
        page_owner: dict[tuple[int, int], Any] = {}
        for checkpoint in held.values():
            assert checkpoint.refs == state_refs[id(checkpoint)]
            for page in checkpoint.pages:
                assert page_owner.setdefault((self._recurrent, page), checkpoint) is checkpoint
                assert self.states.pool.refs[page] == 1
        for _, checkpoint in self.checkpoint_index:
            assert checkpoint.refs == state_refs.get(id(checkpoint), 0)
            for page in checkpoint.pages:
                assert self.states.pool.entries[page] is checkpoint
                assert page_owner.setdefault((self._recurrent, page), checkpoint) is checkpoint
        for key, page in self.block_index:
            assert self.attention_pool.entries[page] == key
        for page, count in enumerate(block_refs):
            if count:
                assert self.attention_pool.refs[page] == count
                assert (self._attention, page) not in page_owner
        self._check_entries()
        self.branching.check_integrity()

    def _check_quiet(self, sequence: SequenceMemory) -> None:
        """Until `quiet_end` there is no block or state to take, to publish or to give up."""
        assert sequence.quiet_end == 0 or (
            sequence.superseded is None
            and sequence.quiet_end <= len(sequence.blocks) * self.block_size
            and sequence.quiet_end < (sequence.num_published_blocks + 1) * self.block_size
            and sequence.quiet_end < (sequence.state_index + 1) * self.checkpoint_grid
        )

    def _check_entries(self) -> None:
        """Every entry that a page names is in an index; every reference has an owner."""
        blocks = {(key, page) for key, page in self.block_index}
        checkpoints = {id(checkpoint) for _, checkpoint in self.checkpoint_index}
        for pool in self.pools:
            for page, entry in enumerate(pool.entries):
                if type(entry) is Checkpoint:
                    assert id(entry) in checkpoints and page in entry.pages
                elif entry is not None and type(entry) is not Slab:
                    assert (entry, page) in blocks
        references = sum(len(sequence.blocks) for sequence in self.sequences.values())
        references += len(list(self.branching.copies.held_pages()))
        states = {
            id(state): state for sequence in self.sequences.values() for state in sequence.states
        }
        states |= {id(state): state for state in self.pinning.pins().values()}
        states |= {id(state): state for state in self.branching.copies.held_states()}
        references += sum(len(state.pages) for state in states.values())
        slabs = {state.slab.page for state in states.values() if state.slab is not None}
        assert references + len(slabs) == sum(sum(pool.refs) for pool in self.pools)


def pool_usage(pools: Sequence[PagePool]) -> float:
    """Referenced bytes over usable bytes."""
    used = sum((p.spec.num_usable - p.num_free) * p.spec.page_bytes for p in pools)
    return used / sum(p.spec.usable_bytes for p in pools)
