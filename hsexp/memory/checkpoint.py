"""A checkpoint: one recurrent + convolution state, valid only whole, owned by reference.

    plain ........ written by its holder, no key; ends with its last reference
    published .... has a key: other requests may reuse it, held or not
    lost ......... one of its pages was reassigned; key and pages are gone

An organization keeps such states in a `StateStore`; stores differ in the number of pages of a state
and in the place of its convolution state.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator

from hsexp.memory.faults import MemoryFault
from hsexp.memory.pool import PagePool

NO_LINE = -1
"""Convolution line of a state whose convolution state is in its own pages."""


class Checkpoint:
    """A state in `pages` (the first is its representative), and in S2 a slot of a slab."""

    __slots__ = ("awaits_copy", "key", "pages", "published_step", "refs", "slab", "slot",
                 "tokens")  # fmt: skip

    def __init__(
        self, pages: list[int], *, slab: "Slab | None" = None, slot: int = NO_LINE
    ) -> None:
        self.pages = pages
        self.slab = slab
        self.slot = slot
        self.refs = 1
        self.key: Hashable | None = None
        self.tokens = 0
        """Tokens that the state covers, once published."""
        self.published_step = -1
        self.awaits_copy = False
        """A copy due before the coming step writes it first."""

    def __repr__(self) -> str:
        return f"Checkpoint(pages={self.pages}, key={self.key}, refs={self.refs})"

    @property
    def line(self) -> int:
        """Kernel-facing convolution line 16 p + s (Eq. X2), or NO_LINE."""
        if self.slab is None:
            return NO_LINE
        return self.slab.page * self.slab.num_slots + self.slot


class Slab:
    """One page of convolution slots (S2, `hsexp.memory.slab`); `serial` is its creation order."""

    __slots__ = ("free_mask", "heap_active", "heap_idle", "num_active", "num_slots", "page",
                 "serial", "slots")  # fmt: skip

    def __init__(self, page: int, serial: int, num_slots: int) -> None:
        self.page = page
        self.serial = serial
        self.num_slots = num_slots
        self.slots: list[Checkpoint | None] = [None] * num_slots
        self.free_mask = (1 << num_slots) - 1
        self.num_active = 0
        self.heap_active = False
        self.heap_idle = False

    def __lt__(self, other: "Slab") -> bool:
        return self.serial < other.serial

    def __hash__(self) -> int:  # a compiled class that can be compared has none otherwise
        return self.serial

    def __repr__(self) -> str:
        return f"Slab(page={self.page}, active={self.num_active}, used={self.num_used})"

    @property
    def num_free(self) -> int:
        return self.free_mask.bit_count()

    @property
    def num_used(self) -> int:
        return self.num_slots - self.free_mask.bit_count()

    def checkpoints(self) -> Iterator[Checkpoint]:
        """The states that have a slot here."""
        return (checkpoint for checkpoint in self.slots if checkpoint is not None)


class StateStore(ABC):
    """Keeps recurrent and convolution states. All operations are whole-state."""

    def __init__(self, pool: PagePool, *, pages_per_state: int) -> None:
        self.pool = pool
        self.pages_per_state = pages_per_state

    @abstractmethod
    def pages_needed(self, num_states: int) -> int:
        """Free pages that allocating `num_states` states would use up now."""

    @abstractmethod
    def pages_alone(self, num_states: int) -> int:
        """Pages that `num_states` states take in an otherwise empty pool."""

    @abstractmethod
    def allocate(self) -> Checkpoint:
        """A new plain state with one reference. Raises MemoryFault when it does not fit."""

    def pages_to_hold(self, checkpoint: Checkpoint) -> int:
        """Free pages that a further reference would use up."""
        return 0 if checkpoint.refs else len(checkpoint.pages)

    def hold(self, checkpoint: Checkpoint) -> None:
        """Add a reference; the first one takes the pages out of the queue."""
        if checkpoint.refs == 0:
            if checkpoint.key is None:
                raise MemoryFault(f"{checkpoint} is lost, its pages may have another owner")
            self.pool.hold(checkpoint.pages)
        checkpoint.refs += 1

    def release(self, checkpoint: Checkpoint) -> None:
        """Drop a reference; after the last one a published state stays cached."""
        if checkpoint.refs < 1:
            raise MemoryFault(f"{checkpoint} is released but not held")
        checkpoint.refs -= 1
        if checkpoint.refs:
            return
        self.pool.release(checkpoint.pages, "state")

    free_active_slots = 0
    """Free convolution slots that further states use without taking a page."""

    @property
    def slots_per_slab(self) -> int | None:
        """Convolution slots of a slab; None for a store without slabs."""
        return None

    def num_slabs(self) -> int | None:
        """Number of slabs; None for a store without slabs."""
        return None

    def slots(self) -> tuple[int, int]:
        """Convolution slots in use, and slots of all slabs; (0, 0) for a store without slabs."""
        return 0, 0

    def publish(self, checkpoint: Checkpoint, key: Hashable) -> None:
        """Mark every page as holding this state under `key`."""
        checkpoint.key = key
        for page in checkpoint.pages:
            self.pool.entries[page] = checkpoint

    def forget(self, checkpoint: Checkpoint) -> None:
        """Remove the key; queued pages keep their places, as plain pages."""
        checkpoint.key = None
        for page in checkpoint.pages:
            self.pool.entries[page] = None

    @abstractmethod
    def check_integrity(self) -> None:
        """Recount the state that the store keeps in addition to its pool."""


class PagedStateStore(StateStore):
    """States in pages of their own: one page (S0, D0), or SSM members and one conv page (S1)."""

    def pages_needed(self, num_states: int) -> int:
        return num_states * self.pages_per_state

    def pages_alone(self, num_states: int) -> int:
        return num_states * self.pages_per_state

    def allocate(self) -> Checkpoint:
        return Checkpoint(self.pool.take(self.pages_per_state, "state"))

    def check_integrity(self) -> None:
        assert self.pages_per_state > 0  # the store has no other state
