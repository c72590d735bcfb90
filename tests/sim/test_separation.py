"""Separated steps: prefill first, alone, and decodes in steps of their own (Appendix C.1)."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from toy_cases import ToyCase, toy_cases
from toy_engine import falcon_memory, falcon_workload, play, play_falcon, request, toy_memory

from hsexp.measure.metrics import summarize
from hsexp.measure.records import RunRecord


def steps(record: RunRecord) -> list[tuple[int, float, int, int]]:
    """(number of equal steps, ms a step, decode tokens, prefill tokens), in time order."""
    return [
        (int(row.num_steps), round(row.step_s * 1e3, 6), row.decode_tokens, row.prefill_tokens)
        for row in record.steps.itertuples()
    ]


def milliseconds(record: RunRecord, column: str) -> list[float]:
    return [round(seconds * 1e3, 6) for seconds in record.requests[column]]


@given(toy_cases())
@settings(max_examples=100, deadline=None)
def test_no_step_mixes_prefill_and_decode(case: ToyCase) -> None:
    separated = replace(case, engine=case.engine | {"separate": True})
    table = separated.run(separated.new_memory()).steps
    assert not ((table["prefill_tokens"] > 0) & (table["decode_tokens"] > 0)).any()


def test_a_decode_stands_still_while_another_request_prefills() -> None:
    # Mixed, the second's 4 tokens would share the first's last step: 11.4 ms instead of 10.4 + 11.
    requests = [request(4, 3), request(4, 1, at=0.011)]
    record = play(requests, toy_memory("s0", 40), separate=True)
    assert steps(record) == [(1, 10.4, 0, 4), (1, 11.0, 1, 0), (1, 10.4, 0, 4), (1, 11.0, 1, 0)]
    assert milliseconds(record, "finish_s") == [42.8, 31.8]
    assert summarize(record)["itl_p50_s"] == pytest.approx(0.0162)  # gaps of 11 and 21.4 ms


def test_a_prefill_step_has_the_whole_token_budget() -> None:
    # Beside the decode only 2,047 tokens would be left, which the grid floors to 1,536.
    requests = [request(1, 100), request(3365, 1, at=0.001)]
    record = play(requests, falcon_memory("s2", "b63"), token_budget=2048, separate=True)
    assert [p for _, _, _, p in steps(record) if p > 1] == [2048, 1024, 293]


def test_decodes_go_on_while_the_head_of_the_queue_does_not_fit() -> None:
    # 3 pages hold one request: its block and the two states that admission counts.
    record = play([request(3, 2), request(3, 1)], toy_memory("s0", 3), separate=True)
    assert steps(record) == [(1, 10.3, 0, 3), (1, 11.0, 1, 0), (1, 10.3, 0, 3)]


def test_one_request_alone_never_sees_a_difference() -> None:
    requests = [request(30, 20)]
    mixed = play(requests, toy_memory("s0", 40))
    separated = play(requests, toy_memory("s0", 40), separate=True)
    assert separated.steps.equals(mixed.steps)
    assert separated.requests.equals(mixed.requests)


@pytest.mark.parametrize("organization", ["d0_m512", "s2"])
def test_separation_costs_throughput_and_first_tokens_come_later(organization: str) -> None:
    # As the paper has it in all four conditions: every separated step pays a base of its own.
    workload = falcon_workload(1)
    mixed, separated = (
        summarize(play_falcon(workload, falcon_memory(organization, "b83"), separate=separate))
        for separate in (False, True)
    )
    assert separated["throughput_tok_per_s"] < mixed["throughput_tok_per_s"]  # type: ignore[operator]
    assert separated["ttft_p99_s"] > mixed["ttft_p99_s"]  # type: ignore[operator]
    assert separated["e2e_p99_s"] > mixed["e2e_p99_s"]  # type: ignore[operator]
