"""Where released pages join the queue, by the literal queue: the head is reassigned first."""

import pytest
from toy_memory import NATIVE_ORDER, compute, toy_memory

from hsexp.memory import HybridMemory


def queues(memory: HybridMemory) -> list[list[int]]:
    return [list(pool.free_pages()) for pool in memory.cache.pools]


# A request computes 13 tokens in steps that end at 8 and 13. Its first block and its first state
# get keys, the second ones do not. Pages in order of allocation:
#
#   s0   block 1, state 2                   block 3, state 4
#   s1   block 1, state 2 [3 4 5]           block 6, state 7 [8 9 10]
#   s2   block 1, slab 2, state 3 [4 5]     block 6, state 7 [8 9]
#   d0   blocks 1 2 3 4, state 1            blocks 5 6 (keys) and 7, state 2


@pytest.mark.parametrize(
    ("organization", "expected"),
    [
        # Blocks go last first: 3 to the head, 1 to the tail; then state 4 to the head, 2 to the
        # tail.
        ("s0", [[4, 3, 5, 6, 7, 8, 9, 10, 1, 2]]),
        # The representative 7 goes to the head, its members to the tail; the cached state follows.
        ("s1", [[7, 6, 11, 12, 1, 8, 9, 10, 2, 3, 4, 5]]),
        # The slab keeps a cached slot: it goes to the head, in front of all.
        ("s2", [[2, 7, 6, 10, 11, 12, 1, 8, 9, 3, 4, 5]]),
        ("d0", [[7, 8, 9, 10, 6, 5, 4, 3, 2, 1], [2, 3, 4, 5, 1]]),
    ],
)
def test_a_finished_request_leaves_its_pages_in_this_order(
    organization: str, expected: list[list[int]]
) -> None:
    num_pages = len(expected[0])
    memory = toy_memory(organization, num_pages, num_states=5)
    memory.release(compute(memory, 1, 13), 13)
    assert queues(memory) == expected


@pytest.mark.parametrize(
    ("organization", "expected"),
    [
        ("s0", [[2, 1, 3, 4, 5]]),
        ("s1", [[2, 1, 6, 7, 3, 4, 5]]),
        ("s2", [[2, 3, 1, 6, 7, 4, 5]]),  # the slab is empty: an ordinary page
        ("d0", [[3, 4, 5, 2, 1], [1, 2, 3]]),  # 5 tokens: two full units and a plain one
    ],
)
def test_a_request_without_a_key_leaves_plain_pages(
    organization: str, expected: list[list[int]]
) -> None:
    memory = toy_memory(organization, len(expected[0]), num_states=3)
    memory.release(compute(memory, 1, 5), 5)
    assert queues(memory) == expected
    assert all(entry is None for entry in memory.cache.states.pool.entries)


def test_a_preempted_request_leaves_its_pages_like_a_finished_one() -> None:
    memory = toy_memory("s1", 12)
    memory.preempt(compute(memory, 1, 13), 13)
    assert queues(memory) == [[7, 6, 11, 12, 1, 8, 9, 10, 2, 3, 4, 5]]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        # Cached pages to the head one by one: block 1, and at last 2, 3, 4, 5.
        ({"hashed": "head"}, [5, 4, 3, 2, 7, 1, 6, 11, 12, 8, 9, 10]),
        ({"plain_attention": "tail"}, [7, 11, 12, 6, 1, 8, 9, 10, 2, 3, 4, 5]),
        ({"plain_representative": "tail"}, [6, 11, 12, 1, 7, 8, 9, 10, 2, 3, 4, 5]),
        ({"plain_members": "head"}, [10, 9, 8, 7, 6, 11, 12, 1, 2, 3, 4, 5]),
    ],
)
def test_the_configuration_decides_the_order(change: dict[str, str], expected: list[int]) -> None:
    order = NATIVE_ORDER.model_copy(update=change)
    memory = toy_memory("s1", 12, release_order=order)
    memory.release(compute(memory, 1, 13), 13)
    assert queues(memory) == [expected]


@pytest.mark.parametrize(
    ("idle_slab", "expected"),
    [
        ("head", [2, 7, 6, 10, 11, 12, 1, 8, 9, 3, 4, 5]),
        ("tail", [7, 6, 10, 11, 12, 1, 8, 9, 3, 4, 5, 2]),
        # The last state to go is the superseded one, which is cached: to the tail.
        ("like_state", [7, 6, 10, 11, 12, 1, 8, 9, 3, 4, 5, 2]),
    ],
)
def test_an_idle_slab_joins_the_configured_end(idle_slab: str, expected: list[int]) -> None:
    order = NATIVE_ORDER.model_copy(update={"idle_slab": idle_slab})
    memory = toy_memory("s2", 12, release_order=order)
    memory.release(compute(memory, 1, 13), 13)
    assert queues(memory) == [expected]


def test_a_slab_that_a_plain_state_leaves_idle_goes_with_its_representative() -> None:
    order = NATIVE_ORDER.model_copy(update={"idle_slab": "like_state"})
    memory = toy_memory("s2", 12, release_order=order)
    cached = compute(memory, 1, 8)  # block 1, slab 2, state 3 [4 5]
    plain = compute(memory, 2, 5, content="Y")  # block 6, state 7 [8 9]
    memory.release(cached, 8)
    memory.release(plain, 5)
    assert queues(memory) == [[2, 7, 6, 10, 11, 12, 1, 3, 4, 5, 8, 9]]


def test_a_prefix_loses_its_end_before_its_start() -> None:
    # Two blocks of the same request, both cached: the later one is reassigned first.
    memory = toy_memory("s0", 10)
    sequence = compute(memory, 1, 24)
    blocks = list(sequence.blocks)
    memory.release(sequence, 24)
    queue = queues(memory)[0]
    assert [page for page in queue if page in blocks] == blocks[::-1]


@pytest.mark.parametrize("organization", ["s0", "s1", "s2", "d0"])
def test_retained_states_go_from_the_deepest_to_the_shallowest(organization: str) -> None:
    memory = toy_memory(organization, 40, retention=1)
    sequence = compute(memory, 1, 28)  # keeps its states at 8 and 16
    first, second = (state.pages[0] for state in sequence.retained)
    memory.release(sequence, 28)
    queue = queues(memory)[-1]
    assert queue.index(second) < queue.index(first)
