"""Orders of eviction, by the literal queue: the head is reassigned first."""

import pytest
from toy_memory import (
    MISS,
    admit,
    all_free,
    cached_checkpoints,
    compute,
    free_pages,
    leave_cached,
    queue_of,
    toy_memory,
    toy_sequence,
)


def queues(memory: object) -> list[list[int]]:
    return [queue_of(pool) for pool in memory.cache.pools]  # type: ignore[attr-defined]


# As in test_release_order.py: a request computes 13 tokens in steps that end at 8 and 13. Its first
# block and its first state get keys, the second ones do not. Pages in order of allocation:
#
#   s0   block 1, state 2                   block 3, state 4
#   s1   block 1, state 2 [3 4 5]           block 6, state 7 [8 9 10]
#   s2   block 1, slab 2, state 3 [4 5]     block 6, state 7 [8 9]
#   d0   blocks 1 2 3 4, state 1            blocks 5 6 (keys) and 7, state 2


@pytest.mark.parametrize(
    ("organization", "expected"),
    [
        # Block 3 to the head, 1 to the tail; then the plain state to the head, page by page, and
        # the cached one to the tail.
        ("s0", [[4, 3, 5, 6, 7, 8, 9, 10, 1, 2]]),
        ("s1", [[10, 9, 8, 7, 6, 11, 12, 1, 2, 3, 4, 5]]),
        # The slab is idle with its cached slot: the last one used, behind the state in it.
        ("s2", [[9, 8, 7, 6, 10, 11, 12, 1, 3, 4, 5, 2]]),
        ("d0", [[7, 8, 9, 10, 6, 5, 4, 3, 2, 1], [2, 3, 4, 5, 1]]),
    ],
)
def test_lru_puts_what_caches_nothing_first_and_the_last_used_last(
    organization: str, expected: list[list[int]]
) -> None:
    memory = toy_memory(organization, len(expected[0]), num_states=5, eviction="lru")
    memory.release(compute(memory, 1, 13), 13)
    assert queues(memory) == expected


def test_under_lru_a_hit_makes_its_blocks_and_its_state_the_last_to_go(organization: str) -> None:
    memory = toy_memory(organization, 40, eviction="lru")
    for content in ("X", "Y"):
        leave_cached(memory, content, 9, content=content)
    states = cached_checkpoints(memory)
    assert len(states) == 2
    hit = toy_sequence(memory, "hit", 9, content="X")
    assert admit(memory, hit, 9) == 8
    (used,) = [state for key, (state,) in states.items() if key == hit.keys.checkpoints[0]]
    (unused,) = [state for (state,) in states.values() if state is not used]
    blocks = list(hit.blocks)
    memory.release(hit, 8)
    queue = queue_of(memory.cache.states.pool)
    assert max(map(queue.index, unused.pages)) < min(map(queue.index, used.pages))
    attention = queue_of(memory.cache.attention_pool)
    other = toy_sequence(memory, "other", 9, content="Y")
    others = memory.lookup(other, 9).blocks
    assert max(map(attention.index, others)) < min(map(attention.index, blocks))


def test_under_lru_an_entry_is_lost_only_when_no_empty_page_is_left(organization: str) -> None:
    """The paper's order loses one before that: the members of a plain state join the tail."""
    memory = toy_memory(organization, 40, num_states=8, eviction="lru")
    leave_cached(memory, 1, 9)
    for pool in memory.cache.pools:
        empty = [page for page in queue_of(pool) if pool.entries[page] is None]
        assert sorted(pool.take(len(empty))) == sorted(empty)
    assert memory.cache.num_losses == 0
    assert memory.lookup(toy_sequence(memory, 2, 9), 9).tokens == 8
    memory.cache.attention_pool.take(1)
    assert memory.cache.num_losses > 0


def test_under_lru_no_cached_state_is_lost_with_its_slab() -> None:
    """Each state's pages are older than the page of the slab that its slot is in."""
    memory = toy_memory("s2", 36, eviction="lru")
    for request_id in range(6):
        leave_cached(memory, request_id, 17, content=request_id)
    while memory.cache.checkpoint_index.oldest:
        memory.cache.attention_pool.release(memory.cache.attention_pool.take(1), "attention")
        memory.cache.attention_pool.take(1)
    assert memory.cache.counters.lost_checkpoints > 0
    assert memory.cache.counters.reclaimed_slabs == 0


# -- every order -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("eviction")
def test_all_that_counts_as_free_can_be_taken_at_once(organization: str) -> None:
    """Admission counts `num_free`; a queue that kept a page back would break its promise."""
    memory = toy_memory(organization, 40, num_states=8)
    for request_id in range(4):
        leave_cached(memory, request_id, 17, content=request_id % 3)
    running = compute(memory, "running", 9, content=0)
    held = {page for state in running.states for page in state.pages} | set(running.blocks)
    for pool, count in zip(memory.cache.pools, free_pages(memory), strict=True):
        queue = queue_of(pool)
        taken = pool.take(count)
        assert taken == queue
        assert len(set(taken)) == count and not queue_of(pool)
        if len(memory.cache.pools) == 1:
            assert not held & set(taken)
        pool.release(taken, "attention")
    memory.check_integrity()
    assert memory.lookup(toy_sequence(memory, "next", 17, content=1), 17) == MISS


@pytest.mark.usefixtures("eviction")
@pytest.mark.parametrize("count", [1, 7, 13])
def test_a_queue_delivers_its_pages_in_the_order_that_it_shows(
    organization: str, count: int
) -> None:
    memory = toy_memory(organization, 60, num_states=12)
    for request_id in range(5):
        leave_cached(memory, request_id, 21, content=request_id % 3, shared=13)
    compute(memory, "running", 9, content=0)
    pool = memory.cache.attention_pool
    while pool.num_free >= count:
        queue = queue_of(pool)
        assert queue_of(pool) == queue  # looking changes nothing
        assert pool.take(count) == queue[:count]


@pytest.mark.usefixtures("eviction")
def test_evicting_everything_at_idle_frees_everything(organization: str) -> None:
    memory = toy_memory(organization, 40, num_states=8)
    for request_id in range(4):
        leave_cached(memory, request_id, 17, content=request_id)
    assert all_free(memory)
    assert memory.cache.reset() > 0
    memory.check_integrity()
    for pool in memory.cache.pools:
        pool.take(pool.num_free)
    assert not memory.cache.checkpoint_index.oldest and not memory.cache.block_index.oldest
