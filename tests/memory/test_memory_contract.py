"""The contract of a hybrid memory, the same for all organizations and orders of eviction."""

from collections.abc import Callable, Hashable, Sequence

import pytest
from live_depths import live_depths
from toy_memory import (
    MISS,
    WHOLE_PAGES,
    admit,
    all_free,
    cached_boundaries,
    cached_checkpoints,
    compute,
    free_last,
    free_pages,
    leave_cached,
    leave_free,
    reassign,
    run_steps,
    snapshot,
    state_of,
    toy_memory,
    toy_sequence,
)

from hsexp.memory import (
    HybridMemory,
    MemoryFault,
    Observer,
    PagePool,
    PrefixKeys,
    SequenceMemory,
)
from hsexp.memory.checkpoint import Checkpoint
from hsexp.memory.observer import LossCause
from hsexp.sim.keys import KeyMaker
from hsexp.workload import Request, Segment

pytestmark = pytest.mark.usefixtures("eviction")

FIRST_STEP = {"s0": (1, 1), "s1": (1, 4), "s2": (1, 3 + 1), "s3": (1, 3 + 1), "d0": (4, 1)}
"""Attention pages and recurrent pages (in S2 and S3 with a slab) of a first step over 8 tokens."""

STATE = {"s0": 1, "s1": 4, "s2": 3, "s3": 3, "d0": 1}
"""Pages of a further state; S2's goes into a slot of an active slab."""


# -- allocation ------------------------------------------------------------------------------------


def test_a_step_takes_exactly_its_blocks_and_its_state(organization: str) -> None:
    memory = toy_memory(organization, 60)
    leave_free(memory, *FIRST_STEP[organization])
    sequence = toy_sequence(memory, 1)
    admit(memory, sequence, 64)
    assert memory.extend(sequence, 0, 8)
    assert set(free_pages(memory)) == {0}


@pytest.mark.parametrize("short", ["attention", "recurrent"])
def test_a_step_that_misses_one_page_moves_nothing(organization: str, short: str) -> None:
    memory = toy_memory(organization, 60)
    attention, recurrent = FIRST_STEP[organization]
    leave_free(memory, attention - (short == "attention"), recurrent - (short == "recurrent"))
    sequence = toy_sequence(memory, 1)
    admit(memory, sequence, 64)
    before = snapshot(memory)
    assert not memory.extend(sequence, 0, 8)
    assert snapshot(memory) == before


def test_a_crossing_that_misses_one_page_gives_up_only_the_superseded_state(
    organization: str,
) -> None:
    memory = toy_memory(organization, 60)
    sequence = compute(memory, 1, 16)
    superseded, state, blocks = sequence.superseded, sequence.state, list(sequence.blocks)
    # Giving up the superseded state frees STATE pages, and one is missing.
    attention, recurrent = FIRST_STEP[organization][0], STATE[organization]
    leave_free(memory, attention - 1, recurrent - STATE[organization])
    free = sum(free_pages(memory))
    assert not memory.extend(sequence, 16, 24)
    assert (sequence.state, sequence.superseded, sequence.blocks) == (state, None, blocks)
    assert superseded is not None and superseded.refs == 0
    assert sum(free_pages(memory)) == free + STATE[organization]


def test_a_state_that_misses_one_page_moves_nothing(organization: str) -> None:
    # S2 takes a slab first, then members: the slab must not stay behind.
    memory = toy_memory(organization, 60)
    leave_free(memory, 0, FIRST_STEP[organization][1] - 1)
    before = snapshot(memory)
    with pytest.raises(MemoryFault):
        memory.cache.states.allocate()
    assert snapshot(memory) == before


def test_pages_needed_is_what_allocating_takes(organization: str) -> None:
    memory = toy_memory(organization, 60)
    for _ in range(9):  # two slabs of 4 slots fill up in S2, a third begins
        needed, free = memory.cache.states.pages_needed(1), memory.cache.states.pool.num_free
        memory.cache.states.allocate()
        assert memory.cache.states.pool.num_free == free - needed


# -- lookup ----------------------------------------------------------------------------------------


def test_a_lookup_changes_nothing(organization: str) -> None:
    memory = toy_memory(organization, 60, observer=Observer())
    leave_cached(memory, 1, 24)
    before = snapshot(memory)
    assert memory.lookup(toy_sequence(memory, 2), 64).tokens == 24
    assert memory.lookup(toy_sequence(memory, 3, content="Y"), 64).tokens == 0
    assert snapshot(memory) == before


def test_a_hit_names_the_blocks_and_the_state_of_one_boundary(organization: str) -> None:
    memory = toy_memory(organization, 60)
    sequence = compute(memory, 1, 24)
    blocks, checkpoint = sequence.blocks, state_of(sequence)
    hit = memory.lookup(toy_sequence(memory, 2), 64)
    assert (hit.tokens, hit.blocks, hit.checkpoint) == (24, blocks, checkpoint)


def test_a_checkpoint_without_its_attention_is_no_hit(organization: str) -> None:
    memory = toy_memory(organization, 60)
    sequence = compute(memory, 1, 16)
    second_block = sequence.blocks[-1]  # of tokens 8 to 16, in D0 of 14 to 16
    memory.release(sequence, 16)
    reassign(memory.cache.attention_pool, second_block)
    other = toy_sequence(memory, 2)
    assert memory.lookup(other, 64).tokens == 8
    assert live_depths(memory, other, 64) == (8, 16, 8)


def test_a_hole_in_attention_ends_the_prefix_there(organization: str) -> None:
    memory = toy_memory(organization, 60)
    sequence = compute(memory, 1, 24)
    first_block = sequence.blocks[0]
    memory.release(sequence, 24)
    reassign(memory.cache.attention_pool, first_block)
    other = toy_sequence(memory, 2)
    assert memory.lookup(other, 64).tokens == 0
    assert live_depths(memory, other, 64) == (0, 24, 0)


def test_the_gap_is_the_first_missing_block_before_the_deepest_checkpoint(
    organization: str,
) -> None:
    memory = toy_memory(organization, 60)
    sequence = compute(memory, 1, 32)
    holes = [tokens // memory.block_size for tokens in (8, 24)]
    pages = [sequence.blocks[hole] for hole in holes]
    memory.release(sequence, 32)
    reassign(memory.cache.attention_pool, *pages)
    other = toy_sequence(memory, 2)
    hit = memory.lookup(other, 64)
    assert (hit.tokens, hit.gap) == (8, other.keys.attention[holes[0]])


def test_attention_without_a_checkpoint_is_no_hit(organization: str) -> None:
    memory = toy_memory(organization, 60)
    sequence = compute(memory, 1, 16)
    deepest = state_of(sequence)
    memory.release(sequence, 16)
    reassign(memory.cache.states.pool, deepest.pages[0])
    other = toy_sequence(memory, 2)
    assert memory.lookup(other, 64).tokens == 8
    assert live_depths(memory, other, 64) == (16, 8, 8)


@pytest.mark.parametrize(("num_tokens", "boundary"), [(8, 0), (9, 8), (16, 8), (17, 16)])
def test_the_last_token_is_always_computed(
    organization: str, num_tokens: int, boundary: int
) -> None:
    memory = toy_memory(organization, 60)
    leave_cached(memory, 1, 24)
    sequence = toy_sequence(memory, 2)
    assert memory.lookup(sequence, num_tokens).tokens == boundary
    assert live_depths(memory, sequence, num_tokens)[0] == boundary


def test_a_prompt_shorter_than_a_block_caches_and_hits_nothing(organization: str) -> None:
    memory = toy_memory(organization, 60)
    leave_cached(memory, 1, 7)
    assert cached_checkpoints(memory) == {}
    assert memory.lookup(toy_sequence(memory, 2), 7).tokens == 0


def test_blocks_and_checkpoints_are_counted_on_their_own_grids() -> None:
    # An engine indexed states by the attention block. Here blocks have 8 tokens, the grid 16.
    memory = toy_memory("s1", 60, grid=16)
    leave_cached(memory, 1, 40)
    sequence = toy_sequence(memory, 2)
    assert cached_boundaries(memory, sequence) == [16, 32]
    hit = memory.lookup(sequence, 40)
    assert (hit.tokens, len(hit.blocks)) == (32, 4)


# -- admission -------------------------------------------------------------------------------------

# A request of 20 tokens: 3 blocks of 8 (D0: 10 of 2), and two states of its own. In S3 the last 4
# tokens are 2 of a slab's 4 blocks.
MISS_NEED = {
    "s0": [3 + 2],
    "s1": [3 + 8],
    "s2": [3 + 6 + 1],
    "s3": [2 + 1 + 6 + 1],
    "d0": [10, 2],
}
# A hit at 8 that nobody references: its block and its state leave the queue too.
CACHED_NEED = {
    "s0": [2 + 1 + 2 + 1],
    "s1": [2 + 1 + 8 + 4],
    "s2": [2 + 1 + (6 + 1) + (3 + 1)],  # the slab of the hit is idle: it is held too
    "s3": [1 + 1 + 1 + (6 + 1) + (3 + 1)],
    "d0": [6 + 4, 2 + 1],
}
# A hit at 8 that another request holds: only what is missing. S2's slab has two free slots.
HELD_NEED = {"s0": [2 + 2], "s1": [2 + 8], "s2": [2 + 6], "s3": [1 + 1 + 6], "d0": [6, 2]}


def test_the_need_of_a_miss_is_the_full_prompt_and_the_states(organization: str) -> None:
    memory = toy_memory(organization, 60, num_admission_states=2)
    hit = memory.lookup(toy_sequence(memory, 1), 20)
    assert memory.admission_need(hit, 20) == MISS_NEED[organization]


def test_the_need_counts_hit_pages_that_nobody_references(organization: str) -> None:
    memory = toy_memory(organization, 60, num_admission_states=2)
    leave_cached(memory, 1, 8)
    hit = memory.lookup(toy_sequence(memory, 2), 20)
    assert hit.tokens == 8
    assert memory.admission_need(hit, 20) == CACHED_NEED[organization]


def test_the_need_leaves_out_hit_pages_that_another_request_holds(organization: str) -> None:
    memory = toy_memory(organization, 60, num_admission_states=2)
    compute(memory, 1, 8)
    hit = memory.lookup(toy_sequence(memory, 2), 20)
    assert hit.tokens == 8
    assert memory.admission_need(hit, 20) == HELD_NEED[organization]


def test_a_slab_page_is_needed_when_active_slabs_have_fewer_slots_than_states() -> None:
    memory = toy_memory("s2", 60, num_admission_states=2)
    for _ in range(3):  # one of four slots stays free
        memory.cache.states.allocate()
    assert memory.admission_need(MISS, 20) == [3 + 6 + 1]


def test_an_admission_takes_its_need_to_the_page(organization: str) -> None:
    memory = toy_memory(organization, 60)
    leave_cached(memory, 1, 8)
    sequence = toy_sequence(memory, 2)
    hit = memory.lookup(sequence, 20)
    need, free = memory.admission_need(hit, 20), free_pages(memory)
    memory.admit(sequence, hit)
    memory.cache.step += 1
    assert memory.extend(sequence, 8, 20)
    taken = [before - after for before, after in zip(free, free_pages(memory), strict=True)]
    # S2 counts a slab page for the new state although the hit's slab has a free slot.
    assert taken == ([need[0] - 1] if organization in ("s2", "s3") else need)


def test_a_refused_admission_changes_nothing(organization: str) -> None:
    memory = toy_memory(organization, 40, num_states=6, retention=1, pinning=1, headroom=0.75)
    holder = compute(memory, 2, 8, content="Y")
    leave_cached(memory, 1, 16)
    sequence = toy_sequence(memory, 3)
    before = snapshot(memory)
    hit = memory.lookup(sequence, 64)
    assert hit.tokens == 16
    refusal = memory.refusal(sequence, hit, 64, nothing_runs=False)
    assert refusal is not None and refusal.need > refusal.free - refusal.headroom
    assert snapshot(memory) == before
    assert memory.cache.counters.refusals == 1
    memory.release(holder, 8)
    assert all_free(memory)


def test_each_pool_of_d0_says_no_on_its_own() -> None:
    # 20 tokens: 10 of 40 attention units, one of 4 recurrent units.
    memory = toy_memory("d0", 40, num_states=4)
    sequence = toy_sequence(memory, 1)
    attention, recurrent = memory.cache.pools
    held = recurrent.take(4)
    refusal = memory.refusal(sequence, MISS, 20, nothing_runs=True)
    assert refusal is not None
    assert (refusal.pool, refusal.need, refusal.free) == ("recurrent", 1, 0)
    free_last(recurrent, held)
    attention.take(31)
    refusal = memory.refusal(sequence, MISS, 20, nothing_runs=True)
    assert refusal is not None
    assert (refusal.pool, refusal.need, refusal.free) == ("attention", 10, 9)


def test_room_in_one_pool_of_d0_never_helps_the_other() -> None:
    memory = toy_memory("d0", 40, num_states=1)
    sequence = compute(memory, 1, 8)
    before = snapshot(memory)
    assert not memory.extend(sequence, 8, 9)  # a second state, with 36 attention units free
    assert snapshot(memory) == before


@pytest.mark.parametrize(
    ("organization", "num_pages", "fits", "too_long", "reason"),
    [
        # 24 tokens take 3 blocks; a request beyond 8 tokens needs two states at a crossing.
        ("s0", 5, 24, 25, "needs 6 pages of pool shared alone, which has 5"),
        ("s1", 11, 24, 25, "needs 12 pages of pool shared alone, which has 11"),
        ("s2", 10, 24, 25, "needs 11 pages of pool shared alone, which has 10"),
        ("s3", 10, 24, 25, "needs 11 pages of pool shared alone, which has 10"),
        ("d0", 12, 24, 25, "needs 13 pages of pool attention alone, which has 12"),
    ],
)
def test_a_request_that_can_never_fit_is_known_by_pool_and_pages(
    organization: str, num_pages: int, fits: int, too_long: int, reason: str
) -> None:
    memory = toy_memory(organization, num_pages, num_states=2)
    assert memory.never_fits(fits) is None
    assert memory.never_fits(too_long) == reason
    sequence = compute(memory, 1, fits)  # and it does run, token for token
    memory.release(sequence, fits)
    assert all_free(memory)


def test_a_single_recurrent_unit_serves_only_requests_within_one_interval() -> None:
    memory = toy_memory("d0", 40, num_states=1)
    assert memory.never_fits(8) is None
    assert memory.never_fits(9) == "needs 2 pages of pool recurrent alone, which has 1"


# -- growth and publication ------------------------------------------------------------------------


def test_checkpoints_exist_only_where_a_chunk_ends_on_the_grid(organization: str) -> None:
    memory = toy_memory(organization, 60)
    sequence = toy_sequence(memory, 1)
    admit(memory, sequence, 32)
    run_steps(memory, sequence, 5, 16, 27, 32)  # 8 and 24 lie inside chunks
    assert cached_boundaries(memory, sequence) == [16, 32]


def test_a_chunk_end_inside_a_block_is_not_stored_under_the_blocks_key(organization: str) -> None:
    # Prompt 12 in chunks of 7 and 5: the only states are those after 7 and after 12 tokens.
    memory = toy_memory(organization, 60)
    sequence = toy_sequence(memory, 1, 12)
    admit(memory, sequence, 12)
    run_steps(memory, sequence, 7, 12)
    assert cached_checkpoints(memory) == {}
    assert memory.lookup(toy_sequence(memory, 2), 12).tokens == 0


@pytest.mark.parametrize("organization", WHOLE_PAGES)
def test_a_decode_that_reaches_the_grid_leaves_a_checkpoint(organization: str) -> None:
    memory = toy_memory(organization, 60)
    sequence = toy_sequence(memory, 1, 6)
    admit(memory, sequence, 6)
    run_steps(memory, sequence, 6, 7)
    assert cached_boundaries(memory, sequence) == []
    run_steps(memory, sequence, 8, start=7)
    assert cached_boundaries(memory, sequence) == [8]


def test_a_running_request_holds_one_state_and_its_predecessor_for_one_step(
    organization: str,
) -> None:
    memory = toy_memory(organization, 60)
    sequence = compute(memory, 1, 16)
    superseded = sequence.superseded
    assert superseded is not None and (superseded.refs, sequence.num_states) == (1, 2)
    free = memory.cache.states.pool.num_free
    memory.extend(sequence, 16, 17)  # crosses: a third state, the first goes
    assert superseded.refs == 0 and sequence.num_states == 2
    run_steps(memory, sequence, 18, start=17)  # crosses nothing: the second goes
    assert sequence.num_states == 1
    new_block = FIRST_STEP[organization][0] if len(memory.cache.pools) == 1 else 0
    assert memory.cache.states.pool.num_free == free - new_block + STATE[organization]


def test_a_published_state_is_never_written_again(organization: str) -> None:
    memory = toy_memory(organization, 60)
    sequence = compute(memory, 1, 16)
    published = state_of(sequence)
    for end in range(17, 25):
        run_steps(memory, sequence, end, start=end - 1)
        assert sequence.state is not published
    adopter = toy_sequence(memory, 2)
    assert admit(memory, adopter, 17) == 16
    run_steps(memory, adopter, 17, start=16)
    assert adopter.state is not published and adopter.superseded is published


def test_what_a_step_publishes_is_not_ready_before_the_next_one(organization: str) -> None:
    memory = toy_memory(organization, 60)
    sequence = toy_sequence(memory, 1)
    admit(memory, sequence, 64)
    memory.cache.step += 1
    memory.extend(sequence, 0, 8)
    other = toy_sequence(memory, 2)
    hit = memory.lookup(other, 64)
    assert (hit.tokens, hit.ready) == (8, False)
    memory.cache.step += 1
    assert memory.lookup(other, 64).ready


def test_an_old_checkpoint_over_attention_of_this_very_step_is_not_ready(
    organization: str,
) -> None:
    memory = toy_memory(organization, 60)
    sequence = compute(memory, 1, 8)
    blocks = list(sequence.blocks)
    memory.release(sequence, 8)
    reassign(memory.cache.attention_pool, *blocks)  # only the checkpoint is left
    second = toy_sequence(memory, 2)
    assert admit(memory, second, 64) == 0
    memory.cache.step += 1
    memory.extend(second, 0, 8)
    third = toy_sequence(memory, 3)
    hit = memory.lookup(third, 64)
    assert (hit.tokens, hit.blocks, hit.ready) == (8, second.blocks, False)
    memory.cache.step += 1
    assert memory.lookup(third, 64).ready


def test_what_an_earlier_step_published_is_ready_while_this_step_publishes_more(
    organization: str,
) -> None:
    memory = toy_memory(organization, 60)
    first, second = toy_sequence(memory, 1), toy_sequence(memory, 2, content="Y")
    for sequence in (first, second):
        admit(memory, sequence, 64)
        memory.cache.step += 1
        memory.extend(sequence, 0, 8)
    assert memory.lookup(toy_sequence(memory, 3), 64).ready
    assert not memory.lookup(toy_sequence(memory, 4, content="Y"), 64).ready


# An asynchronous engine schedules a step before it knows the last token of the one before.


def with_late_keys(memory: HybridMemory) -> tuple[SequenceMemory, Callable[[int], None]]:
    """A request, and what tells it the keys of its first tokens; at first it has none."""
    sequence = toy_sequence(memory, 1)
    every, attention, checkpoints = sequence.keys, list[Hashable](), list[Hashable]()
    sequence.keys = PrefixKeys(attention=attention, checkpoints=checkpoints)

    def know(num_tokens: int) -> None:
        attention[:] = every.attention[: num_tokens // memory.block_size]
        checkpoints[:] = every.checkpoints[: num_tokens // memory.checkpoint_grid]

    return sequence, know


def test_a_boundary_whose_key_comes_late_is_ready_as_soon_as_it_is_published(
    organization: str,
) -> None:
    memory = toy_memory(organization, 60)
    sequence, know = with_late_keys(memory)
    memory.admit(sequence, MISS)
    run_steps(memory, sequence, 8)
    other = toy_sequence(memory, 2)
    assert memory.lookup(other, 64).tokens == 0
    know(8)
    memory.extend(sequence, 8, 9)
    hit = memory.lookup(other, 64)
    assert (hit.tokens, hit.ready) == (8, True)
    memory.check_integrity()


def test_a_superseded_state_whose_key_comes_late_outlives_a_preemption(organization: str) -> None:
    memory = toy_memory(organization, 60)
    sequence, know = with_late_keys(memory)
    memory.admit(sequence, MISS)
    run_steps(memory, sequence, 8)
    memory.extend(sequence, 8, 9)  # its first state is superseded and has no key yet
    know(8)
    memory.preempt(sequence, 8)
    assert memory.lookup(toy_sequence(memory, 2), 64).tokens == 8
    memory.check_integrity()


def test_entries_of_earlier_steps_stay_though_the_last_of_them_is_not_counted_yet(
    organization: str,
) -> None:
    memory = toy_memory(organization, 60)
    sequence = toy_sequence(memory, 1)
    memory.admit(sequence, MISS)
    run_steps(memory, sequence, 8, 16)
    memory.preempt(sequence, 8)  # the tokens of the second step are on their way
    assert memory.lookup(toy_sequence(memory, 2), 64).tokens == 16
    memory.check_integrity()


def test_a_checkpoint_of_a_step_that_was_taken_back_is_invisible(organization: str) -> None:
    # A producer has 16 tokens done; its next 8 are scheduled, then it is preempted in that step.
    memory = toy_memory(organization, 60)
    producer = toy_sequence(memory, 1)
    memory.admit(producer, MISS)
    run_steps(memory, producer, 8, 16)
    memory.extend(producer, 16, 24)
    consumer = toy_sequence(memory, 2)
    assert memory.lookup(consumer, 64).tokens == 24
    memory.preempt(producer, 16)
    for _ in range(2):
        assert memory.lookup(consumer, 64).tokens == 16
        assert live_depths(memory, consumer, 64)[0] == 16
        assert cached_boundaries(memory, consumer) == [8, 16]
        memory.cache.step += 1
    memory.check_integrity()


def test_a_cancelled_step_leaves_nothing_behind(organization: str) -> None:
    memory = toy_memory(organization, 60)
    producer = toy_sequence(memory, 1)
    memory.admit(producer, MISS)
    run_steps(memory, producer, 8, 16)
    memory.extend(producer, 16, 24)
    memory.release(producer, 16)  # the client went away before the step was computed
    memory.cache.step += 1
    consumer = toy_sequence(memory, 2)
    assert memory.lookup(consumer, 64).tokens == 16
    assert live_depths(memory, consumer, 64)[0] == 16
    assert all_free(memory)
    memory.check_integrity()


def test_a_withdrawn_duplicate_leaves_the_older_entry(organization: str) -> None:
    memory = toy_memory(organization, 60)
    first = compute(memory, 1, 8)
    second = toy_sequence(memory, 2)
    memory.admit(second, MISS)
    memory.extend(second, 0, 8)
    memory.preempt(second, 0)
    hit = memory.lookup(toy_sequence(memory, 3), 64)
    assert (hit.tokens, hit.blocks, hit.checkpoint) == (8, first.blocks, first.state)
    memory.check_integrity()


def test_a_preemption_between_steps_keeps_what_was_computed(organization: str) -> None:
    memory = toy_memory(organization, 60)
    sequence = compute(memory, 1, 16)
    memory.preempt(sequence, 16)
    assert memory.lookup(sequence, 17).tokens == 16


# -- duplicates ------------------------------------------------------------------------------------


def test_a_lookup_returns_the_oldest_of_equal_entries_and_then_the_next(
    organization: str,
) -> None:
    memory = toy_memory(organization, 60)
    twins = [toy_sequence(memory, request_id) for request_id in (1, 2, 3)]
    for twin in twins:
        memory.admit(twin, MISS)
    memory.cache.step += 1
    for twin in twins:
        assert memory.extend(twin, 0, 8)
    memory.cache.step += 1
    entries = [(list(twin.blocks), state_of(twin)) for twin in twins]
    for twin in reversed(twins):  # the order of release must not matter
        memory.release(twin, 8)
    other = toy_sequence(memory, 4)
    for blocks, checkpoint in entries:
        hit = memory.lookup(other, 64)
        assert (hit.tokens, hit.blocks, hit.checkpoint) == (8, blocks, checkpoint)
        memory.check_integrity()
        reassign(memory.cache.attention_pool, *blocks)
        reassign(memory.cache.states.pool, checkpoint.pages[0])
    assert memory.lookup(other, 64).tokens == 0


def test_losing_a_younger_duplicate_leaves_the_oldest(organization: str) -> None:
    memory = toy_memory(organization, 60)
    twins = [toy_sequence(memory, request_id) for request_id in (1, 2, 3)]
    for twin in twins:
        memory.admit(twin, MISS)
        assert memory.extend(twin, 0, 8)
    memory.cache.step += 1
    blocks, checkpoint = list(twins[0].blocks), state_of(twins[0])
    middle_blocks, middle = list(twins[1].blocks), state_of(twins[1])
    for twin in twins:
        memory.release(twin, 8)
    reassign(memory.cache.attention_pool, *middle_blocks)
    reassign(memory.cache.states.pool, middle.pages[0])
    hit = memory.lookup(toy_sequence(memory, 4), 64)
    assert (hit.blocks, hit.checkpoint) == (blocks, checkpoint)
    memory.check_integrity()


# -- invalidation ----------------------------------------------------------------------------------


def test_reassigning_any_member_invalidates_the_whole_state(organization: str) -> None:
    for member in range(STATE[organization]):
        memory = toy_memory(organization, 60)
        leave_cached(memory, 1, 8)
        checkpoint = memory.lookup(toy_sequence(memory, 2), 9).checkpoint
        assert checkpoint is not None
        reassign(memory.cache.states.pool, checkpoint.pages[member])
        assert checkpoint.key is None
        assert cached_checkpoints(memory) == {}
        assert memory.lookup(toy_sequence(memory, 2), 9).tokens == 0
        memory.check_integrity()


@pytest.mark.parametrize("eviction", ["paper", "lru"], indirect=True)  # those that are a line
def test_the_other_members_of_an_invalidated_state_stay_where_they_are() -> None:
    memory = toy_memory("s1", 12)
    leave_cached(memory, 1, 8)  # block 1, state in pages 2 to 5
    assert list(memory.cache.attention_pool.free_pages()) == [6, 7, 8, 9, 10, 11, 12, 1, 2, 3, 4, 5]
    reassign(memory.cache.attention_pool, 3)
    assert list(memory.cache.attention_pool.free_pages()) == [6, 7, 8, 9, 10, 11, 12, 1, 2, 4, 5, 3]
    assert [memory.cache.attention_pool.entries[page] for page in (2, 3, 4, 5)] == [None] * 4


class NewOwners(Observer):
    """Which pages were referenced whenever an entry was lost."""

    def __init__(self, pools: Sequence[PagePool]) -> None:
        self.pools = pools
        self.seen: list[tuple[str, int]] = []

    def on_lose_blocks(self, pool: int, pages: Sequence[int], cause: LossCause) -> None:
        self._note("attention")

    def on_lose_state(self, state: Checkpoint, cause: LossCause) -> None:
        self._note("checkpoint")

    def _note(self, kind: str) -> None:
        self.seen.append((kind, sum(sum(pool.refs) for pool in self.pools)))


def test_entries_go_before_their_page_has_a_new_owner(organization: str) -> None:
    memory = toy_memory(organization, 60)
    leave_cached(memory, 1, 24)
    watch = NewOwners(memory.cache.pools)
    memory.cache.watch(watch)
    attention, recurrent = memory.cache.attention_pool, memory.cache.states.pool
    for pool in {attention.spec.name: attention, recurrent.spec.name: recurrent}.values():
        taken = pool.take(pool.num_free)
        assert len(taken) == pool.spec.num_usable
        free_last(pool, taken)
    # No page had an owner, neither the old nor the new one.
    assert set(watch.seen) == {("attention", 0), ("checkpoint", 0)}
    assert len(memory.cache.block_index) == len(memory.cache.checkpoint_index) == 0


def test_a_referenced_entry_outlives_the_reassignment_of_all_free_pages(
    organization: str,
) -> None:
    memory = toy_memory(organization, 60)
    leave_cached(memory, 1, 24)
    holder = toy_sequence(memory, 2)
    assert admit(memory, holder, 64) == 24
    for pool in memory.cache.pools:
        free_last(pool, pool.take(pool.num_free))
    hit = memory.lookup(toy_sequence(memory, 3), 64)
    assert (hit.tokens, hit.checkpoint) == (24, holder.state)
    memory.check_integrity()


def test_a_reset_loses_every_entry_that_nobody_references(organization: str) -> None:
    memory = toy_memory(organization, 60)
    holder = compute(memory, 2, 8)
    leave_cached(memory, 1, 8, content="Y")
    blocks_of_8_tokens = FIRST_STEP[organization][0]
    assert memory.cache.reset() == blocks_of_8_tokens + 1  # and one checkpoint
    assert memory.lookup(toy_sequence(memory, 3, content="Y"), 64).tokens == 0
    assert memory.lookup(toy_sequence(memory, 4), 64).tokens == 8
    memory.check_integrity()
    memory.release(holder, 8)
    assert memory.cache.reset() == blocks_of_8_tokens + 1
    assert len(memory.cache.block_index) == len(memory.cache.checkpoint_index) == 0
    assert all_free(memory)
    assert memory.cache.reset() == 0


# -- release ---------------------------------------------------------------------------------------


def test_a_request_is_released_once(organization: str) -> None:
    memory = toy_memory(organization, 60)
    sequence = compute(memory, 1, 8)
    memory.release(sequence, 8)
    before = snapshot(memory)
    with pytest.raises(MemoryFault, match="request 1 is released but does not run"):
        memory.release(sequence, 0)
    with pytest.raises(MemoryFault, match="request 1 is released but does not run"):
        memory.preempt(sequence, 0)
    assert snapshot(memory) == before


def test_a_state_is_released_once(organization: str) -> None:
    memory = toy_memory(organization, 60)
    state = memory.cache.states.allocate()
    memory.cache.states.release(state)
    before = snapshot(memory)
    with pytest.raises(MemoryFault, match="released but not held"):
        memory.cache.states.release(state)
    assert snapshot(memory) == before


def test_a_lost_state_cannot_be_held_again(organization: str) -> None:
    # Its pages have another owner by then.
    memory = toy_memory(organization, 60)
    leave_cached(memory, 1, 8)
    checkpoint = memory.lookup(toy_sequence(memory, 2), 9).checkpoint
    assert checkpoint is not None
    memory.cache.states.pool.take(memory.cache.states.pool.num_free)
    before = snapshot(memory)
    with pytest.raises(MemoryFault, match="is lost"):
        memory.cache.states.hold(checkpoint)
    assert snapshot(memory) == before


def test_a_shared_state_stays_until_its_last_holder_leaves(organization: str) -> None:
    memory = toy_memory(organization, 60)
    producer = compute(memory, 1, 8)
    shared = state_of(producer)
    adopter = toy_sequence(memory, 2)
    admit(memory, adopter, 9)
    assert shared.refs == 2
    memory.release(producer, 8)
    assert shared.refs == 1
    assert not set(shared.pages) & set(memory.cache.states.pool.free_pages())
    memory.release(adopter, 8)
    assert shared.refs == 0
    assert set(shared.pages) <= set(memory.cache.states.pool.free_pages())


def test_two_hundred_requests_leave_no_page_behind(organization: str) -> None:
    memory = toy_memory(organization, 40, num_states=6)
    for request_id in range(200):
        shared = toy_sequence(memory, request_id, content=request_id % 5, shared=16)
        tokens = 17 + request_id % 14
        adopted = admit(memory, shared, tokens)
        run_steps(memory, shared, tokens, start=adopted)
        memory.check_integrity()
        memory.release(shared, tokens)
        assert all_free(memory)


# -- isolation -------------------------------------------------------------------------------------


def test_equal_prompts_with_different_salts_share_nothing(organization: str) -> None:
    memory = toy_memory(organization, 60)
    maker = KeyMaker(block_size=memory.block_size, checkpoint_grid=memory.checkpoint_grid)

    def sequence(request_id: int, salt: str | None) -> SequenceMemory:
        request = Request(
            request_id=request_id,
            arrival_s=0.0,
            prompt_tokens=20,
            output_tokens=4,
            segments=(Segment(end_tokens=16, content_id=7),),
            cache_salt=salt,
        )
        return SequenceMemory(request_id=request_id, keys=maker.keys(request), num_prompt_tokens=20)

    for request_id, salt in enumerate([None, "a"]):
        producer = sequence(request_id, salt)
        memory.admit(producer, MISS)
        run_steps(memory, producer, 8, 16)
    assert memory.lookup(sequence(2, "a"), 20).tokens == 16
    assert memory.lookup(sequence(3, None), 20).tokens == 16
    assert memory.lookup(sequence(4, "b"), 20).tokens == 0
    with_salt = memory.lookup(sequence(5, "a"), 20)
    without = memory.lookup(sequence(6, None), 20)
    assert not set(with_salt.blocks) & set(without.blocks)
    assert with_salt.checkpoint is not without.checkpoint


def test_a_report_counts_free_cached_and_referenced_pages() -> None:
    memory = toy_memory("s1", 12, pinning=1)
    leave_cached(memory, 1, 8, content="Y")  # 5 cached pages
    compute(memory, 2, 1)  # 5 referenced pages
    assert memory.describe() == (
        "pool shared: 12 pages, 7 free (5 of them cached), 5 referenced\npins: 0"
    )
