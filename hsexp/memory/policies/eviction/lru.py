"""Least recently used: a page that caches nothing goes first, then the one released longest ago.

    head   pages without an entry | cached pages, by the time of their last release   tail

A page is in use from its reference to its release, so its last release is its last use. The order
is one of pages: all attention blocks, states and slabs stand in the same line. A slab counts as
used when its last active slot is released, so it is never older than a state in it, and no cached
state is lost because its slab's page is reassigned.

Within one release the pages keep the order in which they are released: a request's last block is
older than its first. A page that loses its entry while it is free keeps its place. Where a state
goes, that makes no difference: it is lost as a whole with the first of its pages, and the others
are the next in line.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from hsexp.memory.policies.eviction.queue import (
    EvictionOrder,
    EvictionQueue,
    EvictionSettings,
    PageKind,
    TwoEndedQueue,
)


class LruEviction(EvictionSettings):
    """Least recently used, in every organization; it has no settings."""

    kind: Literal["lru"]

    def order(self, own: EvictionOrder) -> EvictionOrder:
        return self

    def build(self, pages: Iterable[int]) -> EvictionQueue:
        return LeastRecentlyUsed(pages)


class LeastRecentlyUsed(TwoEndedQueue):
    """Released pages join the tail, or the head if they cache nothing."""

    def put(self, pages: Sequence[int], kind: PageKind, entries: Sequence[Any]) -> None:
        queue = self.pages
        for page in pages:
            queue[page] = None
            if entries[page] is None:
                queue.move_to_end(page, last=False)
