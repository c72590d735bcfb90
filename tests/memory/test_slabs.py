"""S2's slabs: which slot a state gets, and what goes when a slab's page gets a new owner."""

import pytest
from toy_memory import (
    NATIVE_ORDER,
    all_free,
    cached_checkpoints,
    compute,
    leave_cached,
    reassign,
    slab_store,
    toy_memory,
    toy_sequence,
)

from hsexp.memory import HybridMemory
from hsexp.memory.checkpoint import NO_LINE, Checkpoint

SLOTS = 4

IDLE_LAST = NATIVE_ORDER.model_copy(update={"idle_slab": "tail"})
"""Idle slabs that are not the very next pages to go: the members of a new state would take them."""


def place(state: Checkpoint) -> tuple[int, int]:
    """Creation order of the slab, from 1, and the slot."""
    assert state.slab is not None
    return state.slab.serial, state.slot


def slab_page(state: Checkpoint) -> int:
    assert state.slab is not None
    return state.slab.page


def allocate(memory: HybridMemory, count: int) -> list[Checkpoint]:
    return [memory.cache.states.allocate() for _ in range(count)]


def publish(memory: HybridMemory, *states: Checkpoint) -> None:
    for state in states:
        key = ("direct", id(state))
        memory.cache.states.publish(state, key)
        memory.cache.checkpoint_index.add(key, state)


# -- choice ----------------------------------------------------------------------------------------


def test_slots_fill_from_the_lowest_and_a_full_slab_is_followed_by_a_new_one() -> None:
    states = allocate(toy_memory("s2", 60), 6)
    assert [place(state) for state in states] == [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1)]


def test_a_state_goes_to_the_lowest_free_slot_of_the_oldest_active_slab() -> None:
    memory = toy_memory("s2", 60)
    states = allocate(memory, 9)  # slabs 1 and 2 are full, 3 has one state
    for released in (states[6], states[2], states[1]):  # slots (2, 2), (1, 2), (1, 1)
        memory.cache.states.release(released)
    assert [place(state) for state in allocate(memory, 4)] == [(1, 1), (1, 2), (2, 2), (3, 1)]
    memory.cache.states.check_integrity()


def idle_slabs(memory: HybridMemory, count: int) -> list[list[Checkpoint]]:
    """Slabs with three cached states and a free slot, which nobody references."""
    slabs = [allocate(memory, SLOTS) for _ in range(count)]
    for states in slabs:
        publish(memory, *states[:3])
    for states in slabs:
        for state in states:
            memory.cache.states.release(state)
    return slabs


def test_an_active_slab_with_room_comes_before_an_older_idle_one() -> None:
    memory = toy_memory("s2", 60, release_order=IDLE_LAST)
    idle_slabs(memory, 1)
    # The idle slab has a free slot and is woken first; fill it, so that slab 2 opens.
    woken, active = allocate(memory, 2)
    assert (place(woken), place(active)) == ((1, 3), (2, 0))
    memory.cache.states.release(woken)  # slab 1 is idle again, with a free slot
    assert [place(state) for state in allocate(memory, 4)] == [(2, 1), (2, 2), (2, 3), (1, 3)]
    memory.cache.states.check_integrity()


def test_the_oldest_idle_slab_with_room_comes_before_a_new_page() -> None:
    memory = toy_memory("s2", 60, release_order=IDLE_LAST)
    idle_slabs(memory, 2)
    assert [place(state) for state in allocate(memory, 3)] == [(1, 3), (2, 3), (3, 0)]


def test_waking_an_idle_slab_takes_its_page_out_of_the_queue_and_keeps_its_cache() -> None:
    memory = toy_memory("s2", 60)
    ((first, *_),) = idle_slabs(memory, 1)
    page = slab_page(first)
    assert next(memory.cache.attention_pool.free_pages()) == page  # idle slabs are next to go
    (state,) = allocate(memory, 1)
    assert slab_page(state) == page
    assert page not in memory.cache.attention_pool.free_pages()
    assert len(cached_checkpoints(memory)) == 3
    memory.cache.states.check_integrity()


def test_an_idle_slab_without_a_free_slot_is_not_woken() -> None:
    memory = toy_memory("s2", 60)
    states = allocate(memory, SLOTS)
    publish(memory, *states)
    for state in states:
        memory.cache.states.release(state)
    page = slab_page(states[0])
    (state,) = allocate(memory, 1)
    # The queue's head was that very slab: its page starts over as a new slab.
    assert (place(state), slab_page(state)) == ((2, 0), page)
    assert cached_checkpoints(memory) == {}
    memory.cache.states.check_integrity()


def test_a_slot_freed_by_an_eviction_is_used_again() -> None:
    memory = toy_memory("s2", 60)
    states = allocate(memory, SLOTS)
    publish(memory, states[1])
    memory.cache.states.release(states[1])  # cached in slot 1 of an active slab
    assert place(allocate(memory, 1)[0]) == (2, 0)
    reassign(memory.cache.states.pool, states[1].pages[2])
    assert place(allocate(memory, 1)[0]) == (1, 1)


# -- lines -----------------------------------------------------------------------------------------


def test_the_line_of_a_state_is_page_times_slots_plus_slot() -> None:
    memory = toy_memory("s2", 60)
    states = allocate(memory, 6)
    # The first slab is page 1, its states take 3 pages each: pages 2 to 13; the next slab is 14.
    assert [state.line for state in states] == [4, 5, 6, 7, 56, 57]


def test_lines_of_live_states_are_distinct_and_decode_to_page_and_slot() -> None:
    memory = toy_memory("s2", 60)
    states = allocate(memory, 11)
    assert len({state.line for state in states}) == 11
    for state in states:
        assert divmod(state.line, SLOTS) == (slab_page(state), state.slot)
        assert state.line >= SLOTS  # page 0 is the null page


@pytest.mark.parametrize("organization", ["s0", "s1", "d0"])
def test_a_state_without_a_slab_has_no_line(organization: str) -> None:
    state = toy_memory(organization, 20).cache.states.allocate()
    assert state.line == NO_LINE < 0


# -- invalidation ----------------------------------------------------------------------------------


def test_reassigning_a_slab_page_invalidates_every_slot_and_no_other_slab() -> None:
    memory = toy_memory("s2", 60)
    first, second = idle_slabs(memory, 2)
    members = [page for state in first[:3] for page in state.pages]
    order = list(memory.cache.attention_pool.free_pages())
    order.remove(slab_page(first[0]))
    reassign(memory.cache.attention_pool, slab_page(first[0]))
    assert [state.key for state in first[:3]] == [None] * 3
    assert [state.key is None for state in second[:3]] == [False] * 3
    assert len(cached_checkpoints(memory)) == 3
    assert memory.cache.counters.reclaimed_slabs == 1
    # The members stay in the queue where they were, as plain pages.
    assert list(memory.cache.attention_pool.free_pages()) == [*order, slab_page(first[0])]
    assert all(memory.cache.attention_pool.entries[page] is None for page in members)
    memory.check_integrity()


def test_losing_one_state_leaves_the_others_of_its_slab_valid() -> None:
    memory = toy_memory("s2", 60)
    ((lost, kept, other, _),) = idle_slabs(memory, 1)
    reassign(memory.cache.attention_pool, lost.pages[1])
    assert (lost.key, kept.key is None, other.key is None) == (None, False, False)
    memory.cache.states.hold(kept)
    assert kept.line == slab_page(kept) * SLOTS + 1
    memory.cache.states.check_integrity()


def test_an_idle_slab_whose_last_state_is_lost_is_an_ordinary_page() -> None:
    memory = toy_memory("s2", 60)
    leave_cached(memory, 1, 8)
    (states,) = cached_checkpoints(memory).values()
    page = slab_page(states[0])
    reassign(memory.cache.attention_pool, states[0].pages[0])
    assert memory.cache.attention_pool.entries[page] is None
    assert slab_store(memory).slabs == {}
    assert memory.cache.counters.reclaimed_slabs == 0
    memory.check_integrity()


def test_a_slab_stays_referenced_while_one_of_its_states_is() -> None:
    memory = toy_memory("s2", 60)
    sequence = compute(memory, 1, 16)  # two states in one slab, the first will be superseded
    assert sequence.state is not None
    page = slab_page(sequence.state)
    memory.extend(sequence, 16, 17)
    memory.cache.attention_pool.take(memory.cache.attention_pool.num_free)
    assert memory.cache.attention_pool.refs[page] == 1
    hit = memory.lookup(toy_sequence(memory, 2), 17)
    assert hit.checkpoint is sequence.superseded  # adopted by the running request: still whole
    assert hit.tokens == 16


def test_members_popped_for_a_state_may_free_slots_of_its_own_slab() -> None:
    # One slab, four cached states, of which one is adopted again; no page is free beside them.
    memory = toy_memory("s2", 1 + 3 * 4)
    states = allocate(memory, SLOTS)
    publish(memory, *states)
    for state in states:
        memory.cache.states.release(state)
    memory.cache.states.hold(states[3])
    assert memory.cache.states.pages_needed(1) == 4  # no slot is free: a slab and three members
    assert memory.cache.states.pool.num_free == 9
    memory.cache.attention_pool.take(1)  # a member of the oldest state: its slot becomes free
    assert memory.cache.states.pages_needed(1) == 3
    assert place(allocate(memory, 1)[0]) == (1, 0)
    memory.cache.states.check_integrity()


def test_everything_is_free_after_slabs_were_woken_and_dissolved_at_random() -> None:
    memory = toy_memory("s2", 30)
    live: list[Checkpoint] = []
    for turn in range(300):
        if turn % 3 and memory.cache.states.pages_needed(1) <= memory.cache.states.pool.num_free:
            live.append(memory.cache.states.allocate())
        elif live:
            state = live.pop(turn * 7 % len(live))
            if turn % 2:
                publish(memory, state)
            memory.cache.states.release(state)
        memory.cache.states.check_integrity()
    for state in live:
        memory.cache.states.release(state)
    assert all_free(memory)
