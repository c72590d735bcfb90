"""A pool: every page is the null page, referenced, or queued; what fails has moved nothing."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import pytest
from toy_memory import NATIVE_ORDER, toy_memory

from hsexp.memory import MemoryFault, PagePool, PoolSpec
from hsexp.memory.policies.eviction.queue import EvictionQueue, PageKind
from hsexp.memory.pool import pool_usage

End = Literal["head", "tail"]


def pool_of(num_usable: int, *, hashed: End = "tail", plain: End = "tail") -> PagePool:
    order = NATIVE_ORDER.model_copy(update={"hashed": hashed, "plain_attention": plain})
    return PagePool(PoolSpec(name="toy", num_pages=num_usable + 1, page_bytes=8), order)


def state_of(pool: PagePool) -> tuple[list[int], list[int], list[object]]:
    return list(pool.free_pages()), list(pool.refs), list(pool.entries)


def test_the_null_page_is_never_handed_out() -> None:
    assert sorted(pool_of(3).take(3)) == [1, 2, 3]


def test_pages_come_from_the_head_in_order() -> None:
    pool = pool_of(4)
    assert pool.take(2) == [1, 2]
    assert pool.take(2) == [3, 4]


@pytest.mark.parametrize("count", [-1, -3, 4, 1000])
def test_an_impossible_number_of_pages_is_refused_and_moves_nothing(count: int) -> None:
    pool = pool_of(3)
    before = state_of(pool)
    with pytest.raises(MemoryFault, match=f"pool toy: {count} pages asked for, 3 are free"):
        pool.take(count)
    assert state_of(pool) == before


def test_taking_no_page_is_allowed_and_moves_nothing() -> None:
    pool = pool_of(3)
    before = state_of(pool)
    assert pool.take(0) == []
    assert state_of(pool) == before


def test_a_page_freed_twice_raises() -> None:
    pool = pool_of(3)
    page = pool.take(1)
    pool.release(page, "attention")
    with pytest.raises(MemoryFault, match="page 1 is freed but not held"):
        pool.release(page, "attention")


def test_a_page_named_twice_in_one_release_raises_and_is_queued_once() -> None:
    # An engine's free list grew by a page for every such call.
    pool = pool_of(3)
    page = pool.take(1)[0]
    with pytest.raises(MemoryFault):
        pool.release([page, page], "attention")
    pool.check_integrity()
    assert pool.num_free == 3


def test_two_references_are_dropped_in_one_release_and_queue_the_page_once() -> None:
    pool = pool_of(3)
    page = pool.take(1)[0]
    pool.hold([page])
    pool.release([page, page], "attention")
    assert list(pool.free_pages()) == [2, 3, 1]
    pool.check_integrity()


@pytest.mark.parametrize("page", [-1, -3, 0])
def test_a_sentinel_is_no_page_to_free_or_to_hold(page: int) -> None:
    # Page -1 would be the last one, which is held here.
    pool = pool_of(3)
    pool.take(3)
    before = state_of(pool)
    with pytest.raises(MemoryFault, match=f"page {page} is freed"):
        pool.release([page], "attention")
    with pytest.raises(MemoryFault, match=f"page {page} cannot be held"):
        pool.hold([page])
    assert state_of(pool) == before


def test_holding_a_queued_page_takes_it_out_of_the_queue() -> None:
    pool = pool_of(3)
    pool.hold([2])
    assert list(pool.free_pages()) == [1, 3]
    assert pool.take(2) == [1, 3]


def test_a_page_is_queued_only_when_its_last_reference_goes() -> None:
    pool = pool_of(2)
    pages = pool.take(1)
    pool.hold(pages)
    pool.release(pages, "attention")
    assert list(pool.free_pages()) == [2]
    pool.release(pages, "attention")
    assert list(pool.free_pages()) == [2, 1]


@pytest.mark.parametrize(
    ("hashed", "plain", "queue"),
    [
        ("tail", "head", [2, 3, 1]),
        ("head", "tail", [1, 3, 2]),
        ("tail", "tail", [3, 1, 2]),
        ("head", "head", [2, 1, 3]),
    ],
)
def test_pages_join_the_end_that_their_entry_says(
    hashed: End, plain: End, queue: list[int]
) -> None:
    pool = pool_of(3, hashed=hashed, plain=plain)
    pool.take(2)
    pool.entries[1] = "key"
    pool.release([1, 2], "attention")
    assert list(pool.free_pages()) == queue


def test_entries_are_lost_before_a_page_is_referenced_by_its_new_owner() -> None:
    pool = pool_of(2)
    seen: list[tuple[list[int], list[int]]] = []
    on_reassign: Callable[[list[int]], None] = lambda pages: seen.append(  # noqa: E731
        (pages, [pool.refs[page] for page in pages])
    )
    pool.on_reassign = on_reassign
    pool.take(2)
    assert seen == [([1, 2], [0, 0])]


def test_unreferenced_pages_are_counted() -> None:
    pool = pool_of(4)
    pool.take(2)
    assert pool.count_unreferenced([1, 3, 4]) == 2


def test_a_pool_without_a_usable_page_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="pool toy needs at least 2 pages, got 1"):
        pool_of(0)


def test_a_spec_counts_the_null_page_in_its_bytes() -> None:
    spec = PoolSpec(name="toy", num_pages=5, page_bytes=8)
    assert (spec.num_usable, spec.total_bytes) == (4, 40)


class NewestFirst(EvictionQueue):
    """The page that became free last is the next to go, whatever it caches."""

    def __init__(self, pages: Iterable[int]) -> None:
        self.pages = list(pages)

    def put(self, pages: Sequence[int], kind: PageKind, entries: Sequence[object]) -> None:
        self.pages[:0] = reversed(pages)

    def remove(self, pages: Sequence[int]) -> None:
        self.pages = [page for page in self.pages if page not in pages]

    def pop(self, count: int) -> list[int]:
        popped, self.pages = self.pages[:count], self.pages[count:]
        return popped

    def __iter__(self) -> Iterator[int]:
        return iter(self.pages)


class NewestFirstOrder:
    """Its settings: there are none."""

    def build(self, pages: Iterable[int]) -> EvictionQueue:
        return NewestFirst(pages)


def test_the_order_of_a_pool_alone_decides_who_goes_first() -> None:
    pool = PagePool(PoolSpec(name="toy", num_pages=5, page_bytes=8), NewestFirstOrder())
    pool.release(pool.take(3), "attention")
    assert list(pool.free_pages()) == [3, 2, 1, 4]
    pool.hold([2])
    assert pool.take(2) == [3, 1]
    assert pool.num_free == 1
    pool.check_integrity()


def test_usage_is_referenced_bytes_over_the_usable_bytes_of_all_pools() -> None:
    memory = toy_memory("d0", 30, num_states=10)  # pages of 256 B in both
    memory.cache.attention_pool.take(6)
    memory.cache.states.pool.take(1)
    assert pool_usage(memory.cache.pools) == 7 / 40
