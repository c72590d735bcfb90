"""Eviction: the order in which free pages get a new owner.

    pool      which pages are referenced, which are free, and what each one caches
    queue     the free ones, cached or not, the next to be reassigned first

A pool passes its queue the pages that become free and their kind; the queue decides their order.
Another order is another queue, with its settings, in a file of its own.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol

from hsexp.config.base import Config

PageKind = Literal["attention", "state", "slab_of_cached", "slab_of_plain"]
"""Pages of attention blocks; the pages of one recurrent state, its representative first; a slab
that became idle with a state that stays in the cache, or with one that does not."""


class EvictionQueue(ABC):
    """The free pages of one pool."""

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
    """Settings of an order of eviction."""

    def build(self, pages: Iterable[int]) -> EvictionQueue:
        """A queue of these pages, in this order; none of them has a cached entry."""
        ...


class ReleaseOrder(Config):
    """Which end of the free queue a released page joins; pages are reassigned from the head."""

    hashed: Literal["head", "tail"]
    """An attention page or checkpoint that stays in the cache."""
    plain_attention: Literal["head", "tail"]
    """An attention page without a cache key."""
    plain_representative: Literal["head", "tail"]
    """The first page of a recurrent state without a cache key."""
    plain_members: Literal["head", "tail"]
    """The other pages of a recurrent state without a cache key."""
    idle_slab: Literal["head", "tail", "like_state"]
    """A slab whose slots are all cached or free (S2 only); like_state: with the first page of the
    state whose release made it idle."""

    def build(self, pages: Iterable[int]) -> EvictionQueue:
        return ReleaseQueue(self, pages)


class ReleaseQueue(EvictionQueue):
    """Pages by time of release: each joins the head or the tail, according to `ReleaseOrder`."""

    def __init__(self, order: ReleaseOrder, pages: Iterable[int]) -> None:
        self.pages: OrderedDict[int, None] = OrderedDict.fromkeys(pages)
        like_state = order.idle_slab == "like_state"
        ends = {
            "attention": (order.hashed, order.plain_attention, order.plain_attention),
            "state": (order.hashed, order.plain_representative, order.plain_members),
            "slab_of_cached": (order.hashed if like_state else order.idle_slab,) * 3,
            "slab_of_plain": (order.plain_representative if like_state else order.idle_slab,) * 3,
        }
        self._joins_head = {
            kind: (hashed == "head", plain == "head", others == "head")
            for kind, (hashed, plain, others) in ends.items()
        }
        """By kind: whether the first page joins the head with a cached entry, and without one;
        and whether the other pages do without one."""

    def put(self, pages: Sequence[int], kind: PageKind, entries: Sequence[Any]) -> None:
        queue, (hashed, plain, others) = self.pages, self._joins_head[kind]
        for page in pages:
            queue[page] = None
            if plain if entries[page] is None else hashed:
                queue.move_to_end(page, last=False)
            plain = others

    def remove(self, pages: Sequence[int]) -> None:
        for page in pages:
            del self.pages[page]

    def pop(self, count: int) -> list[int]:
        popitem = self.pages.popitem
        return [popitem(False)[0] for _ in range(count)]

    def __iter__(self) -> Iterator[int]:
        return iter(self.pages)
