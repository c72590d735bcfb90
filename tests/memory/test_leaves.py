"""The last state of a finished request: where the next turn of a conversation goes on.

Block and grid are 8 tokens (D0: block 2), as in `toy_memory`.
"""

from collections.abc import Callable, Hashable
from typing import Any

import pytest
from toy_memory import (
    EVICTIONS,
    NATIVE_ORDER,
    RANKED,
    STATES,
    WHOLE_PAGES,
    all_free,
    cached_boundaries,
    free_pages,
    leave_free,
    reassign,
    state_of,
    toy_memory,
    toy_sequence,
)

from hsexp.memory import Hit, HybridMemory, SequenceMemory

pytestmark = [
    pytest.mark.parametrize("organization", WHOLE_PAGES),
    pytest.mark.parametrize("states", sorted(STATES)),
]

PROMPT = 12
END = 21
"""Computed tokens of the first turn: inside a block, in D0 too, and off the grid."""


def memory_of(organization: str, states: str, num_pages: int = 60, **changes: Any) -> HybridMemory:
    """Slabs that are cached do not go first, as in `conf/organization`."""
    order = NATIVE_ORDER.model_copy(update={"idle_slab": "like_state"})
    standing = {"max_final": 4, "release_order": order}
    return toy_memory(organization, num_pages, states=states, **(standing | changes))


def exact(num_tokens: int) -> Hashable:
    return ("X", num_tokens)


def find(
    memory: HybridMemory,
    sequence: SequenceMemory,
    num_tokens: int,
    key: Callable[[int], Hashable] = exact,
) -> Hit:
    """The deeper one of a leaf and a boundary, as a scheduler looks for it."""
    leaves = memory.branching.leaves
    leaf = leaves.deepest(sequence, key, num_tokens=num_tokens - 1)
    return memory.lookup(sequence, num_tokens).or_deeper(leaf)


def start(memory: HybridMemory, sequence: SequenceMemory, num_tokens: int) -> int:
    hit = find(memory, sequence, num_tokens)
    nothing_runs = not memory.cache.sequences
    assert hit.ready
    assert memory.refusal(sequence, hit, num_tokens, nothing_runs=nothing_runs) is None
    memory.admit(sequence, hit, num_tokens)
    return hit.tokens


def steps(memory: HybridMemory, sequence: SequenceMemory, begin: int, *ends: int) -> list[str]:
    """Extend to each end in a step of its own. Returns the kinds of the copies."""
    kinds = []
    for end in ends:
        assert memory.extend(sequence, begin, end), f"no room for tokens {begin} to {end}"
        kinds += [copy.kind for copy in memory.take_copies()]
        memory.cache.step += 1
        begin = end
    return kinds


def finish(memory: HybridMemory, sequence: SequenceMemory, end: int) -> None:
    memory.release(sequence, end, leaf=exact(end))
    memory.cache.step += 1  # what the last step left is found from the next one on


def first_turn(memory: HybridMemory, name: str = "first", end: int = END) -> None:
    """A prompt of 12 tokens and its output; the last token of all is never computed."""
    sequence = toy_sequence(memory, name, PROMPT)
    start(memory, sequence, PROMPT)
    steps(memory, sequence, 0, 8, *range(PROMPT, end + 1))
    finish(memory, sequence, end)


def test_the_next_turn_goes_on_from_the_last_token_that_was_computed(
    organization: str, states: str
) -> None:
    memory = memory_of(organization, states)
    first_turn(memory)
    assert all_free(memory)
    second = toy_sequence(memory, "second", 30)
    hit = find(memory, second, 30)
    assert (hit.tokens, hit.ready) == (END, True)
    assert memory.lookup(second, 30).tokens == (16 if states == "per_boundary" else 8)
    memory.check_integrity()


def test_a_leaf_is_found_by_requests_that_go_beyond_it_alone(
    organization: str, states: str
) -> None:
    memory = memory_of(organization, states)
    first_turn(memory)
    again = toy_sequence(memory, "again", END)
    assert find(memory, again, END).tokens < END  # its last token is always computed
    assert find(memory, again, END + 1).tokens == END
    # Its own tokens begin at 20, in the block of the leaf, and so do its keys.
    other = toy_sequence(memory, "other", 30, shared=20)
    assert find(memory, other, 30, lambda end: ("Y", end)).tokens < END


def test_whoever_goes_on_copies_the_state_and_the_tail_and_leaves_them_to_others(
    organization: str, states: str
) -> None:
    memory = memory_of(organization, states)
    first_turn(memory)
    heirs = [toy_sequence(memory, name, 30) for name in ("second", "third")]
    for heir in heirs:
        assert start(memory, heir, 30) == END
        assert sorted(steps(memory, heir, END, 23)) == ["attention", "state"]
        memory.check_integrity()
    one, other = heirs
    assert state_of(one) is not state_of(other)
    own = END // memory.block_size
    assert one.blocks[:own] == other.blocks[:own] and one.blocks[own] != other.blocks[own]
    assert find(memory, toy_sequence(memory, "fourth", 30), 30).tokens == END


def test_turn_after_turn_leaves_its_own_leaf(organization: str, states: str) -> None:
    memory = memory_of(organization, states)
    first_turn(memory)
    end = END
    for name in range(3):
        sequence = toy_sequence(memory, name, end + 4)
        assert start(memory, sequence, end + 4) == end
        boundary = -(-end // 8) * 8
        steps(memory, sequence, end, *sorted({boundary, *range(boundary, end + 8)}))
        end += 7
        finish(memory, sequence, end)
        assert all_free(memory)
        memory.check_integrity()


def test_a_turn_that_ends_at_a_boundary_leaves_a_checkpoint_and_no_leaf(
    organization: str, states: str
) -> None:
    memory = memory_of(organization, states)
    first_turn(memory, end=24)
    assert len(memory.branching.leaves) == 0
    sequence = toy_sequence(memory, "second", 30)
    assert cached_boundaries(memory, sequence)[-1] == 24
    assert find(memory, sequence, 30).tokens == 24


def test_no_leaf_is_kept_where_the_policy_is_off(organization: str, states: str) -> None:
    memory = memory_of(organization, states, max_final=0)
    first_turn(memory)
    assert not memory.branching.leaves.keeps_final and len(memory.branching.leaves) == 0
    assert find(memory, toy_sequence(memory, "second", 30), 30).tokens < END


def test_a_leaf_gives_way_to_every_need(organization: str, states: str) -> None:
    memory = memory_of(organization, states)
    first_turn(memory)
    before = free_pages(memory)
    leave_free(memory, 0, 0)
    assert sum(before) and len(memory.cache.checkpoint_index) == len(memory.cache.block_index) == 0
    memory.branching.check_integrity()


def test_a_state_without_its_tail_is_no_leaf(organization: str, states: str) -> None:
    memory = memory_of(organization, states)
    first_turn(memory)
    second = toy_sequence(memory, "second", 30)
    reassign(memory.cache.attention_pool, find(memory, second, 30).blocks[-1])
    assert find(memory, second, 30).tokens < END
    memory.check_integrity()


def test_the_oldest_leaf_goes_where_there_are_too_many(organization: str, states: str) -> None:
    memory = memory_of(organization, states, max_final=2)
    for end in (20, 21, 22):
        first_turn(memory, f"to {end}", end)
    leaves = memory.branching.leaves
    found = {end: leaves.has(exact(end), end) for end in (20, 21, 22)}
    assert found == {20: False, 21: True, 22: True}
    memory.check_integrity()


def test_leaves_that_are_gone_take_no_place(organization: str, states: str) -> None:
    memory = memory_of(organization, states, max_final=2)
    for end in range(13, 60):
        first_turn(memory, f"to {end}", end)
    leaves = memory.branching.leaves
    assert len(leaves) == 2 and sum(map(len, leaves._behind.values())) == 2
    assert all(leaves._behind.values())


@pytest.mark.parametrize("eviction", RANKED)
def test_an_order_that_ranks_restart_points_sees_an_unproven_one(
    organization: str, states: str, eviction: str
) -> None:
    memory = memory_of(organization, states, eviction=eviction)
    assert eviction in EVICTIONS
    first_turn(memory)
    second = toy_sequence(memory, "second", 30)
    hit = find(memory, second, 30)
    prefixes = memory.cache.prefixes
    assert prefixes is not None and hit.checkpoint is not None
    restart = prefixes.restarts[hit.checkpoint]
    assert restart.supports and restart.tokens == END
    assert not prefixes.demand.is_proven(restart.key)


def test_a_request_alone_is_admitted_although_its_own_leaf_is_in_the_way(
    organization: str, states: str
) -> None:
    """It gives way with the leaf, and computes everything."""
    memory = memory_of(organization, states)
    first_turn(memory)
    second = toy_sequence(memory, "second", 30)
    leave_free(memory, *[*memory.max_need(30), 0][:2])
    hit = find(memory, second, 30)
    assert hit.tokens == END and memory.refusal(second, hit, 30, nothing_runs=True)
    while memory.refusal(second, find(memory, second, 30), 30, nothing_runs=True):
        assert memory.give_way()
    assert start(memory, second, 30) == 0
    memory.branching.check_integrity()
