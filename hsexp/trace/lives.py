"""Identities of pages: a page id is reused, and a page's life lasts from one take to the next."""

from typing import NamedTuple

from hsexp.trace.trace import Event, TracedMemory


class PageLife(NamedTuple):
    """A page between two takes. A state has its first page's."""

    pool: int
    page: int
    life: int
    """How often the page had been taken by then, from 1 on."""


class PageLives:
    """How often each page was taken so far."""

    def __init__(self, memory: TracedMemory) -> None:
        self._takes = [[0] * pool.num_pages for pool in memory.pools]
        self._recurrent = memory.recurrent_pool

    def take(self, event: Event) -> None:
        """Apply a `take`."""
        takes = self._takes[event.pool]
        for page in event.pages:
            takes[page] += 1

    def of(self, pool: int, page: int) -> PageLife:
        """The identity of a page now; its life is 0 if nobody has taken it yet."""
        return PageLife(pool, page, self._takes[pool][page])

    def of_entry(self, entry: str, page: int) -> PageLife:
        """That of the page of an attention block, or of a state."""
        return self.of(0 if entry == "attention" else self._recurrent, page)
