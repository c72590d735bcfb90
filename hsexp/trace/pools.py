"""Pages of the pools over time, replayed from their moves and from what they cache.

    held      some execution or pin references the page: its owner is what it was taken for
    cached    nobody references it, and it holds an entry that a request can still reuse
    free      neither

Cached and free pages are both in the free queue. `num_free` counts them both, as the memory does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from hsexp.memory.pool import PageUse
from hsexp.trace.schema import TraceError
from hsexp.trace.slabs import SlabReplay
from hsexp.trace.trace import Event, Trace, TracedMemory

Owner = Literal["attention", "tail", "state", "slab", "cached", "free"]
"""The first four reference the page (`hsexp.memory.pool.PageUse`)."""

_USES: tuple[PageUse, ...] = get_args(PageUse)

MOVES = ("take", "hold", "free", "state", "copy", "publish", "lose")
"""Kinds of events that a replay applies; it ignores others."""


class PoolReplay:
    """The pages of every pool. Apply the events in order; it is right between any two of them."""

    def __init__(self, memory: TracedMemory) -> None:
        self.memory = memory
        self.refs = [[0] * pool.num_pages for pool in memory.pools]
        """References of each page, by pool. Page 0 is the null page, which nobody gets."""
        self.num_free = [pool.num_pages - 1 for pool in memory.pools]
        """Pages of each pool without references."""
        slots = memory.slab_slots
        self.slabs = None if slots is None else SlabReplay(slots)
        self._uses: list[list[PageUse | None]] = [[None] * pool.num_pages for pool in memory.pools]
        """What each page was last taken for."""
        self._has_entry = [[False] * pool.num_pages for pool in memory.pools]
        self._held: list[dict[PageUse, int]] = [dict.fromkeys(_USES, 0) for _ in memory.pools]
        self._cached: list[dict[PageUse, int]] = [dict.fromkeys(_USES, 0) for _ in memory.pools]

    def owner(self, pool: int, page: int) -> Owner:
        """Who has a page."""
        use = self._uses[pool][page]
        if use is not None and self.refs[pool][page]:
            return use
        return "cached" if self._has_entry[pool][page] else "free"

    def count(self, pool: int) -> dict[Owner, int]:
        """Pages of a pool by owner; they add up to all but the null page."""
        cached = sum(self._cached[pool].values())
        counts: dict[Owner, int] = {"cached": cached, "free": self.num_free[pool] - cached}
        counts.update(self._held[pool].items())
        return counts

    def count_cached(self, pool: int) -> dict[PageUse, int]:
        """Cached pages of a pool by what they were taken for."""
        return dict(self._cached[pool])

    def apply(self, event: Event) -> None:
        """
        Raises:
            TraceError: the event contradicts those before it.
        """
        kind = event.kind
        if kind == "take":
            self._take(event.pool, event.pages, event.use)
        elif kind == "hold":
            self._hold(event.pool, event.pages)
        elif kind == "free":
            self._free(event.pool, event.pages)
        elif kind == "publish":
            pool = 0 if event.entry == "attention" else self.memory.recurrent_pool
            self._set_entries(pool, event.pages, True)
        elif kind == "lose":
            self._set_entries(event.pool, event.pages, False)
            if event.entry == "state":
                self._leave_slot_if_unused(event.pool, event.pages[0])
        elif kind == "state":
            self._enter_slot(event.pages[0], event.line)
        elif kind == "copy" and event.entry == "state":
            self._enter_slot(event.targets[0], event.line)

    # -- references --------------------------------------------------------------------------------

    def _take(self, pool: int, pages: Sequence[int], use: PageUse) -> None:
        refs, uses, has_entry = self.refs[pool], self._uses[pool], self._has_entry[pool]
        for page in pages:
            if refs[page] or has_entry[page]:
                raise TraceError(f"page {page} of pool {pool} is taken, and is {use} already")
            refs[page] = 1
            uses[page] = use
        self.num_free[pool] -= len(pages)
        self._held[pool][use] += len(pages)

    def _hold(self, pool: int, pages: Sequence[int]) -> None:
        refs, uses, has_entry = self.refs[pool], self._uses[pool], self._has_entry[pool]
        for page in pages:
            if not refs[page]:
                use = uses[page]
                if use is None:
                    raise TraceError(f"page {page} of pool {pool} is held, and was never taken")
                self.num_free[pool] -= 1
                self._cached[pool][use] -= has_entry[page]
                self._held[pool][use] += 1
            refs[page] += 1

    def _free(self, pool: int, pages: Sequence[int]) -> None:
        refs, uses, has_entry = self.refs[pool], self._uses[pool], self._has_entry[pool]
        for page in pages:
            use = uses[page]
            if not refs[page] or use is None:
                raise TraceError(f"page {page} of pool {pool} is freed, and is not held")
            refs[page] -= 1
            if refs[page]:
                continue
            self.num_free[pool] += 1
            self._cached[pool][use] += has_entry[page]
            self._held[pool][use] -= 1
            if use == "state":
                self._leave_slot_if_unused(pool, page)

    # -- entries -----------------------------------------------------------------------------------

    def _set_entries(self, pool: int, pages: Sequence[int], value: bool) -> None:
        refs, has_entry = self.refs[pool], self._has_entry[pool]
        for page in pages:
            if has_entry[page] == value:
                done = "published twice" if value else "lost, and was never published"
                raise TraceError(f"page {page} of pool {pool} is {done}")
            has_entry[page] = value
            use = self._uses[pool][page]
            if use is not None and not refs[page]:
                self._cached[pool][use] += 1 if value else -1

    def _enter_slot(self, state: int, line: int) -> None:
        if self.slabs is not None:
            slab = self.slabs.put(state, line)
            if not self._has_entry[self.memory.recurrent_pool][slab]:
                self._set_entries(self.memory.recurrent_pool, [slab], True)

    def _leave_slot_if_unused(self, pool: int, state: int) -> None:
        """The slot of a state is free once nobody references the state, and it has no key."""
        slabs = self.slabs
        if slabs is None or slabs.slab_of(state) is None:
            return  # further pages of a state have no slot of their own
        if not self.refs[pool][state] and not self._has_entry[pool][state]:
            emptied = slabs.remove(state)
            if emptied is not None:
                self._set_entries(pool, [emptied], False)


# -- over a whole trace ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How many of the counts of two sources are equal."""

    num_equal: int
    num_all: int

    def __str__(self) -> str:
        return f"{self.num_equal:,} of {self.num_all:,}"


def free_pages_agree(trace: Trace) -> Agreement:
    """Compare the replayed free pages with those that each refusal and each shortage recorded.

    Raises:
        TraceError: the events contradict each other.
    """
    replay, num_equal, num_all = PoolReplay(trace.memory), 0, 0
    for event in trace.rows(*MOVES, "refuse", "short"):
        if event.kind not in ("refuse", "short"):
            replay.apply(event)
        elif event.free is not None:  # a refusal that stands repeats the one before
            num_all += 1
            num_equal += event.free == replay.num_free
    return Agreement(num_equal=num_equal, num_all=num_all)


def at_each_step(trace: Trace) -> Iterator[tuple[int, PoolReplay]]:
    """The pages at every step, as (number of equal steps, replay), in order.

    A step is seen as it was scheduled: with the pages that it takes, and before requests leave
    that end with it. The replay is the same object each time, and goes on after it.

    Raises:
        TraceError: the events contradict each other.
    """
    replay, steps = PoolReplay(trace.memory), StepNumbers(trace)
    for event in trace.rows(*MOVES, "chunk"):
        num_steps = sum(map(len, steps.until(event.step + is_after_schedule(event))))
        if num_steps:
            yield num_steps, replay
        replay.apply(event)
    num_steps = sum(map(len, steps.until(None)))
    if num_steps:
        yield num_steps, replay


def is_after_schedule(event: Event) -> bool:
    """Whether an event comes after everything that its step has scheduled."""
    if event.kind == "release":
        return bool(event.cause == "finished")
    return event.kind == "chunk" or getattr(event, "act", None) == "release"


class StepNumbers:
    """The numbers of the steps that ran, in order. Each one is passed once."""

    def __init__(self, trace: Trace) -> None:
        stretches = [range(event.step, event.step + event.count) for event in trace.rows("step")]
        self._left = sorted(stretches, key=lambda steps: -steps.start)

    def until(self, end: int | None) -> list[range]:
        """The steps before step `end` that are not passed yet; None passes all."""
        passed: list[range] = []
        while self._left and (end is None or self._left[-1].start < end):
            steps = self._left.pop()
            if end is not None and steps.stop > end:
                self._left.append(range(end, steps.stop))
                steps = range(steps.start, end)
            passed.append(steps)
        return passed
