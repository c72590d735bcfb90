"""A pool of equal pages: who references them, and the queue from which they are reassigned.

    page 0 ............ null page, never handed out
    refs[p] > 0 ....... referenced: an execution (or a pin) may touch it; not in the queue
    refs[p] == 0 ...... in the queue, head first to go; it may still hold a cached entry

"Free" counts every queued page, cached or not. Before reassigned pages are handed out, the owner
of the cached entries is told (`on_reassign`), so nothing is readable under an old key.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

End = Literal["head", "tail"]


class MemoryFault(RuntimeError):
    """An ownership rule was broken: a page freed twice, or asked for beyond what is free."""


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


class PagePool:
    """Reference counts, cached entries and the free queue of one pool."""

    __slots__ = ("entries", "on_reassign", "queue", "refs", "spec")

    def __init__(self, spec: PoolSpec) -> None:
        if spec.num_pages < 2:
            raise ValueError(f"pool {spec.name} needs at least 2 pages, got {spec.num_pages}")
        self.spec = spec
        self.refs = [0] * spec.num_pages
        self.entries: list[Any] = [None] * spec.num_pages
        """What is cached in a page: an attention key, a Checkpoint, a Slab, or None."""
        self.queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, spec.num_pages))
        self.on_reassign: Callable[[list[int]], None] = _own_no_entries
        """Told which pages get a new owner; it leaves their entries None. Losing an entry never
        moves a queued page."""

    @property
    def num_free(self) -> int:
        return len(self.queue)

    def take(self, count: int) -> list[int]:
        """Reference `count` pages from the head of the queue, all or none."""
        queue = self.queue
        if not 0 <= count <= len(queue):
            raise MemoryFault(
                f"pool {self.spec.name}: {count} pages asked for, {len(queue)} are free"
            )
        popitem, refs = queue.popitem, self.refs
        pages = [popitem(False)[0] for _ in range(count)]
        self.on_reassign(pages)
        for page in pages:
            refs[page] = 1
        return pages

    def hold(self, pages: Iterable[int]) -> None:
        """Add a reference to each page; a queued page leaves the queue."""
        refs, queue = self.refs, self.queue
        for page in pages:
            if page <= 0:
                raise MemoryFault(f"pool {self.spec.name}: {page} is no page to hold")
            if refs[page] == 0:
                del queue[page]
            refs[page] += 1

    def release(self, pages: Iterable[int], *, hashed: End, plain: End) -> None:
        """Drop a reference from each page in the given order.

        The last one queues the page, at the `hashed` end if it holds a cached entry, else at the
        `plain` end.
        """
        refs, queue, entries = self.refs, self.queue, self.entries
        move_to_end = queue.move_to_end
        hashed_first, plain_first = hashed == "head", plain == "head"
        for page in pages:
            count = refs[page]
            if count < 1 or page < 1:  # a negative one would count from the end
                raise MemoryFault(f"pool {self.spec.name}: page {page} is freed but not held")
            refs[page] = count - 1
            if count == 1:
                queue[page] = None
                if plain_first if entries[page] is None else hashed_first:
                    move_to_end(page, last=False)

    def count_unreferenced(self, pages: Iterable[int]) -> int:
        """How many of the pages are queued, so that holding them would use up free pages."""
        return list(map(self.refs.__getitem__, pages)).count(0)

    def check_integrity(self) -> None:
        """Every page is the null page, referenced, or queued: exactly one of the three."""
        referenced = sum(count > 0 for count in self.refs)
        assert 0 not in self.queue and self.refs[0] == 0 and self.entries[0] is None
        assert all(self.refs[page] == 0 for page in self.queue)
        assert min(self.refs) >= 0
        assert referenced + len(self.queue) + 1 == self.spec.num_pages


def _own_no_entries(pages: list[int]) -> None:
    """A pool on its own caches nothing."""


def pool_usage(pools: Sequence[PagePool]) -> float:
    """Referenced bytes over usable bytes."""
    used = sum((p.spec.num_usable - p.num_free) * p.spec.page_bytes for p in pools)
    return used / sum(p.spec.usable_bytes for p in pools)
