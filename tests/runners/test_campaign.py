"""Launches of toy campaigns: what fails, dies, is killed or shared leaves one run a cell."""

import array
import fcntl
import io
import os
import random
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import commands
import pandas as pd
import pytest
from rich.console import Console
from toy_campaign import (
    CONTRACT,
    execute,
    toy_cell,
    toy_plan,
    toy_requests,
    with_steps,
    with_steps_and_other_metrics,
)

from hsexp.ledger import Ledger, LedgerError
from hsexp.plan.cells import Cell, Plan
from runners import campaign
from runners.campaign import Outcome, Summary, run_plan
from runners.pool import WorkerPool
from runners.trial import Trial

PROGRAM = Path(__file__).with_name("toy_campaign.py")


def launch(
    path: Path, plan: Plan, *, workers: int = 1, terminal: bool = False
) -> tuple[Summary, str]:
    """Run a plan here; the summary and what the console was told."""
    console = Console(file=io.StringIO(), force_terminal=terminal, width=200)
    ledger = Ledger.open(path, contract=plan.contract)
    summary = run_plan(plan, ledger, execute, workers=workers, console=console)
    assert isinstance(console.file, io.StringIO)
    return summary, console.file.getvalue()


def _hear_ctrl_c() -> None:
    """Where the tests run in the background of a shell, SIGINT is ignored and would stay so."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def launched(path: Path, *cells: str, workers: int = 1) -> Iterator["subprocess.Popen[str]"]:
    """Run a plan in a process group of its own, as a terminal would; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(path), str(workers), *cells],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_hear_ctrl_c,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def statuses(path: Path) -> dict[int, list[str]]:
    """Each seed's attempts in order, the one that counts in capitals."""
    found: dict[int, list[str]] = {}
    columns = ["seed", "status", "adopted"]
    for seed, status, adopted in Ledger.read(path).attempts()[columns].to_numpy():
        found.setdefault(seed, []).append(status.upper() if adopted else status)
    return found


# -- one launch ------------------------------------------------------------------------------------


def test_every_planned_cell_runs_once_and_a_second_launch_runs_none(tmp_path: Path) -> None:
    plan = toy_plan(*(toy_cell(seed) for seed in range(5)))
    first, _ = launch(tmp_path, plan, workers=2)
    second, _ = launch(tmp_path, plan, workers=2)
    assert (first.planned, first.already_accepted, first.run_now, first.failed) == (5, 0, 5, 0)
    assert (second.planned, second.already_accepted, second.run_now) == (5, 5, 0)
    assert first.is_complete
    assert second.is_complete
    assert statuses(tmp_path) == {seed: ["OK"] for seed in range(5)}
    table = Ledger.read(tmp_path).request_table(toy_cell(3).cell_id)
    pd.testing.assert_frame_equal(table, toy_requests())


def test_what_goes_wrong_in_a_cell_is_a_row_with_its_reason_and_the_others_run(
    tmp_path: Path,
) -> None:
    actions = ["fail", "kill", "exit:3", "infinite", "ok"]
    plan = toy_plan(*(toy_cell(seed, action) for seed, action in enumerate(actions)))
    summary, text = launch(tmp_path, plan)
    assert (summary.run_now, summary.failed, summary.is_complete) == (5, 4, False)
    attempts = Ledger.read(tmp_path).attempts().set_index("seed")
    assert attempts["reason"].fillna("-").sort_index().tolist() == [
        "ValueError: seed 0 is refused [sic]",
        "worker died: killed by SIGKILL (out of memory?)",
        "worker died: exit code 3",
        "ValueError: metric span_s must be finite or unknown, got inf",
        "-",
    ]
    assert "toy: failed: organization=s2 headroom=None seed=0: ValueError: seed 0" in text
    trace = attempts["traceback"][0]
    assert 'File "toy_campaign.py", line' in trace
    assert "raise ValueError" in trace
    assert str(PROGRAM.parent) not in trace


def test_a_failed_cell_runs_again_at_the_next_launch_and_its_failure_stays(tmp_path: Path) -> None:
    launch(tmp_path, toy_plan(toy_cell(1, "fail"), toy_cell(2)))
    summary, _ = launch(tmp_path, toy_plan(toy_cell(1), toy_cell(2)))
    assert (summary.already_accepted, summary.run_now) == (1, 1)
    assert statuses(tmp_path) == {1: ["failed", "OK"], 2: ["OK"]}


def test_the_order_of_the_plan_does_not_change_the_analysis_frame(tmp_path: Path) -> None:
    cells = [toy_cell(seed) for seed in range(4)]
    launch(tmp_path / "forward", toy_plan(*cells))
    launch(tmp_path / "backward", toy_plan(*reversed(cells)), workers=2)
    forward, backward = (Ledger.read(tmp_path / name).frame() for name in ("forward", "backward"))
    when = ["started_at", "wall_s"]
    pd.testing.assert_frame_equal(forward.drop(columns=when), backward.drop(columns=when))


def test_a_plan_of_another_contract_is_refused_by_field_before_anything_runs(
    tmp_path: Path,
) -> None:
    ledger = Ledger.open(tmp_path, contract=CONTRACT)
    other = {**CONTRACT, "workload": {"num_requests": 3}}
    plan = Plan(campaign="toy", cells=(toy_cell(1),), contract=other, notes=())
    with pytest.raises(LedgerError, match="num_requests: ledger has 2, this run has 3"):
        run_plan(plan, ledger, execute, workers=1, console=Console(quiet=True))
    assert ledger.attempts().empty


def test_a_ledger_that_cannot_be_written_stops_the_launch_and_names_the_path(
    tmp_path: Path,
) -> None:
    plan = toy_plan(toy_cell(1), toy_cell(2))
    ledger = Ledger.open(tmp_path, contract=CONTRACT)
    (tmp_path / "requests").rmdir()
    (tmp_path / "requests").write_text("no folder")
    with pytest.raises(LedgerError, match=r"requests/.*cannot be written: Not a directory"):
        run_plan(plan, ledger, execute, workers=1, console=Console(quiet=True))
    assert ledger.accepted() == {}


def test_a_terminal_sees_a_bar_and_a_file_sees_plain_lines(tmp_path: Path) -> None:
    plan = toy_plan(toy_cell(1), toy_cell(2))
    _, plain = launch(tmp_path / "file", plan)
    _, drawn = launch(tmp_path / "terminal", plan, terminal=True)
    first, last = plain.splitlines()
    assert first == "toy: 2 cells, 0 already accepted, 2 to run"
    assert last.startswith("toy: 2 run in ")
    assert "━" in drawn
    assert "2/2" in drawn


# -- launches that are ended -----------------------------------------------------------------------


def test_a_launch_killed_at_any_time_is_finished_by_the_next_one(tmp_path: Path) -> None:
    cells = [f"{seed}=sleep:0.01" for seed in range(40)]
    generator = random.Random(0)
    for _ in range(2):
        done = len(statuses(tmp_path)) if (tmp_path / "journal.jsonl").exists() else 0
        with launched(tmp_path, *cells, workers=2) as process:
            commands.wait_for_attempts(tmp_path, done + generator.randrange(1, 10))
            process.kill()
    before = Ledger.read(tmp_path).accepted()
    assert 0 < len(before) < 40
    with launched(tmp_path, *cells, workers=2) as process:
        process.wait()
    assert statuses(tmp_path) == {seed: ["OK"] for seed in range(40)}
    assert before.items() <= Ledger.read(tmp_path).accepted().items()


def test_a_killed_launch_leaves_no_worker_behind(tmp_path: Path) -> None:
    with launched(tmp_path, "1=ok", "2=sleep:3600") as process:
        commands.wait_for_attempts(tmp_path, 1)
        process.kill()
        process.wait()
        # The workers hold the other ends of the pipes: the end of both files is their end too.
        process.communicate(timeout=20)


def test_ctrl_c_keeps_what_had_ended_and_stops_at_once(tmp_path: Path) -> None:
    with launched(tmp_path, "1=ok", "2=ok", "3=sleep:3600", "4=ok", workers=1) as process:
        commands.wait_for_attempts(tmp_path, 2)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "toy: stopped; 2 runs of this launch are recorded" in out
    assert err == ""
    assert statuses(tmp_path) == {1: ["OK"], 2: ["OK"]}


def test_ctrl_c_while_the_workers_start_is_as_quiet(tmp_path: Path) -> None:
    with launched(tmp_path, "1=ok", "2=ok", workers=2) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.1)  # both are importing by now
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err == ""


def num_unread(connection: Connection) -> int:
    """Bytes that a pipe holds."""
    count = array.array("i", [0])
    fcntl.ioctl(connection.fileno(), termios.FIONREAD, count)
    return count[0]


def wait_until(holds: Callable[[], bool], *, most_s: float = 60.0) -> None:
    give_up = time.monotonic() + most_s
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_ctrl_c_keeps_a_result_that_nobody_has_read_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second cell ends, and Ctrl-C comes, while the first one is being recorded."""
    gate = tmp_path / "gate"
    plan = toy_plan(toy_cell(1), toy_cell(2, f"fail-when:{gate}"))
    stock, make = Ledger.record, WorkerPool.__init__
    pools: list[WorkerPool[Cell, Trial]] = []

    def record(self: Ledger, *args: Any, **kwargs: Any) -> Any:
        result = stock(self, *args, **kwargs)
        if not gate.exists():
            gate.touch()
            (busy,) = [worker for worker in pools[0]._workers if worker.task is not None]
            wait_until(lambda: num_unread(busy.connection) > 64)  # more than "ready"
            os.kill(os.getpid(), signal.SIGINT)
        return result

    def keep(pool: WorkerPool[Cell, Trial], *args: Any, **kwargs: Any) -> None:
        make(pool, *args, **kwargs)
        pools.append(pool)

    monkeypatch.setattr(Ledger, "record", record)
    monkeypatch.setattr(WorkerPool, "__init__", keep)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            launch(tmp_path / "ledger", plan, workers=2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert statuses(tmp_path / "ledger") == {1: ["OK"], 2: ["failed"]}


# -- launches at once ------------------------------------------------------------------------------


def test_two_launches_on_one_ledger_share_the_cells(tmp_path: Path) -> None:
    cells = [f"{seed}=sleep:0.02" for seed in range(40)]
    with launched(tmp_path, *cells) as ours, launched(tmp_path, *cells) as theirs:
        texts = [process.communicate()[0] for process in (ours, theirs)]
        assert (ours.returncode, theirs.returncode) == (0, 0)
    assert statuses(tmp_path) == {seed: ["OK"] for seed in range(40)}
    assert sum(int(re.findall(r"(\d+) run in", text)[0]) for text in texts) == 40
    assert [text for text in texts if re.search(r"[1-9]\d* failed", text)] == []


def test_the_cell_of_a_killed_neighbour_is_taken_over(tmp_path: Path) -> None:
    with launched(tmp_path, "1=ok", "2=sleep:3600") as neighbour:
        commands.wait_for_attempts(tmp_path, 1)
        with launched(tmp_path, "1=ok", "2=ok") as process:
            assert process.stdout is not None
            while "waiting for 1 cells" not in process.stdout.readline():
                pass
            neighbour.kill()
            neighbour.wait()
            out, _ = process.communicate()
    assert "1 run in" in out
    assert statuses(tmp_path) == {1: ["OK"], 2: ["OK"]}


def test_a_cell_that_fails_in_another_launch_is_not_tried_again_in_this_one(tmp_path: Path) -> None:
    path, gate = tmp_path / "ledger", tmp_path / "gate"
    with launched(path, "1=ok", f"2=fail-when:{gate}") as neighbour:
        commands.wait_for_attempts(path, 1)
        with launched(path, "1=ok", "2=ok") as process:
            assert process.stdout is not None
            while "waiting for 1 cells" not in process.stdout.readline():
                pass
            gate.touch()
            out, _ = process.communicate()
        neighbour.wait()
    assert "0 run in" in out
    assert "0 accepted by another process, 1 failed there" in out
    assert statuses(path) == {1: ["OK"], 2: ["failed"]}


def test_a_cell_that_a_stopped_process_never_gives_back_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "_PATIENCE_S", 0.1)
    claim = Ledger.open(tmp_path, contract=CONTRACT).claim(toy_cell(1).cell_id)
    assert claim is not None
    with claim:
        summary, text = launch(tmp_path, toy_plan(toy_cell(1)))
    assert (summary.left_elsewhere, summary.is_complete) == (1, False)
    assert "1 left to a process that seems to be stopped" in text


def test_a_launch_that_ends_early_gives_its_cells_back_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **tables: object) -> None:
        raise LedgerError("journal.jsonl: cannot be written: No space left on device")

    plan = toy_plan(toy_cell(1), toy_cell(2, "sleep:60"))
    with monkeypatch.context() as full:
        full.setattr(Ledger, "record", refuse)
        with pytest.raises(LedgerError, match="No space left") as error:
            launch(tmp_path, plan, workers=2)
    other = Ledger.open(tmp_path, contract=CONTRACT)
    for cell in plan.cells:
        claim = other.claim(cell.cell_id)
        assert claim is not None, error  # whose traceback keeps the launch alive
        claim.release()


# -- what a launch asks for ------------------------------------------------------------------------


def launch_with_steps(path: Path, plan: Plan, run: Callable[[Cell], Outcome]) -> Summary:
    console = Console(quiet=True)
    ledger = Ledger.open(path, contract=plan.contract)
    return run_plan(plan, ledger, run, workers=1, console=console, needs_steps=True)


def test_an_accepted_run_without_the_steps_that_are_asked_for_is_run_again_and_counts_once(
    tmp_path: Path,
) -> None:
    plan = toy_plan(toy_cell(1), toy_cell(2))
    launch(tmp_path, plan)
    before = Ledger.read(tmp_path).frame()
    summary = launch_with_steps(tmp_path, plan, with_steps)
    assert (summary.already_accepted, summary.run_now, summary.failed) == (0, 2, 0)
    ledger = Ledger.read(tmp_path)
    frame = ledger.frame()
    assert frame["span_s"].tolist() == before["span_s"].tolist()
    assert set(frame["adoption_reason"]) == {
        "kept a step table, which the one before had not; metrics are the same"
    }
    assert ledger.step_table(toy_cell(2).cell_id)["num_steps"].tolist() == [2]
    assert len(ledger.attempts()) == 4
    again = launch_with_steps(tmp_path, plan, with_steps)
    assert (again.already_accepted, again.run_now) == (2, 0)


def test_a_repeat_with_other_metrics_does_not_count(tmp_path: Path) -> None:
    plan = toy_plan(toy_cell(1))
    launch(tmp_path, plan)
    summary = launch_with_steps(tmp_path, plan, with_steps_and_other_metrics)
    assert (summary.run_now, summary.failed, summary.is_complete) == (1, 1, False)
    assert Ledger.read(tmp_path).frame()["span_s"].tolist() == [1.0]


def test_steps_that_nobody_asks_for_change_nothing(tmp_path: Path) -> None:
    plan = toy_plan(toy_cell(1))
    launch_with_steps(tmp_path, plan, with_steps)
    summary, _ = launch(tmp_path, plan)
    assert (summary.already_accepted, summary.run_now) == (1, 0)


def test_a_run_that_kept_no_steps_although_they_are_asked_for_is_not_complete(
    tmp_path: Path,
) -> None:
    summary = launch_with_steps(tmp_path, toy_plan(toy_cell(1)), execute)
    assert (summary.run_now, summary.is_complete) == (1, False)


# -- at the end ------------------------------------------------------------------------------------


def test_a_launch_leaves_one_file_of_tables(tmp_path: Path) -> None:
    launch(tmp_path, toy_plan(*(toy_cell(seed) for seed in range(4))))
    assert [file.name for file in tmp_path.rglob("*.parquet")] == ["requests-1.parquet"]
    assert len(Ledger.read(tmp_path).requests()) == 8


def test_tables_that_cannot_be_joined_are_told_and_stop_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Ledger) -> None:
        raise LedgerError("requests.joining: cannot be written: No space left on device")

    monkeypatch.setattr(Ledger, "join_tables", refuse)
    summary, printed = launch(tmp_path, toy_plan(toy_cell(1), toy_cell(2)))
    assert summary.is_complete
    assert "tables were not joined: requests.joining: cannot be written" in printed
    assert len(Ledger.read(tmp_path).requests()) == 4
