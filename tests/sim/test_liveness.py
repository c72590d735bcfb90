"""Every request is served or refused with a reason; a run that cannot go on says so."""

from typing import Any

import pytest
from cores import replace_method
from hypothesis import given, settings
from toy_cases import ToyCase, toy_cases
from toy_engine import ORGANIZATIONS, falcon_memory, play, request, toy_memory

from hsexp.measure.records import RunRecord
from hsexp.memory import HybridMemory
from hsexp.sim.faults import NoProgress


def column(record: RunRecord, name: str) -> list[Any]:
    return record.requests[name].tolist()


def memory_of_one(name: str, num_tokens: int, **changes: Any) -> HybridMemory:
    """A memory that holds exactly one request of `num_tokens` computed tokens."""
    need = toy_memory(name, 1000).max_need(num_tokens)
    states = {"num_states": need[1]} if len(need) > 1 else {}
    return toy_memory(name, need[0], **states, **changes)


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        # 40 prompt tokens and the first output's: 41 computed tokens in blocks of 4 (D0: 2).
        ("s0", "needs 13 pages of pool shared alone, which has 12"),  # 11 + 2
        ("s1", "needs 19 pages of pool shared alone, which has 12"),  # 11 + 2 * 4
        ("s2", "needs 18 pages of pool shared alone, which has 12"),  # 11 + 2 * 3 + a slab
        ("s3", "needs 18 pages of pool shared alone, which has 12"),
        ("d0", "needs 21 pages of pool attention alone, which has 12"),
    ],
)
def test_a_request_that_never_fits_is_refused_at_once_and_the_rest_run_on(
    name: str, reason: str
) -> None:
    requests = [request(3, 5), request(40, 2, at=0.001), request(3, 5, at=0.002)]
    record = play(requests, toy_memory(name, 12))
    assert column(record, "status") == ["finished", "refused", "finished"]
    assert record.requests["reason"][1] == reason
    assert record.requests["first_scheduled_s"].isna().tolist() == [False, True, False]
    assert column(record, "generated_tokens") == [5, 0, 5]


def test_a_recurrent_pool_of_one_unit_refuses_a_request_that_crosses_a_boundary() -> None:
    # Grid 14: crossing needs the old and the new state. 14 computed tokens do not cross.
    memory = toy_memory("d0", 50, num_states=1)
    record = play([request(14, 1), request(14, 2)], memory)
    assert column(record, "status") == ["finished", "refused"]
    assert record.requests["reason"][1] == ("needs 2 pages of pool recurrent alone, which has 1")


def test_a_request_longer_than_the_model_serves_is_refused() -> None:
    record = play([request(60, 41), request(60, 40)], toy_memory("s0", 50), max_model_tokens=100)
    assert column(record, "status") == ["refused", "finished"]
    assert record.requests["reason"][0] == "101 tokens exceed the model's 100"


def test_a_run_of_nothing_but_refusals_ends() -> None:
    record = play([request(400, 1), request(400, 1, at=9.0)], toy_memory("s0", 12))
    assert column(record, "status") == ["refused", "refused"]
    assert record.steps.empty


def test_a_token_budget_below_the_checkpoint_grid_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"scheduler\.token_budget 7 .*grid \(8 tokens\)"):
        play([request(1, 1)], toy_memory("s0", 20, grid=8), token_budget=7, cap=1)


def test_a_cap_above_the_token_budget_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"admission\.cap 17 .*scheduler\.token_budget 16"):
        play([request(1, 1)], toy_memory("s0", 20), token_budget=16, cap=17)


# -- no dead ends --------------------------------------------------------------------------------


@given(toy_cases())
@settings(max_examples=150, deadline=None)
def test_every_request_ends_in_any_engine_that_starts(case: ToyCase) -> None:
    record = case.run(case.new_memory())
    assert set(record.requests["status"]) <= {"finished", "refused"}


@pytest.mark.parametrize("name", ORGANIZATIONS)
def test_a_pool_of_exactly_one_request_serves_one_after_the_other(name: str) -> None:
    # 30 prompt tokens and 9 outputs: 38 are computed.
    requests = [request(30, 9) for _ in range(4)]
    record = play(requests, memory_of_one(name, 38))
    assert (record.requests["status"] == "finished").all()
    assert column(record, "num_preemptions") == [0] * 4
    assert record.steps["running"].max() == 1


@pytest.mark.parametrize("name", ORGANIZATIONS)
def test_a_page_less_than_one_request_refuses_it(name: str) -> None:
    need = toy_memory(name, 1000).max_need(38)
    states = {"num_states": need[1]} if len(need) > 1 else {}
    record = play([request(30, 9)], toy_memory(name, need[0] - 1, **states))
    assert column(record, "status") == ["refused"]


@pytest.mark.parametrize("name", ORGANIZATIONS)
def test_a_cached_prefix_does_not_keep_the_last_request_out(name: str) -> None:
    """Admission counts a hit's state beside the request's own two, which a pool of exactly one
    request does not have; with nothing running there was no way out."""
    requests = [request(30, 9, shared=28) for _ in range(4)]
    record = play(requests, memory_of_one(name, 38, admission_states=2))
    assert (record.requests["status"] == "finished").all()


@pytest.mark.parametrize("name", ORGANIZATIONS)
def test_retained_states_do_not_keep_their_only_holder_from_growing(name: str) -> None:
    """Retention keeps one state a chunk: 7 and more, where the pool has two."""
    memory = memory_of_one(name, 70, retention=1)
    requests = [request(65, 6, shared=60) for _ in range(3)]
    record = play(requests, memory, token_budget=16)
    assert (record.requests["status"] == "finished").all()
    assert column(record, "num_preemptions") == [0] * 3


@pytest.mark.parametrize("name", ORGANIZATIONS)
def test_pins_never_keep_the_oldest_request_from_growing(name: str) -> None:
    """The younger one is preempted and its checkpoint pinned, in a pool that the oldest, with 40
    computed tokens, needs to the last page."""
    memory = memory_of_one(name, 40, pinning=1)
    record = play([request(4, 37), request(13, 20)], memory)
    assert (record.requests["status"] == "finished").all()
    assert record.counters["pinned_checkpoints"]
    assert column(record, "num_preemptions")[0] == 0


@pytest.mark.parametrize("name", ORGANIZATIONS)
def test_two_hundred_requests_in_turn_leave_the_pool_as_it_was(name: str) -> None:
    # A page lost with each of them would stop the run in a pool of exactly one request.
    memory = memory_of_one(name, 21)
    record = play([request(18, 4, shared=4 * (i % 4), content=i % 3) for i in range(200)], memory)
    assert (record.requests["status"] == "finished").all()
    memory.check_integrity()
    assert [pool.num_free for pool in memory.cache.pools] == [
        p.spec.num_usable for p in memory.cache.pools
    ]


@pytest.mark.parametrize("name", ORGANIZATIONS)
def test_the_longest_request_that_fits_is_admitted_to_an_empty_engine_with_headroom(
    name: str,
) -> None:
    memory = falcon_memory(name, "b63", headroom=0.35)
    blocks = memory.cache.attention_pool.spec.num_usable
    if len(memory.cache.pools) == 1:
        blocks -= memory.cache.states.pages_alone(2)
    longest = blocks * memory.block_size
    requests = [request(longest, 1), request(longest + 1, 1)]
    record = play(requests, memory, token_budget=2048)
    assert column(record, "status") == ["finished", "refused"]


def test_headroom_does_not_block_the_first_request_of_an_empty_pool() -> None:
    # 20 pages, H = floor(0.5 * 21) = 10; the request counts 10 + 2 = 12 pages, 60 %.
    record = play([request(40, 1)], toy_memory("s0", 20, headroom=0.5))
    assert column(record, "status") == ["finished"]
    assert column(record, "first_scheduled_s") == [0.0]


def test_two_requests_in_a_pool_for_one_and_a_half_are_preempted_once_each_at_most() -> None:
    # 24 computed tokens: 6 blocks + 2 states; 12 pages.
    record = play([request(8, 17), request(8, 17)], toy_memory("s0", 12))
    assert column(record, "num_preemptions") == [0, 1]


def test_preempting_again_and_again_beside_a_decode_is_not_taken_for_a_standstill() -> None:
    """Progress is any new token, not only one of the request that is preempted.

    S1, 15 pages; admission counts one state of 4 pages, so that it lets the second in too early.
    """
    requests = [request(6, 20), request(4, 24)]
    record = play(requests, toy_memory("s1", 15, admission_states=1), stall_steps=1)
    assert (record.requests["status"] == "finished").all()
    assert column(record, "num_preemptions")[1] > 1


# -- standstill ----------------------------------------------------------------------------------


def too_trusting(memory: HybridMemory) -> HybridMemory:
    """Lets every request in, as an estimate below the real need would."""
    replace_method(memory, "never_fits", lambda num_tokens: None)
    return memory


def test_a_request_that_nothing_makes_room_for_is_an_error_with_the_pools_state() -> None:
    memory = too_trusting(toy_memory("s0", 12))
    requests = [request(3, 1), request(60, 1, at=1.0)]
    with pytest.raises(NoProgress) as caught:
        play(requests, memory)
    assert str(caught.value).splitlines() == [
        "no progress at step 1, 1.000 s: 0 running, 1 waiting",
        "stuck: request 1 with 60 tokens, 0 preemptions",
        "pool shared: needs 17 + headroom 0 pages, 12 are free",
        "pool shared: 12 pages, 12 free (0 of them cached), 0 referenced",
        "pins: 0",
    ]


def test_a_request_that_only_preempts_itself_is_an_error_after_the_allowed_steps() -> None:
    # One recurrent unit, and admission counts one: the second chunk can never have its own.
    # A preemption and a step without a token each count: 2, 4, 6 > 5.
    memory = too_trusting(toy_memory("d0", 40, num_states=1))
    with pytest.raises(NoProgress) as caught:
        play([request(20, 1)], memory, stall_steps=5)
    report = str(caught.value)
    assert "stuck: request 0 with 20 tokens, 3 preemptions" in report
    assert "pool recurrent: 1 pages, 1 free (1 of them cached), 0 referenced" in report
