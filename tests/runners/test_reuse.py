"""Runs taken over from another campaign's ledger: by reference, and counted once."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from small_launches import SMALL, carried_out
from toy_campaign import CONTRACT, execute, toy_cell, toy_requests

from hsexp.ledger import Ledger, LedgerError, Provenance
from runners.trial import try_cell

SEED = 1
CELL = toy_cell(SEED)


def ledger(path: Path) -> Ledger:
    return Ledger.open(path, contract=CONTRACT)


def ledger_with_run(path: Path) -> Ledger:
    """A ledger that has accepted CELL."""
    made = ledger(path)
    trial = try_cell(execute, Provenance.collect(), CELL)
    made.record(trial.attempt, requests=trial.requests)
    return made


def origins(path: Path) -> list[str | None]:
    """Where the counting runs stand, one each."""
    return [None if pd.isna(text) else text for text in Ledger.read(path).frame()["reused_from"]]


# -- one reference ---------------------------------------------------------------------------------


def test_a_reference_is_a_counting_row_without_a_table_of_its_own(tmp_path: Path) -> None:
    source, user = ledger_with_run(tmp_path / "q1"), ledger(tmp_path / "q4")
    user.refer(CELL, source)
    frame = Ledger.read(tmp_path / "q4").frame()
    assert frame[["cell_id", "span_s"]].to_numpy().tolist() == [[CELL.cell_id, float(SEED)]]
    assert origins(tmp_path / "q4") == [f'{{"ledger": "../q1", "attempt_id": "{CELL.cell_id}-1"}}']
    assert list((tmp_path / "q4" / "requests").iterdir()) == []


def test_the_table_of_a_reference_is_read_where_the_run_stands(tmp_path: Path) -> None:
    source, user = ledger_with_run(tmp_path / "q1"), ledger(tmp_path / "q4")
    user.refer(CELL, source)
    pd.testing.assert_frame_equal(user.request_table(CELL.cell_id), toy_requests())
    assert user.requests()["cell_id"].tolist() == [CELL.cell_id] * 2


def test_a_run_that_two_processes_take_over_counts_once(tmp_path: Path) -> None:
    source, ours, theirs = ledger_with_run(tmp_path / "q1"), *[ledger(tmp_path / "q4")] * 2
    assert ours.refer(CELL, source) == theirs.refer(CELL, source)
    assert len(Ledger.read(tmp_path / "q4").attempts()) == 1


def test_a_cell_that_ran_here_in_the_meantime_keeps_its_own_run(tmp_path: Path) -> None:
    source, user = ledger_with_run(tmp_path / "q1"), ledger_with_run(tmp_path / "q4")
    user.refer(CELL, source)
    assert origins(tmp_path / "q4") == [None]


def test_a_reference_to_a_reference_names_the_origin(tmp_path: Path) -> None:
    first = ledger_with_run(tmp_path / "q1" / "sim")
    second, third = ledger(tmp_path / "q3" / "sim"), ledger(tmp_path / "deeper" / "q4" / "sim")
    second.refer(CELL, first)
    third.refer(CELL, second)
    shutil.rmtree(tmp_path / "q3")  # the table is not there
    (origin,) = origins(tmp_path / "deeper" / "q4" / "sim")
    assert origin is not None
    assert '"../../../q1/sim"' in origin
    pd.testing.assert_frame_equal(third.request_table(CELL.cell_id), toy_requests())


@pytest.mark.parametrize("state", ["not run", "failed", "excluded"])
def test_what_the_source_does_not_count_is_not_taken_over(tmp_path: Path, state: str) -> None:
    source, user = ledger(tmp_path / "q1"), ledger(tmp_path / "q4")
    if state == "failed":
        source.record(try_cell(execute, Provenance.collect(), toy_cell(SEED, "fail")).attempt)
    if state == "excluded":
        source = ledger_with_run(tmp_path / "q1")
        source.exclude(CELL.cell_id, f"{CELL.cell_id}-1", reason="clock was wrong")
    with pytest.raises(LedgerError, match="is not accepted there"):
        user.refer(CELL, source)
    assert user.attempts().empty


# -- launches --------------------------------------------------------------------------------------


def test_a_launch_takes_over_what_another_campaign_ran_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    budgets = [*SMALL, "budget=b63"]
    carried_out("campaign=q1", *budgets)
    _, printed = carried_out("campaign=q4", *budgets)  # q3, which it reuses too, has not run
    assert "q4: 1 runs of q1 are reused by reference" in printed
    assert "1 cells, 1 already accepted, 0 to run" in printed
    _, again = carried_out("campaign=q4", *budgets)
    assert "reused" not in again
    assert len(Ledger.read("ledgers/q4/sim").attempts()) == 1


def test_a_reference_that_is_excluded_is_run_anew_and_not_taken_over_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    carried_out("campaign=q1", *SMALL, "budget=b63")
    carried_out("campaign=q4", *SMALL, "budget=b63")
    user = Ledger.open("ledgers/q4/sim")
    ((cell_id, attempt_id),) = user.accepted().items()
    user.exclude(cell_id, attempt_id, reason="to be checked")
    _, printed = carried_out("campaign=q4", *SMALL, "budget=b63")
    assert "reused" not in printed
    assert "1 cells, 0 already accepted, 1 to run" in printed
    assert origins(Path("ledgers/q4/sim")) == [None]


def test_a_campaign_whose_tables_read_steps_runs_again_what_kept_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its recipe, record_steps=true, once answered "0 to run"."""
    monkeypatch.chdir(tmp_path)
    overrides = [*SMALL, "campaign=submitted_work", "budget=b63", "trace=false"]
    _, printed = carried_out(*overrides, "campaign.record_steps=false")
    assert "0 already accepted, 1 to run" in printed
    before = Ledger.read("ledgers/submitted_work/sim").frame()
    _, printed = carried_out(*overrides)
    assert "1 accepted runs kept no step table and are run again" in printed
    assert "0 already accepted, 1 to run" in printed
    ledger = Ledger.read("ledgers/submitted_work/sim")
    (cell_id,) = ledger.accepted()
    assert ledger.step_table(cell_id)["num_steps"].sum() == before["num_steps"][0]
    _, printed = carried_out(*overrides)
    assert "1 already accepted, 0 to run" in printed


def test_a_reference_to_a_run_without_steps_does_not_do_for_a_campaign_that_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = ["stage=run", "workers=1", "workload.num_requests=4", "seeds=[0]", "budget=b63"]
    overrides += ["organization=s2", "admission.cap=63", "arrivals.rate_per_s=3.0"]
    carried_out("campaign=q5", *overrides)
    overrides.append("trace=false")
    result, printed = carried_out("campaign=submitted_work", *overrides)
    assert result.exit_code == 0
    assert "1 runs of q5 are reused by reference" in printed
    assert "1 accepted runs kept no step table and are run again" in printed
    assert origins(Path("ledgers/submitted_work/sim")) == [None]
    _, printed = carried_out("campaign=submitted_work", *overrides)
    assert "1 already accepted, 0 to run" in printed
