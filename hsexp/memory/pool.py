"""A pool of equal pages: their references, and the queue of those free to be reassigned.

    page 0 ............ null page, never handed out
    refs[p] > 0 ....... referenced: an execution (or a pin) may touch it; not in the queue
    refs[p] == 0 ...... in the queue, in order of reassignment; it may still hold a cached entry

"Free" counts every queued page, cached or not. Before reassigned pages are handed out,
`on_reassign` drops their cached entries, so that nothing is readable under an old key.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import not_
from typing import Any, Literal, Protocol

from hsexp.memory.faults import MemoryFault
from hsexp.memory.policies.eviction.queue import EvictionOrder, PageKind


@dataclass(frozen=True, kw_only=True)
class PoolSpec:
    """Size of one pool; `num_pages` includes the null page."""

    name: str
    num_pages: int
    page_bytes: int

    @property
    def num_usable(self) -> int:
        return self.num_pages - 1

    @property
    def usable_bytes(self) -> int:
        return self.num_usable * self.page_bytes

    @property
    def total_bytes(self) -> int:
        return self.num_pages * self.page_bytes


PageUse = Literal["attention", "tail", "state", "slab"]
"""What a page is taken for: a block of attention, a slab of attention blocks (S3), a state or part
of one, or a slab of convolution slots (S2)."""


class PoolWatch(Protocol):
    """Sees every reference that is added or dropped."""

    def on_take(self, pages: Sequence[int], use: PageUse) -> None: ...

    def on_hold(self, pages: Sequence[int]) -> None: ...

    def on_free(self, pages: Sequence[int]) -> None: ...


class PagePool:
    """Reference counts, cached entries and the free queue of one pool."""

    __slots__ = ("_queue", "entries", "num_free", "on_reassign", "refs", "spec", "watch")

    def __init__(self, spec: PoolSpec, order: EvictionOrder) -> None:
        if spec.num_pages < 2:
            raise ValueError(f"pool {spec.name} needs at least 2 pages, got {spec.num_pages}")
        self.spec = spec
        self.refs = [0] * spec.num_pages
        self.entries: list[Any] = [None] * spec.num_pages
        """Cached entry of each page: an attention key, a Checkpoint, a Slab, or None."""
        self.num_free = spec.num_usable
        self._queue = order.build(range(1, spec.num_pages))
        self.on_reassign: Callable[[list[int]], None] = _own_no_entries
        """Called with the pages that get a new owner; it sets their entries to None. Losing an
        entry never moves a queued page."""
        self.watch: PoolWatch | None = None

    @property
    def num_cached(self) -> int:
        """Free pages that hold a cached entry; O(pages)."""
        entries = list(compress(self.entries, map(not_, self.refs)))
        return len(entries) - entries.count(None)

    def free_pages(self) -> Iterator[int]:
        """Free pages in order of reassignment."""
        return iter(self._queue)

    def take(self, count: int, use: PageUse = "attention") -> list[int]:
        """Reference the next `count` pages of the queue, all or none."""
        if not 0 <= count <= self.num_free:
            raise MemoryFault(
                f"pool {self.spec.name}: {count} pages asked for, {self.num_free} are free"
            )
        refs, pages = self.refs, self._queue.pop(count)
        self.num_free -= count
        self.on_reassign(pages)
        for page in pages:
            refs[page] = 1
        if self.watch is not None and pages:
            self.watch.on_take(pages, use)
        return pages

    def hold(self, pages: Iterable[int]) -> None:
        """Add a reference to each page; a queued page leaves the queue."""
        refs = self.refs
        queued: list[int] = []
        if self.watch is not None:
            pages = list(pages)
            self.watch.on_hold(pages)
        try:
            for page in pages:
                if page <= 0:
                    raise MemoryFault(f"pool {self.spec.name}: page {page} cannot be held")
                if refs[page] == 0:
                    queued.append(page)
                refs[page] += 1
        finally:  # also those before a fault
            if queued:
                self._queue.remove(queued)
                self.num_free -= len(queued)

    def release(self, pages: Iterable[int], kind: PageKind) -> None:
        """Drop a reference from each page in the given order; the last one queues the page."""
        refs = self.refs
        freed: list[int] = []
        if self.watch is not None:
            pages = list(pages)
            self.watch.on_free(pages)
        try:
            for page in pages:
                count = refs[page]
                if count < 1 or page < 1:  # a negative one would count from the end
                    raise MemoryFault(f"pool {self.spec.name}: page {page} is freed but not held")
                refs[page] = count - 1
                if count == 1:
                    freed.append(page)
        finally:  # also those before a fault
            if freed:
                self._queue.put(freed, kind, self.entries)
                self.num_free += len(freed)

    def count_unreferenced(self, pages: Iterable[int]) -> int:
        """How many of the pages are queued, so that holding them would use up free pages."""
        return list(map(self.refs.__getitem__, pages)).count(0)

    def check_integrity(self) -> None:
        """Every page is the null page, referenced, or queued: exactly one of the three."""
        queued = list(self._queue)
        assert len(queued) == len(set(queued)) == self.num_free
        assert 0 not in queued and self.refs[0] == 0 and self.entries[0] is None
        assert all(self.refs[page] == 0 for page in queued)
        assert min(self.refs) >= 0
        assert self.refs.count(0) == self.num_free + 1


def floor_of(fraction: float, count: int) -> int:
    """floor(fraction * count), exact for decimal fractions (0.29 of 100 is 29, not 28)."""
    return math.floor(round(fraction * count, 9))


def _own_no_entries(pages: list[int]) -> None:
    """Default of `on_reassign`: a pool without a cache has no entries."""


def pool_usage(pools: Sequence[PagePool]) -> float:
    """Referenced bytes over usable bytes."""
    used = sum((p.spec.num_usable - p.num_free) * p.spec.page_bytes for p in pools)
    return used / sum(p.spec.usable_bytes for p in pools)
