"""Ranked eviction: what no restart needs goes first, restart points go last and as a whole.

    plain        pages that cache nothing, duplicates, attention of unproven prefixes that no
                 restart needs
    useless      checkpoints that a deeper one of the same demand replaces, that are not found, or
                 whose attention is incomplete
    orphans      attention of proven prefixes that no restart needs, the deepest first
    unproven     restart points that no two requests asked for       } by the score of the order
    proven       the other ones                                      }
    the rest     attention of checkpoints in use, the deepest first

A restart point is one object: a checkpoint, and the attention that only it supports. When it is its
turn it is given up: the checkpoint becomes useless and its attention becomes orphans, in both pools
of D0. It is whole again if a request holds it before its pages are gone. A slab goes after the last
checkpoint that has a slot in it (S2).
"""

import heapq
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PositiveFloat

from hsexp.memory.policies.eviction.queue import (
    EvictionOrder,
    EvictionQueue,
    EvictionSettings,
    PageKind,
)
from hsexp.memory.prefixes import Block, Prefixes, Restart

if TYPE_CHECKING:
    from hsexp.memory.checkpoint import Checkpoint, Slab


class RankedEviction(EvictionSettings):
    """An order that ranks restart points by a score."""

    knows_prefixes: ClassVar[bool] = True
    half_life: PositiveFloat
    """Arrivals after which a request counts half in the demand for its prefix."""

    def order(self, own: EvictionOrder) -> "Ranking":
        return Ranking(self)

    @abstractmethod
    def scores(self, restarts: Sequence[Restart], prefixes: Prefixes) -> list[Any]:
        """A score of each restart point; the lowest one goes first."""


class Ranking(Prefixes):
    """The prefixes of one memory, and the ranks of their restarts."""

    def __init__(self, settings: RankedEviction) -> None:
        super().__init__(half_life=settings.half_life)
        self._settings = settings
        self._queues: list[RankedQueue] = []
        self._ranked_at = -1
        self._useless: list[Restart] = []
        self._points: list[Restart] = []
        self._num_unproven = 0

    def build(self, pages: Iterable[int]) -> EvictionQueue:
        queue = RankedQueue(self, pages)
        self.listeners.append(queue)
        self._queues.append(queue)
        return queue

    def num_plain(self) -> list[int]:
        """Free pages of each pool that nobody can need."""
        return [queue.num_plain for queue in self._queues]

    def useless(self) -> list[Restart]:
        """Free checkpoints that are no restart points, the first one to go first."""
        self._rank()
        return self._useless

    def points(self) -> list[Restart]:
        """Free restart points, the first one to go first."""
        self._rank()
        return self._points

    def proven(self) -> list[Restart]:
        """Those of the restart points that at least two requests asked for."""
        self._rank()
        return self._points[self._num_unproven :]

    def in_use(self) -> Iterator[Restart]:
        """Restart points whose checkpoints are held."""
        return (each for each in self.restarts.values() if each.supports and each.checkpoint.refs)

    def sacrifice_all(self, restart: Restart) -> None:
        """Give up a restart point, and those that nobody needs because of it."""
        while self.replaces_above(restart):
            assert restart.above is not None
            self.sacrifice(restart.above)
        self.sacrifice(restart)

    def replaces_above(self, restart: Restart) -> bool:
        """Whether whoever asked for the restart point above it also asked for this one."""
        above = restart.above
        return above is not None and self.demand.is_equal(restart.key, above.key)

    def _rank(self) -> None:
        if self._ranked_at == self.version:
            return
        self._ranked_at = self.version
        demand = self.demand
        replaced = {
            each.above
            for each in self.restarts.values()
            if each.above is not None and demand.is_equal(each.key, each.above.key)
        }
        useless, unproven, proven = [], [], []
        for restart in self.restarts.values():
            if restart.checkpoint.refs:
                continue
            if not restart.supports or restart in replaced:
                useless.append(restart)
            elif demand.is_proven(restart.key):
                proven.append(restart)
            else:
                unproven.append(restart)
        useless.sort(key=_last_used)
        self._useless = useless
        self._points = self._by_score(unproven) + self._by_score(proven)
        self._num_unproven = len(unproven)

    def _by_score(self, restarts: list[Restart]) -> list[Restart]:
        if len(restarts) < 2:
            return restarts
        scores = self._settings.scores(restarts, self)
        order = sorted(range(len(restarts)), key=lambda i: (scores[i], restarts[i].last_used))
        return [restarts[i] for i in order]


def _last_used(restart: Restart) -> int:
    return restart.last_used


class RankedQueue(EvictionQueue):
    """Free pages of one pool by what they cache. Where a page stands follows from its `Ranking`."""

    def __init__(self, ranking: Ranking, pages: Iterable[int]) -> None:
        self.ranking = ranking
        self._plain: dict[int, None] = dict.fromkeys(reversed(list(pages)))
        """Pages that nobody can need; the last one goes first."""
        self._blocks: dict[int, Block] = {}
        self._states: dict[int, Checkpoint] = {}
        self._slabs: dict[int, Slab] = {}
        self._unproven: list[tuple[int, int, int, Block]] = []
        """Heap of blocks without support; an entry is checked when it reaches the top."""
        self._orphans: list[tuple[int, int, int, Block]] = []
        """Those that were found to be of a proven prefix."""
        self._num_pushed = 0

    @property
    def num_plain(self) -> int:
        """Pages that go first, whatever the restart points are worth."""
        return len(self._plain)

    # -- the seam --------------------------------------------------------------------------------

    def put(self, pages: Sequence[int], kind: PageKind, entries: Sequence[Any]) -> None:
        if kind == "attention":
            known, blocks, plain = self.ranking.blocks, self._blocks, self._plain
            for page in pages:
                block = known.get(entries[page])
                if block is None or block.page != page:
                    plain[page] = None
                else:
                    blocks[page] = block
                    if not block.num_live:
                        self._push(block)
            self._tidy()
            return
        for page in pages:
            entry = entries[page]
            if entry is None:
                self._plain[page] = None
            elif kind == "state":
                self._states[page] = entry
            else:
                self._slabs[page] = entry
        if kind == "state":
            self._changed(entries[pages[0]])

    def remove(self, pages: Sequence[int]) -> None:
        for page in pages:
            if page in self._blocks:
                del self._blocks[page]
            elif page in self._states:
                self._changed(self._states.pop(page))
            elif page in self._slabs:
                del self._slabs[page]
            else:
                del self._plain[page]

    def pop(self, count: int) -> list[int]:
        plain = self._plain
        if len(plain) >= count:  # most of the time
            return [plain.popitem()[0] for _ in range(count)]
        popped: list[int] = []
        for page in self._next_pages():
            popped.append(page)
            if len(popped) == count:
                break
        return popped

    def __iter__(self) -> Iterator[int]:
        """Pops every page, and takes it all back."""
        plain, blocks, states, slabs = self._plain, self._blocks, self._states, self._slabs
        unproven, orphans = self._unproven, self._orphans
        self._plain, self._blocks = plain.copy(), blocks.copy()
        self._states, self._slabs = states.copy(), slabs.copy()
        self._unproven, self._orphans = unproven.copy(), orphans.copy()
        whole = [restart for restart in self.ranking.restarts.values() if not restart.broken]
        order = list(self._next_pages())
        self._plain, self._blocks, self._states, self._slabs = plain, blocks, states, slabs
        self._unproven, self._orphans = unproven, orphans
        for restart in whole:
            self.ranking.mend(restart)
        return iter(order)

    # -- what happens to the entries -------------------------------------------------------------

    def on_found(self, block: Block) -> None:
        if block.page in self._plain:
            del self._plain[block.page]
            self._blocks[block.page] = block
            if not block.num_live:
                self._push(block)

    def on_orphaned(self, block: Block) -> None:
        if block.page in self._blocks:
            self._push(block)

    def on_lost(self, checkpoint: "Checkpoint") -> None:
        states, plain = self._states, self._plain
        for page in checkpoint.pages:
            if page in states:
                del states[page]
                plain[page] = None
        slab = checkpoint.slab
        if slab is not None and slab.page in self._slabs and not slab.num_used:
            del self._slabs[slab.page]
            plain[slab.page] = None

    def on_block_lost(self, page: int) -> None:
        if page in self._blocks:
            del self._blocks[page]
            self._plain[page] = None

    # -- the order -------------------------------------------------------------------------------

    def _next_pages(self) -> Iterator[int]:
        """Remove the pages one by one."""
        ranking, plain, states = self.ranking, self._plain, self._states
        gone: dict[Slab, int] = {}
        useless: Iterator[Restart] | None = None
        points: list[Restart] | None = None
        while True:
            if plain:
                yield plain.popitem()[0]
                continue
            if (block := self._next_orphan(proven=False)) is not None:
                yield block.page
                continue
            if useless is None:
                useless = iter(ranking.useless())
            restart = next(useless, None)
            if restart is not None:
                if restart.checkpoint.pages[0] in states:
                    ranking.sacrifice(restart)
                    yield from self._pages_of(restart.checkpoint, gone)
                continue
            if (block := self._next_orphan(proven=True)) is not None:
                yield block.page
                continue
            if points is None:
                points = ranking.points().copy()
            restart = self._next_point(points)
            if restart is None:
                break
            if ranking.replaces_above(restart):
                points = None  # the one above becomes a restart point of its own
            ranking.sacrifice(restart)
            yield from self._pages_of(restart.checkpoint, gone)
        yield from self._others()

    def _next_point(self, points: list[Restart]) -> Restart | None:
        """Remove the first restart point that frees a page of this pool."""
        for place, restart in enumerate(points):
            if restart.checkpoint.pages[0] in self._states or self._frees_attention(restart):
                return points.pop(place)
        return None

    def _frees_attention(self, restart: Restart) -> bool:
        """Whether a free page of this pool caches attention that only this restart needs."""
        block: Block | None = restart.anchor
        while block is not None and block.num_live == 1:
            if block.page in self._blocks:
                return True
            block = block.parent
        return False

    def _pages_of(self, checkpoint: "Checkpoint", gone: "dict[Slab, int]") -> Iterator[int]:
        """The pages of a checkpoint, and its slab's if no other checkpoint is left in it.

        Args:
            gone: checkpoints of each slab whose pages were removed.
        """
        states, found = self._states, False
        for page in checkpoint.pages:
            if states.get(page) is checkpoint:
                del states[page]
                found = True
                yield page
        slab = checkpoint.slab
        if not found or slab is None:
            return
        gone[slab] = gone.get(slab, 0) + 1
        if gone[slab] == slab.num_used and slab.page in self._slabs:
            del self._slabs[slab.page]
            yield slab.page

    def _others(self) -> Iterator[int]:
        """Attention of checkpoints that are in use, and whatever else is left."""
        blocks = sorted(self._blocks.values(), key=lambda block: -block.depth)
        for pages in ([block.page for block in blocks], list(self._states), list(self._slabs)):
            for page in pages:
                self.remove((page,))
                yield page

    # -- inside ----------------------------------------------------------------------------------

    def _push(self, block: Block) -> None:
        """Enter a block that no restart supports."""
        self._num_pushed += 1
        heapq.heappush(self._unproven, (-block.depth, self._num_pushed, block.page, block))

    def _tidy(self) -> None:
        """Drop entries of blocks that are supported again, or in use."""
        most = 2 * len(self._blocks) + 64
        for heap in (self._unproven, self._orphans):
            if len(heap) > most:
                heap[:] = filter(self._is_orphan, heap)
                heapq.heapify(heap)

    def _is_orphan(self, entry: tuple[int, int, int, Block]) -> bool:
        _, _, page, block = entry
        return not block.num_live and self._blocks.get(page) is block

    def _next_orphan(self, *, proven: bool) -> Block | None:
        """Remove the next block that no restart needs."""
        blocks, is_proven = self._blocks, self.ranking.demand.is_proven
        heap = self._orphans if proven else self._unproven
        while heap:
            entry = heapq.heappop(heap)
            block = entry[3]
            if block.num_live or blocks.get(entry[2]) is not block:
                continue
            if not proven and is_proven(block.boundary):
                heapq.heappush(self._orphans, entry)
                continue
            del blocks[entry[2]]
            return block
        return None

    def _changed(self, checkpoint: "Checkpoint | None") -> None:
        """A checkpoint was released or held."""
        self.ranking.version += 1
        if checkpoint is not None:
            restart = self.ranking.restarts.get(checkpoint)
            if restart is not None:
                self.ranking.mend(restart)
