"""Headroom, retention and pinning: what a campaign varies beside the organization."""

from collections import OrderedDict

import pytest
from toy_memory import (
    MISS,
    admit,
    all_free,
    compute,
    free_last,
    leave_cached,
    pages_in_order,
    reassign,
    run_steps,
    snapshot,
    state_of,
    toy_memory,
    toy_sequence,
)

from hsexp.memory import HybridMemory
from hsexp.memory.pool import floor_of

STATE = {"s0": 1, "s1": 4, "s2": 3, "s3": 3, "d0": 1}


# -- headroom --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fraction", "count", "blocks"),
    [
        (0.19, 193, 36),  # 36.67
        (0.29, 100, 29),  # 28.999999999999996 in floating point
        (0.57, 100, 57),  # 56.99999999999999
        (0.07, 100, 7),  # 7.000000000000001
        (0.35, 20, 7),
        (0.9999, 10_000, 9999),
        (0.0, 331, 0),
    ],
)
def test_headroom_is_the_exact_floor_of_a_decimal_fraction(
    fraction: float, count: int, blocks: int
) -> None:
    assert floor_of(fraction, count) == blocks


def test_reserve_and_headroom_are_floored_one_by_one(organization: str) -> None:
    # 194 pages with the null page: floor(15.52) + floor(36.86), not floor(52.38) = 52.
    memory = toy_memory(organization, 193, num_states=28, headroom=0.19, reserve_fraction=0.08)
    # D0's recurrent pool has 29 units: floor(2.32) + floor(5.51).
    expected = (51, 7) if organization == "d0" else (51,)
    assert memory.admission.headroom_pages == expected


def test_headroom_is_a_fraction_of_all_pages_with_the_null_page(organization: str) -> None:
    # Twice 0.35 of 200 pages, 70, where the 199 usable ones would give 69. D0 has as many recurrent
    # units as at b63: floor(0.35 x 29) = 10, not floor(0.35 x 28) = 9.
    memory = toy_memory(organization, 199, num_states=28, headroom=0.35, reserve_fraction=0.35)
    expected = (140, 20) if organization == "d0" else (140,)
    assert memory.admission.headroom_pages == expected


@pytest.mark.parametrize(("spare", "admitted"), [(0, True), (-1, False)])
def test_an_admission_needs_its_pages_and_the_headroom_to_be_free(
    organization: str, spare: int, admitted: bool
) -> None:
    # B = 101 pages: H = floor(20.2) = 20. D0's recurrent pool: B = 21, H = 4.
    memory = toy_memory(organization, 100, num_states=20, headroom=0.2)
    sequence = toy_sequence(memory, 1)
    need = memory.admission_need(MISS, 64)
    headroom = (20, 4)
    for pool, pages, kept_free in zip(memory.cache.pools, need, headroom, strict=False):
        pool.take(pool.num_free - pages - kept_free - spare)
    assert (memory.refusal(sequence, MISS, 64, nothing_runs=False) is None) == admitted


def test_nothing_is_kept_free_while_nothing_runs(organization: str) -> None:
    # 64 tokens need 60 % and more of the pool, half of which is headroom.
    memory = toy_memory(organization, 14, headroom=0.5, num_states=1)
    num_tokens = {"s0": 72, "s1": 72, "s2": 72, "s3": 72, "d0": 20}[organization]
    sequence = toy_sequence(memory, 1)
    assert memory.refusal(sequence, MISS, num_tokens, nothing_runs=True) is None
    refusal = memory.refusal(sequence, MISS, num_tokens, nothing_runs=False)
    assert refusal is not None and refusal.headroom == 7  # of 15 pages


def test_running_requests_ignore_the_headroom(organization: str) -> None:
    memory = toy_memory(organization, 20, num_states=2, headroom=0.95)
    sequence = toy_sequence(memory, 1)
    admit(memory, sequence, 64)
    run_steps(memory, sequence, 8, 16)
    assert min(pool.num_free for pool in memory.cache.pools) < 19


def test_a_refusal_names_pool_need_headroom_and_free_pages() -> None:
    memory = toy_memory("s1", 20, headroom=0.5)
    refusal = memory.refusal(toy_sequence(memory, 1), MISS, 64, nothing_runs=False)
    assert str(refusal) == "pool shared: needs 12 + headroom 10 pages, 20 are free"


# -- retention -------------------------------------------------------------------------------------


def ask(memory: HybridMemory, request_id: int | str) -> None:
    """A request that is admitted, and leaves before it computes anything."""
    sequence = toy_sequence(memory, request_id)
    memory.admit(sequence, MISS)
    memory.release(sequence, 0)


def retained_tokens(memory: HybridMemory, request_id: int | str) -> list[int]:
    return [state.tokens for state in memory.cache.sequences[request_id].retained]


def test_a_state_that_two_requests_asked_for_is_kept_by_its_producer(organization: str) -> None:
    memory = toy_memory(organization, 60, retention=2)
    ask(memory, 1)
    sequence = compute(memory, 2, 33)
    assert retained_tokens(memory, 2) == [8, 16, 24]  # 32 was superseded by the last step
    assert sequence.superseded is not None and sequence.superseded.tokens == 32
    memory.check_integrity()


def test_a_state_that_only_its_producer_asked_for_is_given_up(organization: str) -> None:
    memory = toy_memory(organization, 60, retention=2)
    compute(memory, 1, 33)
    assert retained_tokens(memory, 1) == []


def test_asking_twice_is_one_request(organization: str) -> None:
    memory = toy_memory(organization, 60, retention=2)
    ask(memory, 1)  # admitted once, and now again under the same id
    compute(memory, 1, 33)
    assert retained_tokens(memory, 1) == []


def test_only_shared_boundaries_are_kept(organization: str) -> None:
    memory = toy_memory(organization, 60, retention=2)
    ask(memory, 1)
    sequence = toy_sequence(memory, 2, 33, shared=16)
    memory.admit(sequence, MISS)
    run_steps(memory, sequence, 8, 16, 24, 32, 33)
    assert retained_tokens(memory, 2) == [8, 16]


def test_a_request_asks_for_boundaries_below_its_last_prompt_token(organization: str) -> None:
    # Prompts of 16 tokens: a boundary at 16 could never be reused by them.
    memory = toy_memory(organization, 60, retention=2)
    sequence = toy_sequence(memory, 1, 16)
    memory.admit(sequence, MISS)
    memory.release(sequence, 0)
    producer = toy_sequence(memory, 2, 16)
    memory.admit(producer, MISS)
    run_steps(memory, producer, 8, 16, 17, 18)
    assert retained_tokens(memory, 2) == [8]


def test_a_state_without_a_key_is_never_kept(organization: str) -> None:
    memory = toy_memory(organization, 60, retention=1)
    sequence = toy_sequence(memory, 1)
    memory.admit(sequence, MISS)
    run_steps(memory, sequence, 5, 12, 13)  # the states at 5 and 12 are no checkpoints
    assert retained_tokens(memory, 1) == []


def test_a_holder_keeps_a_state_that_it_adopted(organization: str) -> None:
    memory = toy_memory(organization, 60, retention=2)
    ask(memory, 1)
    memory.release(compute(memory, 2, 8), 8)
    adopter = toy_sequence(memory, 3)
    assert admit(memory, adopter, 64) == 8
    run_steps(memory, adopter, 9, 10, start=8)
    assert retained_tokens(memory, 3) == [8]


@pytest.mark.parametrize("leave", ["finish", "preempt"])
def test_a_kept_state_survives_pressure_until_its_holder_leaves(
    organization: str, leave: str
) -> None:
    memory = toy_memory(organization, 60, retention=1)
    sequence = compute(memory, 1, 17)
    (kept,) = sequence.retained
    pressure = [pool.take(pool.num_free) for pool in memory.cache.pools]
    assert kept.tokens == 8 and kept.key is not None
    if leave == "finish":
        memory.release(sequence, 17)
    else:
        memory.preempt(sequence, 17)
    assert kept.refs == 0 and set(kept.pages) <= set(memory.cache.states.pool.free_pages())
    for pool, pages in zip(memory.cache.pools, pressure, strict=True):
        free_last(pool, pages)
    assert all_free(memory)
    memory.check_integrity()


def test_without_retention_the_same_state_is_lost_under_pressure(organization: str) -> None:
    memory = toy_memory(organization, 60)
    sequence = compute(memory, 1, 17)
    for pool in memory.cache.pools:
        pool.take(pool.num_free)
    assert sequence.keys.checkpoints[0] not in memory.cache.checkpoint_index.oldest


# -- pinning ---------------------------------------------------------------------------------------


def pinned_tokens(memory: HybridMemory) -> dict[int | str, int]:
    return {request_id: state.tokens for request_id, state in memory.pinning.pins().items()}


def test_preemption_pins_the_rightmost_checkpoint(organization: str) -> None:
    memory = toy_memory(organization, 60, pinning=1)
    memory.preempt(compute(memory, 1, 28), 28)
    assert pinned_tokens(memory) == {1: 24}
    assert memory.cache.counters.pinned_checkpoints == 1
    memory.check_integrity()


def test_a_step_that_is_taken_back_is_not_pinned(organization: str) -> None:
    memory = toy_memory(organization, 60, pinning=1)
    sequence = compute(memory, 1, 16)
    memory.extend(sequence, 16, 24)
    memory.preempt(sequence, 16)
    assert pinned_tokens(memory) == {1: 16}


def test_a_request_without_a_checkpoint_pins_nothing(organization: str) -> None:
    memory = toy_memory(organization, 60, pinning=1)
    memory.preempt(compute(memory, 1, 7), 7)
    assert pinned_tokens(memory) == {}
    assert all_free(memory)


@pytest.mark.parametrize("threshold", [1, 2, 3])
def test_a_pin_needs_that_many_distinct_requesters(organization: str, threshold: int) -> None:
    memory = toy_memory(organization, 60, pinning=threshold)
    producer = compute(memory, 0, 16)
    for request_id in range(1, threshold):  # each adopts the boundary at 16
        adopter = toy_sequence(memory, request_id)
        assert admit(memory, adopter, 17) == 16
        memory.release(adopter, 16)
    if threshold > 1:
        # One adopter fewer, with the same one twice, must not do.
        other = toy_memory(organization, 60, pinning=threshold)
        victim = compute(other, 0, 16)
        for _ in range(threshold):
            adopter = toy_sequence(other, "same")
            admit(other, adopter, 17)
            other.release(adopter, 16)
        other.preempt(victim, 16)
        assert (pinned_tokens(other) == {0: 16}) == (threshold == 2)
    memory.preempt(producer, 16)
    assert pinned_tokens(memory) == {0: 16}


def test_a_boundary_without_enough_requesters_does_not_pass_the_pin_to_a_shallower_one(
    organization: str,
) -> None:
    memory = toy_memory(organization, 60, pinning=2)
    victim = compute(memory, 0, 28)
    adopter = toy_sequence(memory, 1)
    assert admit(memory, adopter, 17) == 16  # 16 would have two requesters, 24 has one
    memory.release(adopter, 16)
    memory.preempt(victim, 28)
    assert pinned_tokens(memory) == {}


def test_being_preempted_twice_is_one_requester(organization: str) -> None:
    memory = toy_memory(organization, 60, pinning=2)
    for _ in range(2):
        sequence = toy_sequence(memory, 1)
        adopted = admit(memory, sequence, 64)
        run_steps(memory, sequence, 16, start=adopted)
        memory.preempt(sequence, 16)
    assert pinned_tokens(memory) == {}


def test_the_protection_budget_bounds_the_pins(organization: str) -> None:
    # 61 pages (D0: 21 recurrent units); room for two pinned states and not for three.
    pages = 21 if organization == "d0" else 61
    protected = (2 * STATE[organization] + 0.5) / pages
    memory = toy_memory(organization, 60, pinning=1, protected=protected)
    for request_id in range(3):
        memory.preempt(compute(memory, request_id, 8, content=request_id), 8)
    assert pinned_tokens(memory) == {0: 8, 1: 8}
    memory.unpin(0)
    memory.preempt(compute(memory, 4, 8, content=4), 8)
    assert pinned_tokens(memory) == {1: 8, 4: 8}
    memory.check_integrity()


def test_a_pinned_checkpoint_survives_the_reassignment_of_all_free_pages(
    organization: str,
) -> None:
    memory = toy_memory(organization, 60, pinning=1)
    memory.preempt(compute(memory, 1, 16), 16)
    pinned = memory.pinning.pins()[1]
    for pool in memory.cache.pools:
        free_last(pool, pool.take(pool.num_free))
    assert (pinned.refs, pinned.key is None) == (1, False)
    assert list(memory.cache.checkpoint_index.oldest.values()) == [pinned]


class WatchedQueue(OrderedDict[int, None]):
    """Notes which pages join the queue."""

    joined: list[int]

    def __setitem__(self, page: int, value: None) -> None:
        super().__setitem__(page, value)
        if hasattr(self, "joined"):
            self.joined.append(page)


def test_a_resumed_request_has_its_own_references_before_the_pin_goes(organization: str) -> None:
    memory = toy_memory(organization, 60, pinning=1)
    sequence = compute(memory, 1, 16)
    memory.preempt(sequence, 16)
    pinned = memory.pinning.pins()[1]
    pool = memory.cache.states.pool
    queue = WatchedQueue(pages_in_order(pool))
    pool._queue.pages = queue
    queue.joined = []
    assert admit(memory, sequence, 17) == 16
    assert queue.joined == []  # at no time was the state free to be reassigned
    assert (sequence.state, pinned.refs, memory.pinning.num_pins) == (pinned, 1, 0)
    memory.check_integrity()


def test_a_pin_goes_also_when_the_resumed_request_cannot_use_it(organization: str) -> None:
    memory = toy_memory(organization, 60, pinning=1)
    sequence = compute(memory, 1, 16)
    blocks = list(sequence.blocks)
    memory.preempt(sequence, 16)
    reassign(memory.cache.attention_pool, *blocks)
    assert admit(memory, sequence, 17) == 0
    assert memory.pinning.num_pins == 0
    memory.release(sequence, 0)
    assert all_free(memory)
    memory.check_integrity()


def test_a_pin_goes_when_its_waiting_request_is_cancelled(organization: str) -> None:
    memory = toy_memory(organization, 60, pinning=1)
    memory.preempt(compute(memory, 1, 16), 16)
    memory.preempt(compute(memory, 2, 16, content="Y"), 16)
    memory.unpin(1)
    assert pinned_tokens(memory) == {2: 16}
    memory.unpin(1)  # nothing is left to drop
    memory.unpin(2)
    assert all_free(memory)
    memory.check_integrity()


def test_two_requests_may_pin_one_checkpoint(organization: str) -> None:
    memory = toy_memory(organization, 60, pinning=1)
    first = compute(memory, 1, 16)
    second = toy_sequence(memory, 2)
    assert admit(memory, second, 17) == 16
    memory.preempt(second, 16)
    memory.preempt(first, 16)
    pins = memory.pinning.pins()
    assert pins[1] is pins[2] and pins[1].refs == 2
    memory.check_integrity()
    memory.unpin(2)
    assert pins[1].refs == 1
    memory.unpin_all()
    assert all_free(memory)
    memory.check_integrity()


def test_without_pinning_preemption_takes_no_reference(organization: str) -> None:
    memory = toy_memory(organization, 60)
    memory.preempt(compute(memory, 1, 16), 16)
    assert all_free(memory)
    assert memory.cache.counters.pinned_checkpoints == 0


# -- making way ------------------------------------------------------------------------------------


def test_making_way_gives_up_pins_then_retained_states_then_the_cache(organization: str) -> None:
    memory = toy_memory(organization, 60, pinning=1, retention=1)
    memory.preempt(compute(memory, 1, 16, content="Y"), 16)
    sequence = compute(memory, 2, 17)
    assert (memory.pinning.num_pins, retained_tokens(memory, 2)) == (1, [8])
    assert memory.give_way(sequence)
    assert (memory.pinning.num_pins, retained_tokens(memory, 2)) == (0, [8])
    assert memory.give_way(sequence)
    assert retained_tokens(memory, 2) == [] and state_of(sequence).refs == 1
    assert memory.give_way(sequence)
    # What the request itself runs on is still there.
    assert [state.tokens for _, state in memory.cache.checkpoint_index] == [16]
    before = snapshot(memory)
    assert not memory.give_way(sequence)
    assert snapshot(memory) | {"supply": 0} == before | {"supply": 0}
    memory.check_integrity()


def test_a_cached_prefix_cannot_keep_the_last_request_out(organization: str) -> None:
    # The pool is as large as the request alone needs, and its own hit would be one state more.
    large = toy_memory(organization, 200, num_admission_states=2)
    need = large.max_need(17)
    memory = toy_memory(organization, need[0], num_states=need[-1], num_admission_states=2)
    leave_cached(memory, 1, 16)
    sequence = toy_sequence(memory, 2, 17)
    while (
        memory.refusal(sequence, hit := memory.lookup(sequence, 17), 17, nothing_runs=True)
        is not None
    ):
        assert memory.give_way()
    memory.admit(sequence, hit)
    run_steps(memory, sequence, *(end for end in (8, 16, 17) if end > hit.tokens), start=hit.tokens)


def test_supply_grows_with_everything_that_can_turn_a_refusal(organization: str) -> None:
    memory = toy_memory(organization, 60, pinning=1)
    sequence = toy_sequence(memory, 1)
    supply = memory.cache.supply

    def supply_grows() -> bool:
        nonlocal supply
        before, supply = supply, memory.cache.supply
        return supply > before

    admit(memory, sequence, 64)
    run_steps(memory, sequence, 1)
    assert not supply_grows()  # taking pages frees none
    run_steps(memory, sequence, 8, start=1)
    assert supply_grows()  # a checkpoint was published
    run_steps(memory, sequence, 9, start=8)
    assert not supply_grows()
    run_steps(memory, sequence, 10, start=9)
    assert supply_grows()  # a superseded state was released
    memory.preempt(sequence, 10)
    assert supply_grows()
    memory.unpin_all()
    assert supply_grows()
    memory.cache.release_blocks(memory.cache.attention_pool.take(1))
    assert supply_grows()
    memory.cache.reset()
    assert memory.lookup(sequence, 64).tokens == 0
