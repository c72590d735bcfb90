"""Scheduling against hand counts: a step takes 10 ms, 1 ms a decode and 0.1 ms a prefill token."""

from collections.abc import Sequence
from typing import Any

import pytest
from toy_engine import falcon_memory, play, request, toy_memory

from hsexp.measure.records import RunRecord
from hsexp.memory import Hit, Observer, SequenceMemory
from hsexp.trace import TraceRecorder
from hsexp.trace.episodes import depth_columns


def steps(record: RunRecord) -> list[tuple[int, float, int, int]]:
    """(number of equal steps, ms a step, decode tokens, prefill tokens), in time order."""
    table = record.steps
    return [
        (int(row.num_steps), round(row.step_s * 1e3, 6), row.decode_tokens, row.prefill_tokens)
        for row in table.itertuples()
    ]


def milliseconds(record: RunRecord, column: str) -> list[float]:
    return [round(seconds * 1e3, 6) for seconds in record.requests[column]]


def column(record: RunRecord, name: str) -> list[Any]:
    return record.requests[name].tolist()


class AdmissionLog(Observer):
    """Request ids and adopted tokens in order of admission."""

    def __init__(self) -> None:
        self.admissions: list[tuple[int | str, int]] = []

    def on_adopt(self, sequence: SequenceMemory, hit: Hit) -> None:
        self.admissions.append((sequence.request_id, hit.tokens))


class ReleaseLog(Observer):
    """Request ids in order of release."""

    def __init__(self) -> None:
        self.released: list[int | str] = []

    def on_release(self, sequence: SequenceMemory, num_tokens: int, *, preempted: bool) -> None:
        self.released.append(sequence.request_id)


# -- chunks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("organization", "beside_a_decode", "ends"),
    [
        ("s2", False, [2048, 3072, 3365]),
        ("s2", True, [1536, 3072, 3365]),  # 2,047 tokens are left: floored to the grid of 512
        ("s0", True, [1536, 3072, 3365]),
        ("d0", False, [1792, 3365]),
        ("d0", True, [1792, 3365]),
    ],
)
def test_a_miss_goes_in_chunks_that_end_on_the_grid_or_with_the_prompt(
    organization: str, beside_a_decode: bool, ends: list[int]
) -> None:
    requests = [request(3365, 1, at=0.001)]
    if beside_a_decode:
        requests.insert(0, request(1, 100))
    memory = falcon_memory(organization, "b63")
    record = play(requests, memory, token_budget=2048)
    chunks = [p for count, _, _, p in steps(record) for _ in range(count) if p > 1]
    starts = [0, *ends[:-1]]
    assert chunks == [end - start for start, end in zip(starts, ends, strict=True)]


def test_a_chunk_that_would_end_off_the_grid_before_the_prompt_does_is_floored() -> None:
    # 100 tokens of the first leave 1,948 of the budget; the second takes 1,536 of them.
    record = play(
        [request(100, 1), request(3365, 1)], falcon_memory("s2", "b63"), token_budget=2048
    )
    assert steps(record)[0] == (1, 10 + 163.6, 0, 100 + 1536)


def test_a_prompt_stops_at_its_last_boundary_although_the_budget_reaches_its_end() -> None:
    # Grid 4, budget 16: 6 tokens go 0 - 4 - 6, so that the state at 4 can be cached.
    record = play([request(6, 1)], toy_memory("s0", 20))
    assert steps(record) == [(1, 10.4, 0, 4), (1, 10.2, 0, 2)]


def test_a_chunk_that_rounds_to_nothing_ends_the_waiting_loop() -> None:
    # Budget 7: the first takes 4 of its 5 tokens (last boundary), and of the 3 left the second,
    # 9 tokens on a grid of 4, can use none. The third would fit whole, but waits behind it.
    # Then 1 + 4 + 2, and the rest of the second: 4 to its last boundary, 1 to its end.
    requests = [request(5, 1), request(9, 1), request(2, 1)]
    record = play(requests, toy_memory("s0", 40), token_budget=7, cap=7)
    assert milliseconds(record, "first_scheduled_s") == [0, 10.4, 10.4]
    assert steps(record) == [(1, 10.4, 0, 4), (1, 10.7, 0, 7), (1, 10.4, 0, 4), (1, 10.1, 0, 1)]


def test_a_prefill_without_budget_waits_while_decodes_go_on() -> None:
    # Budget 5, grid 4. Beside two decodes 3 tokens are left, less than a grid: the third request
    # waits until the second is through, and then takes 4 beside one decode, twice.
    requests = [request(1, 9), request(1, 4, at=0.011), request(8, 1, at=0.011)]
    record = play(requests, toy_memory("s0", 40), token_budget=5, cap=5)
    assert steps(record) == [
        (1, 10.1, 0, 1),
        (1, 11.0, 1, 0),  # the others arrive at 11 ms
        (1, 11.1, 1, 1),  # the second's prompt
        (3, 12.0, 2, 0),
        (2, 11.4, 1, 4),
        (1, 11.0, 1, 0),
    ]


# -- tokens and time -----------------------------------------------------------------------------


def test_the_first_token_comes_with_the_last_chunk_and_the_others_with_decodes() -> None:
    # 0 - 2,048 - 3,072 - 3,365: 214.8 + 112.4 + 39.3 ms; 3 outputs need 2 decodes of 11 ms.
    record = play([request(3365, 3)], falcon_memory("s2", "b63"), token_budget=2048)
    assert steps(record) == [
        (1, 214.8, 0, 2048),
        (1, 112.4, 0, 1024),
        (1, 39.3, 0, 293),
        (2, 11.0, 1, 0),
    ]
    assert milliseconds(record, "first_token_s") == [366.5]
    assert milliseconds(record, "finish_s") == [388.5]


def test_one_output_token_needs_no_decode() -> None:
    record = play([request(4, 1)], toy_memory("s0", 20))
    assert steps(record) == [(1, 10.4, 0, 4)]
    assert milliseconds(record, "finish_s") == milliseconds(record, "first_token_s") == [10.4]


@pytest.mark.parametrize("arrival_ms", [1.0, 10.4])
def test_an_arrival_during_a_step_is_seen_at_the_next(arrival_ms: float) -> None:
    record = play([request(4, 3), request(4, 1, at=arrival_ms / 1e3)], toy_memory("s0", 20))
    assert milliseconds(record, "first_scheduled_s") == [0, 10.4]


@pytest.mark.parametrize("num_decodes", [1, 2, 50])
def test_an_arrival_at_the_very_end_of_a_step_is_seen_at_once(num_decodes: int) -> None:
    # Blocks of 512 tokens: a hundred decodes after the 20 ms of the prefill are one leap.
    at = 20 + 11 * num_decodes
    requests = [request(100, 200), request(4, 1, at=at / 1e3)]
    record = play(requests, falcon_memory("s2", "b63"), token_budget=2048)
    assert milliseconds(record, "first_scheduled_s") == [0, at]


def test_an_arrival_in_a_long_stretch_of_decodes_is_seen_at_the_next_step() -> None:
    # Decode steps end at 10.4 + 11 n ms; the one that runs at 50 ms ends at 54.4.
    record = play([request(4, 100), request(4, 1, at=0.050)], toy_memory("s0", 60))
    assert milliseconds(record, "first_scheduled_s") == [0, 54.4]


def test_an_idle_engine_jumps_to_the_next_arrival() -> None:
    record = play([request(4, 1), request(4, 1, at=5.0)], toy_memory("s0", 20))
    assert milliseconds(record, "first_scheduled_s") == [0, 5000]
    assert record.steps["start_s"].tolist() == [0, 5]


def test_requests_of_one_instant_keep_their_order() -> None:
    log = AdmissionLog()
    play([request(3, 1) for _ in range(5)], toy_memory("s0", 40, observer=log), cap=2)
    assert [request_id for request_id, _ in log.admissions] == [0, 1, 2, 3, 4]


# -- admission -----------------------------------------------------------------------------------


def test_no_more_requests_run_than_the_cap_allows() -> None:
    # Each takes one step; the third is admitted when the first two are gone.
    record = play([request(3, 1) for _ in range(5)], toy_memory("s0", 40), cap=2)
    assert record.steps["running"].tolist() == [2, 2, 1]
    assert steps(record) == [(1, 10.6, 0, 6), (1, 10.6, 0, 6), (1, 10.3, 0, 3)]


def test_admission_stops_at_the_first_refusal() -> None:
    # S0, 8 pages. The first holds 2 blocks and a state (later 3 and 2). The second counts 6 blocks
    # and 2 states: only an empty pool has them. The third counts 1 + 2 and would fit all along.
    requests = [request(8, 3), request(24, 1), request(1, 1)]
    record = play(requests, toy_memory("s0", 8), token_budget=64)
    # 10.8 + 2 decodes of 11; then 12.4 for the second, whose 7 pages leave 1 of the 3 needed.
    assert milliseconds(record, "first_scheduled_s") == [0, 32.8, 45.2]


def test_a_request_is_released_before_the_next_step_is_scheduled() -> None:
    # 3 pages hold one request: its block and the two states that admission counts.
    record = play([request(3, 2), request(3, 1)], toy_memory("s0", 3))
    assert milliseconds(record, "finish_s")[0] == milliseconds(record, "first_scheduled_s")[1]


@pytest.mark.parametrize("fast_forward", [True, False])
def test_requests_that_finish_in_one_step_are_released_in_running_order(fast_forward: bool) -> None:
    # 0 prefills in steps 0, 1 and 2, and 1 beside it in step 1: 1 decodes first. Both end with
    # step 4.
    log = ReleaseLog()
    requests = [request(30, 3), request(3, 4)]
    record = play(requests, toy_memory("s0", 60, observer=log), fast_forward=fast_forward)
    assert column(record, "first_token_s")[0] > column(record, "first_token_s")[1]
    assert len(set(column(record, "finish_s"))) == 1
    assert log.released == [0, 1]


def test_headroom_must_stay_free_when_others_run_and_not_when_nothing_does() -> None:
    # 21 pages with the null page: H = floor(0.5 * 21) = 10. Each holds 2 pages and counts 3:
    # 3 <= 20, 13 <= 18, 13 <= 16, 13 <= 14, and 13 > 12 for the fifth.
    requests = [request(3, 1) for _ in range(5)]
    record = play(requests, toy_memory("s0", 20, headroom=0.5))
    assert milliseconds(record, "first_scheduled_s") == [0, 0, 0, 0, 11.2]


def test_running_requests_grow_into_the_headroom() -> None:
    # H = floor(0.9 * 11) = 9 of 10 pages; at its end the request has 6 blocks and 2 states.
    record = play([request(4, 20)], toy_memory("s0", 10, headroom=0.9))
    assert column(record, "num_preemptions") == [0]
    assert column(record, "status") == ["finished"]


def test_a_hit_that_is_being_computed_in_this_step_ends_the_waiting_loop() -> None:
    # The second finds the checkpoint at 4 that the first computes in this very step; it and the
    # third wait for the next step, where it adopts the 4 tokens.
    requests = [request(5, 1, shared=4), request(5, 1, shared=4), request(3, 1)]
    record = play(requests, toy_memory("s0", 40))
    assert milliseconds(record, "first_scheduled_s") == [0, 10.4, 10.4]
    assert column(record, "adopted_tokens") == [0, 4, 0]
    assert column(record, "prefill_tokens") == [5, 1, 3]


# -- preemption ----------------------------------------------------------------------------------


def test_the_youngest_is_preempted_and_resumes_first_from_what_is_cached() -> None:
    """S0, 6 pages, 2 states counted at admission.

    step 0    0 and 1 prefill 4 tokens each: a block and a state each, 2 pages free
    step 1    0 takes a block and a state; 1 finds none and is preempted; its 4 tokens stay cached
    steps 2-4 0 decodes; 1 needs 2 blocks, the cached state and 2 more: 5 of 3 (2) free pages
    step 5    1 resumes at 4 of 5 tokens (prompt and its first output): one token replayed;
              it holds 2 blocks, the cached state and a new one, so that 2 has to wait
    step 6    1 lets the cached state go: 3 pages are free for the one token of 2
    """
    log = AdmissionLog()
    requests = [request(4, 5), request(4, 5), request(1, 1)]
    record = play(requests, toy_memory("s0", 6, observer=log), cap=2)
    assert log.admissions == [(0, 0), (1, 0), (1, 4), (2, 0)]
    assert steps(record)[:3] == [(1, 10.8, 0, 8), (4, 11.0, 1, 0), (1, 10.1, 0, 1)]
    assert column(record, "num_preemptions") == [0, 1, 0]
    assert column(record, "replayed_tokens") == [0, 1, 0]
    assert column(record, "replayed_output_tokens") == [0, 1, 0]
    assert milliseconds(record, "first_token_s")[:2] == [10.8, 10.8]
    assert milliseconds(record, "finish_s")[:2] == [54.8, 98.0]  # 54.8 + 10.1 + 11.1 + 2 * 11


def test_a_trace_has_the_depths_of_the_first_admission() -> None:
    # The requests above: 1 entered and was admitted with nothing to reuse, and resumed at 4.
    requests = [request(4, 5), request(4, 5), request(1, 1)]
    record = play(requests, toy_memory("s0", 6), cap=2, trace=TraceRecorder())
    assert column(record, "num_preemptions") == [0, 1, 0]
    assert record.trace is not None
    assert depth_columns(record.trace, ["1"]).to_dict("list") == {
        "entry_joint_tokens": [0],
        "attention_tokens": [0],
        "recurrent_tokens": [0],
    }


def test_none_is_admitted_in_a_step_that_preempted() -> None:
    """A preempted request that retained states frees more than it counts to come back.

    S0, 18 pages, budget 5 on a grid of 4, retention from the first requester.

    step 0    0 prefills its 4 tokens
    steps 1-6 0 decodes; 1 prefills 4 tokens a step and keeps each state
    step 7    1 prefills its last token: 7 blocks, 7 states; 0 has 3 and 1: all 18 are taken
    step 8    both decode
    step 9    0 needs a block and a state: 1 goes, 12 of its 14 pages stay free. It counts
              7 blocks + the state at 24 + 2 states = 10, but waits for the next step
    step 10   it resumes at 24 of 27 tokens
    """
    requests = [request(4, 11), request(25, 3)]
    memory = toy_memory("s0", 18, retention=1)
    record = play(requests, memory, token_budget=5, cap=5)
    assert steps(record) == [
        (1, 10.4, 0, 4),
        (6, 11.4, 1, 4),
        (1, 11.1, 1, 1),
        (1, 12.0, 2, 0),
        (1, 11.0, 1, 0),
        (1, 11.3, 1, 3),
    ]
    assert column(record, "replayed_tokens") == [0, 3]
    assert column(record, "replayed_output_tokens") == [0, 2]  # the 26th and the 27th


def test_equal_requests_leave_equal_step_tables_in_any_organization_with_room() -> None:
    """Without pressure or sharing, only the grid of the chunks tells organizations apart."""
    requests: Sequence[Any] = [request(4 + i, 5, at=0.003 * i) for i in range(6)]
    records = [play(requests, toy_memory(name, 300)) for name in ("s0", "s1", "s2", "s3")]
    for record in records[1:]:
        assert record.steps.equals(records[0].steps)
        assert record.requests.equals(records[0].requests)
