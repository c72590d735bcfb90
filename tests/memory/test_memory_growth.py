"""What an operation costs does not grow with the pool: operations are counted, not timed."""

import gc
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from toy_memory import (
    MISS,
    NATIVE_ORDER,
    admit,
    leave_cached,
    pages_in_order,
    run_steps,
    toy_memory,
    toy_sequence,
)

from hsexp.memory import HybridMemory

SMALL, LARGE = 200, 19_920
"""Equal up to whole rounds of the pages that requests leave: 17 in S2 (four requests with a block
and three members each, and their slab), 5 in S1, 4 in D0, 2 in S0."""


class CountingList(list[Any]):
    """Counts how many of its items are passed over."""

    passed = 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.passed += 1
            yield item

    def __contains__(self, value: object) -> bool:
        self.passed += len(self)
        return super().__contains__(value)

    def count(self, value: Any) -> int:
        self.passed += len(self)
        return super().count(value)

    def index(self, value: Any, *bounds: Any) -> int:
        self.passed += len(self)
        return super().index(value, *bounds)


class CountingQueue(OrderedDict[int, None]):
    """Counts how many of its pages are passed over."""

    passed = 0

    def __iter__(self) -> Iterator[int]:
        for page in super().__iter__():
            self.passed += 1
            yield page


def operations(memory: HybridMemory, act: Callable[[HybridMemory], None]) -> tuple[int, int]:
    """Executed lines of Python, and items of the pools' tables that were passed over."""
    tables: list[CountingList | CountingQueue] = []
    for pool in memory.cache.pools:
        refs, entries, queue = CountingList(pool.refs), CountingList(pool.entries), CountingQueue()
        queue.update(pages_in_order(pool))
        pool.refs, pool.entries = refs, entries
        pool._queue.pages = queue
        tables += [refs, entries, queue]
    lines = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    gc.disable()  # a collection in between would run callbacks of others, and count their lines
    sys.settrace(trace)
    try:
        act(memory)
    finally:
        sys.settrace(before)
        gc.enable()
    return lines, sum(table.passed for table in tables)


def empty(organization: str, num_pages: int) -> HybridMemory:
    # Idle slabs last: first, the next request would take the only one, and the pool never fill.
    order = NATIVE_ORDER.model_copy(update={"idle_slab": "tail"})
    return toy_memory(organization, num_pages, num_states=num_pages // 4, release_order=order)


def full(organization: str, num_pages: int) -> HybridMemory:
    """The next page of each pool to go is a cached one: no page is left that was never used."""
    memory = empty(organization, num_pages)
    for request in range(num_pages):
        leave_cached(memory, f"old {request}", 8, content=f"old {request}")
        if all(pool.entries[next(pool.free_pages())] is not None for pool in memory.cache.pools):
            return memory
    raise AssertionError("the pool does not fill")


def one_request(memory: HybridMemory) -> None:
    """Lookup, admission, growth over two boundaries, a decode, a preemption, a resume, an end."""
    sequence = toy_sequence(memory, "new", 24)
    memory.refusal(sequence, memory.lookup(sequence, 24), 24, nothing_runs=False)
    memory.admit(sequence, MISS)
    run_steps(memory, sequence, 8, 16, 24, 25, 26)
    memory.preempt(sequence, 26)
    adopted = admit(memory, sequence, 27)
    run_steps(memory, sequence, 27, 28, start=adopted)
    memory.release(sequence, 28)


def states_only(memory: HybridMemory) -> None:
    """Slab choice and slots: twelve states come and go."""
    states = [memory.cache.states.allocate() for _ in range(12)]
    for state in states[::2]:
        memory.cache.states.release(state)
    states[::2] = [memory.cache.states.allocate() for _ in states[::2]]
    for state in states:
        memory.cache.states.release(state)


def pages_only(memory: HybridMemory) -> None:
    pool = memory.cache.attention_pool
    pages = pool.take(10)
    pool.hold(pages)
    pool.count_unreferenced(pages)
    pool.release(pages, "attention")
    pool.release(pages, "attention")


ACTS = [one_request, states_only, pages_only]


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("fill", [empty, full])
def test_an_operation_costs_the_same_whatever_the_size_of_the_pool(
    organization: str,
    fill: Callable[[str, int], HybridMemory],
    act: Callable[[HybridMemory], None],
) -> None:
    small = operations(fill(organization, SMALL), act)
    large = operations(fill(organization, LARGE), act)
    assert small == large
    lines, passed = large
    assert lines > 10
    assert passed == 0  # no table of the pool is ever walked through


def test_the_count_would_notice_a_walk_through_the_pool(organization: str) -> None:
    def walk(memory: HybridMemory) -> None:
        sum(memory.cache.attention_pool.refs)
        list(memory.cache.attention_pool.free_pages())

    def scan(memory: HybridMemory) -> None:
        for _ in range(memory.cache.attention_pool.num_free):
            pass

    for act in (walk, scan):
        small = operations(empty(organization, SMALL), act)
        large = operations(empty(organization, LARGE), act)
        assert small != large


def test_slab_choice_does_not_walk_through_full_slabs() -> None:
    def allocate_and_release(memory: HybridMemory) -> None:
        memory.cache.states.release(memory.cache.states.allocate())

    def lines(num_full_slabs: int) -> int:
        memory = toy_memory("s2", LARGE)
        for _ in range(4 * num_full_slabs):
            memory.cache.states.allocate()
        memory.cache.states.allocate()  # a slab with room, the last in creation order
        return operations(memory, allocate_and_release)[0]

    assert lines(2) == lines(500)
