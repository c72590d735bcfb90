"""The seam: a pool passes its queue the pages that become free; the queue decides their order."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal, Protocol

from hsexp.config.fields import Choice

PageKind = Literal["attention", "state", "slab_of_cached", "slab_of_plain"]
"""Pages of attention blocks; the pages of one recurrent state, its representative first; a slab
that became idle with a state that stays in the cache, or with one that does not."""


class EvictionQueue(ABC):
    """The free pages of one pool, cached or not. Admission counts every one of them as free, so a
    queue orders its pages and refuses none."""

    @abstractmethod
    def put(self, pages: Sequence[int], kind: PageKind, entries: Sequence[Any]) -> None:
        """Add pages that became free, in this order.

        Args:
            entries: cached entry of each page of the pool, or None.
        """

    @abstractmethod
    def remove(self, pages: Sequence[int]) -> None:
        """Remove pages that are referenced again; they keep their cached entries."""

    @abstractmethod
    def pop(self, count: int) -> list[int]:
        """Remove and return the next `count` pages. The queue has at least as many."""

    @abstractmethod
    def __iter__(self) -> Iterator[int]:
        """The pages in order of reassignment."""


class EvictionOrder(Protocol):
    """Makes the queues of one order."""

    def build(self, pages: Iterable[int]) -> EvictionQueue:
        """A queue of these pages, in this order; none of them has a cached entry."""
        ...


class EvictionSettings(Choice):
    """Settings of an order of eviction."""

    knows_prefixes: ClassVar[bool] = False
    """Whether the memory follows its prefixes for this order (`hsexp.memory.prefixes`)."""

    @abstractmethod
    def order(self, own: EvictionOrder) -> EvictionOrder:
        """The order of one memory.

        Args:
            own: the order that belongs to the memory's organization.
        """


class TwoEndedQueue(EvictionQueue):
    """Pages in one line. A page joins one of its ends and keeps its place there until it is
    reassigned from the head, or referenced again. A subclass chooses the end (`put`)."""

    def __init__(self, pages: Iterable[int]) -> None:
        self.pages: OrderedDict[int, None] = OrderedDict.fromkeys(pages)

    def remove(self, pages: Sequence[int]) -> None:
        for page in pages:
            del self.pages[page]

    def pop(self, count: int) -> list[int]:
        popitem = self.pages.popitem
        return [popitem(False)[0] for _ in range(count)]

    def __iter__(self) -> Iterator[int]:
        return iter(self.pages)
