"""The paper's order: pages by time of release, each joining the end that its kind decides.

Which end is a setting of the organization (`release_order`), inferred with it from the paper.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from hsexp.config.base import Config
from hsexp.memory.policies.eviction.queue import (
    EvictionOrder,
    EvictionQueue,
    EvictionSettings,
    PageKind,
    TwoEndedQueue,
)


class ReleaseOrder(Config):
    """Which end of the free queue a released page joins; pages are reassigned from the head."""

    hashed: Literal["head", "tail"]
    """A page with a cache key."""
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


class PaperEviction(EvictionSettings):
    """The order of the organization, which is a `ReleaseOrder`; it has no settings of its own."""

    kind: Literal["paper"]

    def order(self, own: EvictionOrder) -> EvictionOrder:
        return own


class ReleaseQueue(TwoEndedQueue):
    """Pages by time of release: each joins the head or the tail, according to `ReleaseOrder`."""

    def __init__(self, order: ReleaseOrder, pages: Iterable[int]) -> None:
        super().__init__(pages)
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
