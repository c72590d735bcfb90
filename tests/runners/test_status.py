"""Where a campaign stands is read from its ledgers alone; its progress is one line at any width."""

import io
from pathlib import Path

import commands
import pytest
from rich.console import Console
from small_launches import SMALL, carried_out
from toy_campaign import execute, toy_cell, toy_plan

from hsexp.ledger import Ledger, Provenance
from hsexp.ledger.claims import is_held
from hsexp.plan.cells import Plan
from runners.campaign import run_plan
from runners.pace import Pace, clock
from runners.recorded import Recorded
from runners.report import LaunchReport
from runners.status import Status


def launched(path: Path, plan: Plan) -> Ledger:
    ledger = Ledger.open(path, contract=plan.contract)
    run_plan(plan, ledger, execute, workers=1, console=Console(file=io.StringIO()))
    return ledger


def status(ledger: Ledger, plan: Plan) -> Status:
    return Status.of(Recorded(engine="sim", ledger=Ledger.read(ledger.path), plan=plan))


def test_every_planned_cell_is_accepted_running_failed_or_not_run_yet(tmp_path: Path) -> None:
    ledger = launched(tmp_path, toy_plan(toy_cell(1), toy_cell(2, "fail"), toy_cell(3, "fail")))
    plan = toy_plan(*(toy_cell(seed) for seed in range(1, 7)))
    with ledger.claim(toy_cell(4).cell_id) or pytest.fail("claimed"):
        found = status(ledger, plan)
    counts = (found.num_accepted, found.num_running, found.num_failed, found.num_open)
    assert (found.num_planned, *counts) == (6, 1, 1, 2, 2)
    assert sum(counts) == 6
    assert list(found.reasons.elements()) == [
        "ValueError: seed 2 is refused [sic]",
        "ValueError: seed 3 is refused [sic]",
    ]


def test_a_claim_that_was_released_runs_nothing_and_asking_leaves_it_free(tmp_path: Path) -> None:
    plan = toy_plan(toy_cell(1))
    ledger = Ledger.open(tmp_path, contract=plan.contract)
    claim = ledger.claim(toy_cell(1).cell_id)
    assert claim is not None
    assert ledger.running() == {toy_cell(1).cell_id}
    claim.release()
    assert ledger.running() == set()
    assert ledger.claim(toy_cell(1).cell_id) is not None


def test_a_lock_file_that_is_not_there_is_held_by_nobody(tmp_path: Path) -> None:
    assert not is_held(tmp_path / "absent.lock")


def test_time_left_counts_the_cells_that_a_launch_at_work_has_still_to_try(tmp_path: Path) -> None:
    ledger = launched(tmp_path, toy_plan(toy_cell(1), toy_cell(2, "fail")))
    plan = toy_plan(*(toy_cell(seed) for seed in range(1, 6)))
    ledger.launch(overrides=[], notes=[], provenance=Provenance.collect())
    launched(tmp_path, toy_plan(toy_cell(1), toy_cell(3)))
    with ledger.claim(toy_cell(4).cell_id) or pytest.fail("claimed"):
        found = status(ledger, plan)
    # The failed cell 2, 4 that runs, and 5; the launch has tried 3.
    assert found.num_due == 3
    assert found.pace.num_ended == 1
    assert any(line.endswith(" left") for line in found.lines())


def test_a_launch_asked_where_it_stands_runs_nothing_and_keeps_engines_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ("campaign=q6", *SMALL, "budget=b63", "engine=sim")
    _, before = carried_out(*small, "stage=status")
    assert "and no ledger below ledgers/q6: nothing has run" in before
    assert not any(tmp_path.iterdir())
    carried_out(*small)
    journal = (tmp_path / "ledgers/q6/sim/journal.jsonl").read_bytes()
    _, after = carried_out(*small, "stage=status")
    assert "q6: engine sim, ledger ledgers/q6/sim\n" in after
    planned = int(after.partition(" planned")[0].split()[-1])
    assert f"{planned} planned: {planned} accepted, 0 running now, 0 failed, 0 not run" in after
    assert (tmp_path / "ledgers/q6/sim/journal.jsonl").read_bytes() == journal
    _, other = carried_out(*small, "engine=vllm", "stage=status")
    assert "and no ledger below" in other


def test_a_status_in_a_pipe_of_40_columns_has_whole_lines(tmp_path: Path) -> None:
    env = commands.environment(COLUMNS="40")
    done = commands.run("campaign=q6", "stage=status", cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1
    assert len(done.stdout) > 40


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_the_progress_is_one_whole_line_at_any_width(width: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    cells = [toy_cell(seed) for seed in range(120)]
    with LaunchReport(toy_plan(*cells), console) as report:
        report._print("begun")
        for _ in range(3):
            report.advance(failed=2)
        report._progress.refresh()
        line = report._progress.columns[0]._text(report._progress.tasks[0])  # type: ignore[attr-defined]
    assert line.plain.startswith(("3/120 done", "toy, 3/120 done"))
    assert len(line) < width
    if width >= 40:
        assert "2 failed" in line.plain
        assert line.plain.endswith(" left")
    if width >= 80:
        assert "runs/min" in line.plain
    assert isinstance(console.file, io.StringIO)
    drawn = [part for part in console.file.getvalue().split("\n") if "done" in part]
    assert all(len(part.split("\r")[-1].replace("\x1b[2K", "")) <= width + 1 for part in drawn)


def test_a_pipe_sees_no_bar_even_where_colours_are_forced(tmp_path: Path) -> None:
    env = commands.environment(FORCE_COLOR="1", COLUMNS="40")
    small = ("campaign=q6", *SMALL, "budget=b63", "engine=sim")
    done = commands.run(*small, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert "━" not in done.stdout
    assert "\x1b[2K" not in done.stdout
    assert "done" not in done.stdout


@pytest.mark.parametrize(
    ("pace", "text"),
    [
        (Pace(num_ended=0, seconds=9.0), ""),
        (Pace(num_ended=82, seconds=120.0), "41 runs/min"),
        (Pace(num_ended=3, seconds=7200.0), "1.5 runs/h"),
    ],
)
def test_a_rate_is_unknown_before_the_first_end_and_slow_ones_count_hours(
    pace: Pace, text: str
) -> None:
    assert str(pace) == text
    assert (pace.seconds_for(2) is None) == (text == "")


def test_a_time_left_has_hours_from_one_hour_on() -> None:
    assert [clock(s) for s in (5.4, 312, 3912)] == ["0:05", "5:12", "1:05:12"]
