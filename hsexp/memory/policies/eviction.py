"""Eviction: in which order free pages get a new owner.

    pool      which pages are referenced, which are free, and what each one caches
    queue     the free ones, cached or not, the next to go first

A pool tells its queue which pages become free and what kind of page they were; the queue decides
where they stand. Another order is another queue, with its settings, in a file of its own.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol

from hsexp.config.base import Config

PageKind = Literal["attention", "representative", "member", "slab_of_cached", "slab_of_plain"]
"""A page of an attention block; the first page of a recurrent state, or another one; a slab that
became idle with a state that stays in the cache, or with one that does not."""


class EvictionQueue(ABC):
    """The free pages of one pool."""

    @abstractmethod
    def put(self, pages: Sequence[int], kind: PageKind, entries: Sequence[Any]) -> None:
        """These pages became free, in this order.

        Args:
            entries: what each page of the pool caches, or None.
        """

    @abstractmethod
    def remove(self, pages: Sequence[int]) -> None:
        """These free pages are referenced again, with what they cache."""

    @abstractmethod
    def pop(self, count: int) -> list[int]:
        """Take the next pages to go. There are as many."""

    @abstractmethod
    def __iter__(self) -> Iterator[int]:
        """The next page to go first."""


class EvictionOrder(Protocol):
    """Settings of an order."""

    def build(self, pages: Iterable[int]) -> EvictionQueue:
        """A queue of these pages, which never cached anything, in this order."""
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
    """By time of release: a page joins the head or the tail, as `ReleaseOrder` says."""

    def __init__(self, order: ReleaseOrder, pages: Iterable[int]) -> None:
        self.pages: OrderedDict[int, None] = OrderedDict.fromkeys(pages)
        like_state = order.idle_slab == "like_state"
        ends = {
            "attention": (order.hashed, order.plain_attention),
            "representative": (order.hashed, order.plain_representative),
            "member": (order.hashed, order.plain_members),
            "slab_of_cached": (order.hashed if like_state else order.idle_slab,) * 2,
            "slab_of_plain": (order.plain_representative if like_state else order.idle_slab,) * 2,
        }
        self._goes_first = {
            kind: (hashed == "head", plain == "head") for kind, (hashed, plain) in ends.items()
        }
        """By kind: whether a page joins the head that caches something, and one that does not."""

    def put(self, pages: Sequence[int], kind: PageKind, entries: Sequence[Any]) -> None:
        queue, (hashed_first, plain_first) = self.pages, self._goes_first[kind]
        for page in pages:
            queue[page] = None
            if plain_first if entries[page] is None else hashed_first:
                queue.move_to_end(page, last=False)

    def remove(self, pages: Sequence[int]) -> None:
        for page in pages:
            del self.pages[page]

    def pop(self, count: int) -> list[int]:
        popitem = self.pages.popitem
        return [popitem(False)[0] for _ in range(count)]

    def __iter__(self) -> Iterator[int]:
        return iter(self.pages)
