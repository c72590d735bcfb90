"""Fast-forward leaps over steps without changing anything that is recorded."""

import pytest
from hypothesis import given, settings
from toy_cases import ToyCase, talking_cases, toy_cases
from toy_engine import (
    ORGANIZATIONS,
    falcon_memory,
    falcon_workload,
    hit_first,
    play,
    play_falcon,
    request,
    toy_memory,
)

from hsexp.measure.records import RunRecord
from hsexp.memory.policies.waiting import FIRST_COME


def assert_equal_records(leaping: RunRecord, stepping: RunRecord) -> None:
    assert leaping.requests.equals(stepping.requests)
    assert leaping.steps.equals(stepping.steps)
    assert leaping.counters == stepping.counters


@given(toy_cases())
@settings(max_examples=250, deadline=None)
def test_leaping_and_stepping_leave_the_same_record(case: ToyCase) -> None:
    assert_equal_records(
        case.run(case.new_memory()), case.run(case.new_memory(), fast_forward=False)
    )


@given(talking_cases())
@settings(max_examples=250, deadline=None)
def test_so_they_do_where_turns_go_on_from_the_last_state_of_others(case: ToyCase) -> None:
    assert_equal_records(
        case.run(case.new_memory()), case.run(case.new_memory(), fast_forward=False)
    )


def test_a_block_of_an_answer_is_found_from_the_step_that_fills_it() -> None:
    """Both turns hold the first block; the turn that fills it first publishes it first."""
    case = ToyCase(
        organization="s0",
        num_pages=8,
        memory={"num_states": 1, "grid": 8, "admission_states": 1, "reserve": 0.0}
        | {"eviction": "lru", "leaves": "final"},
        engine={"cap": 3, "token_budget": 14},
        requests=[{"prompt": 1, "output": 1, "at": 0.0, "shared": 0, "content": 0}],
        isolated=False,
        talks=[[(1, 1, 0.02)], [(1, 1, 0.0), (1, 2, 0.0), (1, 2, 0.0), (1, 1, 0.0)]],
    )
    stepping = case.run(case.new_memory(), fast_forward=False)
    assert_equal_records(case.run(case.new_memory()), stepping)
    assert stepping.counters["refusals"] == 2


CELLS = {
    # Cap, load and policy vary together so that each organization meets each of them once.
    "base": {"budget": "b63"},
    "overload": {"budget": "b108", "cap": 109, "rate": 4.5, "retention": "k2"},
    "headroom": {"budget": "b83", "headroom": 0.27, "pinning": "k1", "sharing": 0.5},
    "small cap": {"budget": "b63", "cap": 8, "rate": 1.7, "isolated": True},
    "separated": {"budget": "b83", "headroom": 0.19, "pinning": "k1", "separate": True},
    "other orders": {"budget": "b63", "rate": 4.5, "eviction": "lru", "waiting": hit_first(10.0)},
    "promised": {"budget": "b63", "rate": 4.5, "reservation": "promised", "placement": "junction"},
    "restart points": {"budget": "b63", "headroom": 0.19, "eviction": "restart_point"},
    "in place": {"budget": "b63", "rate": 4.5, "states": "in_place", "placement": "junction"},
    "both": {"budget": "b83", "states": "in_place", "reservation": "promised", "sharing": 0.5},
    "priced": {
        "budget": "b63",
        "rate": 4.5,
        "sharing": 0.5,
        "eviction": "restart_point",
        "retention": "priced",
    },
    "separated, crowded": {"budget": "b63", "retention": "k2", "rate": 4.5, "separate": True},
}


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_leaping_and_stepping_agree_over_300_requests(organization: str, cell: str) -> None:
    settings = dict(CELLS[cell])
    load = {key: settings.pop(key) for key in ("rate", "sharing", "isolated") if key in settings}
    scheduling = {
        "cap": settings.pop("cap", 63),
        "separate": settings.pop("separate", False),
        "waiting": settings.pop("waiting", FIRST_COME),
    }
    workload = falcon_workload(1, **load)

    def run(*, fast_forward: bool) -> RunRecord:
        memory = falcon_memory(organization, **settings)
        return play_falcon(workload, memory, fast_forward=fast_forward, **scheduling)

    leaping, stepping = run(fast_forward=True), run(fast_forward=False)
    assert (leaping.requests["status"] == "finished").all()
    assert_equal_records(leaping, stepping)


def test_refusals_are_not_counted_where_the_budget_has_no_chunk_for_the_head() -> None:
    """Found by the property above; only the count was wrong.

    D0, 3 units, each admission counts 2; budget 14 = one grid. Beside two decodes 12 tokens are
    left: enough for the one token behind the cached 14, so that request 4 is asked and refused, and
    too few for the first 14 once a decode has reassigned a page of that hit.
    """
    requests = [
        request(15, 1, shared=14),  # leaves a checkpoint and its 7 blocks cached
        request(2, 12, at=0.011),  # decodes
        request(11, 1, at=0.023),  # leaves 5 cached pages behind those
        request(2, 12, at=0.034),  # decodes; one unit is free, the cached one
        request(15, 1, at=0.045, shared=14),
    ]

    def run(*, fast_forward: bool) -> RunRecord:
        memory = toy_memory("d0", 19, num_states=3, admission_states=2)
        return play(requests, memory, token_budget=14, fast_forward=fast_forward)

    leaping, stepping = run(fast_forward=True), run(fast_forward=False)
    assert stepping.counters["refusals"] == 5
    assert_equal_records(leaping, stepping)


def test_a_head_is_tried_again_when_the_hit_it_would_have_to_hold_is_lost() -> None:
    """Found by the property above: the refusal was remembered although its reason had gone.

    D0, 3 units, each admission counts 2. When request 3 comes, the free queue holds a plain unit
    and the checkpoint at 14 that request 0 left: adopting it takes 1 + 2 > 2 units. Then request 1
    decodes into a page of the cached prefix, the hit is gone, and 2 units are enough.
    """
    requests = [
        request(15, 1, shared=14),  # steps 0 and 1, leaves pages 7, 6, ... 1 cached
        request(2, 12),  # decodes from step 1 on; a new page at steps 1, 3, 5, ...
        request(12, 1, at=0.012),  # step 2, leaves 6 cached pages behind those
        request(15, 1, at=0.040, shared=14),  # refused at step 4; page 7 is reassigned at step 5
    ]

    def run(*, fast_forward: bool) -> RunRecord:
        memory = toy_memory("d0", 16, num_states=3, admission_states=2)
        return play(requests, memory, fast_forward=fast_forward)

    leaping, stepping = run(fast_forward=True), run(fast_forward=False)
    # 11.6 + 11.1 + 12.2 + 11 + 11 ms
    assert leaping.requests["first_scheduled_s"][3] == pytest.approx(0.0569)
    assert_equal_records(leaping, stepping)
