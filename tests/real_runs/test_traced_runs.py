"""A traced run has a whole trace of its episode, or it is no run at all (Appendix D.4)."""

from pathlib import Path

import pytest
from fake_runs import fake_run, launch, seeds_plan, write_script

from hsexp.ledger import Ledger
from hsexp.measure.records import DEPTH_COLUMNS
from hsexp.trace import Trace, TraceError
from hsexp.trace.file import read_trace_file
from runners.vllm.faults import EngineDied, TraceRefused


def test_a_traced_run_has_the_events_of_its_episode_and_its_requests(tmp_path: Path) -> None:
    outcome = fake_run(tmp_path, "trace=true", "engine.num_warmup_requests=2").outcome()
    trace = outcome.trace
    assert trace is not None
    enters, steps = trace.rows("enter"), trace.rows("step")
    assert sorted(each.id for each in enters) == ["0", "1", "2"]  # two warm-ups came before
    assert [each.request for each in enters] == [0, 1, 2]
    assert enters[0].step == 0 and steps[0].step == 1
    assert len(steps) == 12
    requests = outcome.requests.set_index("request_id")
    for enter in enters:
        row = requests.loc[int(enter.id)]
        assert row["sent_s"] < enter.time_ns / 1e9 < row["first_token_s"]
    assert outcome.steps is not None
    starts_s = [each.time_ns / 1e9 for each in steps]
    assert sorted(starts_s) == pytest.approx(sorted(outcome.steps["start_s"]), abs=1e-6)
    assert outcome.requests[list(DEPTH_COLUMNS)].to_numpy().tolist() == [[0, 0, 0]] * 3
    (folder,) = (tmp_path / "logs").iterdir()
    assert not (folder / "trace.arrow").exists()  # the ledger has it


def test_an_untraced_run_has_no_trace_and_none_of_its_columns(tmp_path: Path) -> None:
    outcome = fake_run(tmp_path).outcome()
    assert outcome.trace is None
    assert not set(DEPTH_COLUMNS) & set(outcome.requests)


def test_a_lost_connection_leaves_its_first_try_under_another_name(tmp_path: Path) -> None:
    outcome = fake_run(tmp_path, "trace=true", drop=1, one_at_a_time=True).outcome()
    assert outcome.trace is not None and outcome.requests["num_retries"].sum() == 1
    retried = int(outcome.requests["num_retries"].to_numpy().argmax())
    names = sorted(each.id for each in outcome.trace.rows("enter"))
    assert names == sorted(["0", "1", "2", f"{retried} try 0"])


FAULTS = {
    "none": r"the trace has no end record after \d+ events",
    "gap": r"the trace has a gap at event \d+",
    "full": "the trace has dropped 3 events in 1 failed writes",
    "torn": r"trace\.arrow: the trace is torn",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_whose_trace_is_not_whole_fails_although_every_request_has_finished(
    fault: str, tmp_path: Path
) -> None:
    run = fake_run(tmp_path, "trace=true", trace_fault=fault)
    with pytest.raises(TraceRefused, match=FAULTS[fault]):
        run.outcome()
    assert run.living() == []


def test_a_refused_trace_is_a_failed_attempt_and_a_whole_one_is_in_the_ledger(
    tmp_path: Path,
) -> None:
    run = fake_run(tmp_path, "trace=true", trace_fault="none")
    plan = seeds_plan(run.cell, 1)
    launch(tmp_path / "ledger", plan, run.script)
    write_script(run.script, run.cell)
    launch(tmp_path / "ledger", plan, run.script)
    ledger = Ledger.read(tmp_path / "ledger")
    attempts = ledger.attempts()
    assert attempts["status"].tolist() == ["failed", "ok"]
    assert attempts["reason"][0].startswith("TraceRefused: the trace has no end record after")
    assert len(ledger.trace(plan.cells[0].cell_id).rows("release")) == 3


def test_an_engine_that_dies_leaves_a_trace_that_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineDied):
        fake_run(tmp_path, "trace=true", die_after_tokens=5).outcome()
    (folder,) = (tmp_path / "logs").iterdir()
    table = read_trace_file(folder / "trace.arrow")
    assert len(table) > 10
    with pytest.raises(TraceError, match="no end record"):
        Trace(table)
