"""Slabs: one page that holds the convolution states of many checkpoints (S2, Section 3.4).

    slot:  free | active (its state is referenced) | cached (published, not referenced)
    slab:  active  .. some slot is active; the page is referenced
           idle ..... only cached and free slots; the page is queued (`policies.eviction`)
           gone ..... no slot in use; the page is an ordinary page again

Reassigning an idle slab's page invalidates every checkpoint with a slot in it first. An idle slab
may also be woken by a new state, which takes its page out of the queue.
"""

import heapq

from hsexp.memory.checkpoint import Checkpoint, Slab, StateStore
from hsexp.memory.faults import MemoryFault
from hsexp.memory.policies.eviction.queue import PageKind
from hsexp.memory.pool import PagePool


class SlabStateStore(StateStore):
    """SSM members in pages, convolution states in slots of shared slabs."""

    def __init__(self, pool: PagePool, *, pages_per_state: int, num_slots: int) -> None:
        super().__init__(pool, pages_per_state=pages_per_state)
        self.num_slots = num_slots
        self.slabs: dict[int, Slab] = {}
        """Slabs by page."""
        self.free_active_slots = 0
        """Free slots of active slabs; further states use them without taking a page."""
        self._num_used = 0
        self._serial = 0
        # Heaps of slabs that may have a free slot, by creation order. An entry is checked when it
        # reaches the top, so a slab that changed in between costs nothing until then.
        self._active: list[Slab] = []
        self._idle: list[Slab] = []

    def pages_needed(self, num_states: int) -> int:
        missing = num_states - self.free_active_slots
        slab_pages = -(-missing // self.num_slots) if missing > 0 else 0
        return num_states * self.pages_per_state + slab_pages

    def pages_alone(self, num_states: int) -> int:
        return num_states * self.pages_per_state + -(-num_states // self.num_slots)

    def pages_to_hold(self, checkpoint: Checkpoint) -> int:
        if checkpoint.refs:
            return 0
        assert checkpoint.slab is not None
        return len(checkpoint.pages) + (checkpoint.slab.num_active == 0)

    def allocate(self) -> Checkpoint:
        needed, free = self.pages_needed(1), self.pool.num_free
        if needed > free:
            raise MemoryFault(
                f"pool {self.pool.spec.name}: a state needs {needed} pages, {free} are free"
            )
        # Slot first: an idle slab that is reused leaves the queue before members are popped.
        slab = self._slab_with_free_slot()
        slot = (slab.free_mask & -slab.free_mask).bit_length() - 1
        slab.free_mask ^= 1 << slot
        if slab.num_active:
            self.free_active_slots -= 1
        else:
            self.free_active_slots += slab.num_free
        slab.num_active += 1
        self._enlist(slab)
        checkpoint = Checkpoint(self.pool.take(self.pages_per_state, "state"), slab=slab, slot=slot)
        slab.slots[slot] = checkpoint
        self._num_used += 1
        return checkpoint

    @property
    def slots_per_slab(self) -> int:
        return self.num_slots

    def num_slabs(self) -> int:
        return len(self.slabs)

    def slots(self) -> tuple[int, int]:
        return self._num_used, len(self.slabs) * self.num_slots

    def hold(self, checkpoint: Checkpoint) -> None:
        super().hold(checkpoint)
        if checkpoint.refs == 1:
            slab = checkpoint.slab
            assert slab is not None
            if slab.num_active == 0:
                self.pool.hold((slab.page,))
                self.free_active_slots += slab.num_free
            slab.num_active += 1
            self._enlist(slab)

    def release(self, checkpoint: Checkpoint) -> None:
        super().release(checkpoint)
        if checkpoint.refs:
            return
        slab = checkpoint.slab
        assert slab is not None
        slab.num_active -= 1
        if checkpoint.key is None:
            self._free_slot(checkpoint, active=True)
        if slab.num_active:
            self._enlist(slab)
            return
        self.free_active_slots -= slab.num_free
        if slab.num_used:
            self._enlist(slab)
        else:
            self._dissolve(slab)
        kind: PageKind = "slab_of_plain" if checkpoint.key is None else "slab_of_cached"
        self.pool.release((slab.page,), kind)

    def forget(self, checkpoint: Checkpoint) -> None:
        super().forget(checkpoint)
        slab = checkpoint.slab
        assert slab is not None
        if checkpoint.refs == 0:
            self._free_slot(checkpoint, active=slab.num_active > 0)
            if slab.num_used:
                self._enlist(slab)
            else:
                self._dissolve(slab)

    def _slab_with_free_slot(self) -> Slab:
        """The first active slab with room, else the first idle one, else a new page."""
        active = self._active
        while active:
            slab = active[0]
            if slab.num_active and slab.free_mask:
                return slab
            heapq.heappop(active).heap_active = False
        idle = self._idle
        while idle:
            slab = idle[0]
            if self.slabs.get(slab.page) is slab and not slab.num_active and slab.free_mask:
                self.pool.hold((slab.page,))
                return slab
            heapq.heappop(idle).heap_idle = False
        page = self.pool.take(1, "slab")[0]
        self._serial += 1
        slab = Slab(page, self._serial, self.num_slots)
        self.slabs[page] = slab
        self.pool.entries[page] = slab
        return slab

    def _enlist(self, slab: Slab) -> None:
        if not slab.free_mask:
            return
        if slab.num_active:
            if not slab.heap_active:
                slab.heap_active = True
                heapq.heappush(self._active, slab)
        elif not slab.heap_idle:
            slab.heap_idle = True
            heapq.heappush(self._idle, slab)

    def _free_slot(self, checkpoint: Checkpoint, *, active: bool) -> None:
        """Free a state's slot.

        Args:
            active: the slab counted as active, so its free slots are in the total.
        """
        slab = checkpoint.slab
        assert slab is not None
        slab.slots[checkpoint.slot] = None
        self._num_used -= 1
        slab.free_mask |= 1 << checkpoint.slot
        if active:
            self.free_active_slots += 1

    def _dissolve(self, slab: Slab) -> None:
        del self.slabs[slab.page]
        self.pool.entries[slab.page] = None

    def check_integrity(self) -> None:
        free_active_slots = 0
        for page, slab in self.slabs.items():
            assert slab.page == page and self.pool.entries[page] is slab
            used = sum(1 << i for i, state in enumerate(slab.slots) if state is not None)
            assert used | slab.free_mask == (1 << slab.num_slots) - 1 and not used & slab.free_mask
            assert slab.num_active == sum(state.refs > 0 for state in slab.checkpoints())
            assert (slab.num_active > 0) == (self.pool.refs[page] == 1)
            assert used, f"{slab} is empty but not dissolved"
            assert all(state.refs or state.key is not None for state in slab.checkpoints())
            if slab.num_active:
                free_active_slots += slab.num_free
                assert slab.heap_active or not slab.free_mask
            else:
                assert slab.heap_idle or not slab.free_mask
        assert free_active_slots == self.free_active_slots
        assert self._num_used == sum(slab.num_used for slab in self.slabs.values())
