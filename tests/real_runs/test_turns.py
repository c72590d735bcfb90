"""Turns that wait for the answer before them, sent to a scripted server."""

from pathlib import Path

import pytest
from fake_runs import fake_run

from hsexp.workload import Request, Workload
from runners.vllm.execute import _behind_sent

SESSION = (
    "workload.columns.session=user",
    "workload.turns=closed",
    "workload.think_s=0.3",
)
TALK = ["arrival_s,input_tokens,output_tokens,user", "0,5,4,a", "0.1,12,3,a", "0.2,20,2,a", ""]


def test_a_turn_is_sent_a_think_time_after_the_answer_and_planned_then(tmp_path: Path) -> None:
    run = fake_run(tmp_path, *SESSION, trace=TALK, obeys=True, token_s=0.05)
    table = run.outcome().requests
    assert table.arrival_s[0] == 0.0
    for before, turn in ((0, 1), (1, 2)):
        assert table.arrival_s[turn] == pytest.approx(table.finish_s[before] + 0.3)
    assert (table.sent_s >= table.arrival_s).all()
    assert table.arrival_s[1] >= 0.5  # four tokens of 50 ms


def test_a_turn_behind_one_that_is_not_sent_waits_for_the_turn_before_that() -> None:
    fields = {"prompt_tokens": 4, "output_tokens": 2}
    requests = (
        Request(request_id=0, arrival_s=0.0, **fields),
        Request(request_id=1, arrival_s=1.0, after=0, think_s=1.0, **fields),
        Request(request_id=2, arrival_s=3.0, after=1, think_s=2.0, **fields),
        Request(request_id=3, arrival_s=7.0, after=2, think_s=4.0, **fields),
    )
    workload = Workload(name="toy", requests=requests)
    waits = [(r.after, r.think_s) for r in _behind_sent(workload, {1, 2})]
    assert waits[3] == (0, 7.0)
    first = [(r.after, r.arrival_s) for r in _behind_sent(workload, {0})]
    assert first[1] == (None, 1.0)
