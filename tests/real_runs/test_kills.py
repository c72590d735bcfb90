"""Whatever is killed of a measured cell, and whenever: nothing lives on, and the reason is right.

The cell is traced, and a killed engine leaves no trace that anybody would take for a whole one.
The server here is scripted and has vLLM's family: a core below it, a worker below the core. Real
vLLM is killed in tests/engine/test_kill_matrix.py.
"""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import commands
import pytest
from fake_runs import FakeRun, fake_run, runs

from hsexp.descent import die_with_parent
from hsexp.ledger import Ledger
from hsexp.trace import Trace, TraceError
from hsexp.trace.file import read_trace_file
from runners.vllm import remains
from runners.vllm.faults import EngineRemains, RunFault
from runners.vllm.process import EngineProcess

PROGRAM = Path(__file__).with_name("fake_runs.py")

GONE_S = 10.0
REACH_S = 120.0

STAGES: dict[str, dict[str, Any]] = {
    "booting": {"boot": "hang"},
    "serving requests": {"stall_after_tokens": 1},
    "shutting down": {"slow_end_s": 60.0},
}
"""Stage as a reason names it -> a script that stays in it."""

PARTS = ("core", "worker", "server", "guard")

VICTIMS = [("core", False), ("core", True), ("worker", False), ("worker", True)]
VICTIMS += [("server", False), ("guard", False)]
"""A part, and whether the server is deaf to the death of its core and worker."""


class Line:
    """The processes of one scripted cell."""

    def __init__(self, folder: Path, stage: str) -> None:
        self._folder = folder
        self._stage = stage

    def wait(self) -> dict[str, int]:
        """Process ids by name, when the cell has reached its stage."""
        give_up = time.monotonic() + REACH_S
        while True:
            assert time.monotonic() < give_up
            found = self._found()
            if len(found) == len(PARTS) and self._is_there():
                time.sleep(0.3)
                return found
            time.sleep(0.02)

    def _found(self) -> dict[str, int]:
        script = self._folder / "script.json"
        found = {}
        with suppress(OSError, ValueError, IndexError, KeyError):
            found["server"] = int(Path(f"{script}.pids").read_text().split()[0])
            lines = Path(f"{script}.family").read_text().splitlines()
            members = dict(line.split() for line in lines)
            found |= {"core": int(members["EngineCore"]), "worker": int(members["VllmWorker-0"])}
            found["guard"] = _parent(found["server"])
        known = self._texts("server.log.family")  # to the guard
        are_known = all(f"+ {found.get(part)} " in known for part in ("core", "worker"))
        return found if are_known else {}

    def _texts(self, name: str) -> str:
        return "".join(path.read_text() for path in self._folder.rglob(f"logs/*/{name}"))

    def _is_there(self) -> bool:
        return {
            "booting": True,
            "serving requests": '"mark"' in self._texts("engine.jsonl"),
            "shutting down": "Shutting down" in self._texts("server.log"),
        }[self._stage]


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def living_s(pids: list[int]) -> float:
    """Seconds until none of them runs."""
    start = time.monotonic()
    while left := [pid for pid in pids if runs(pid)]:
        assert time.monotonic() - start < GONE_S, left
        time.sleep(0.02)
    return time.monotonic() - start


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("part", "deaf"), VICTIMS, ids=[f"{p}{' deaf' * d}" for p, d in VICTIMS])
def test_a_killed_part_of_an_engine_takes_all_with_it_and_the_reason_names_the_stage(
    part: str, deaf: bool, stage: str, tmp_path: Path
) -> None:
    script = {"family": True, "deaf": deaf} | STAGES[stage]
    line = Line(tmp_path, stage)
    run = fake_run(tmp_path, "trace=true", **script, limits={"shutdown_s": 30.0})
    reached: dict[str, int] = {}
    killed_at: list[float] = []

    def kill() -> None:
        reached.update(line.wait())
        os.kill(reached[part], signal.SIGKILL)
        killed_at.append(time.monotonic())

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(RunFault) as caught:
        run.outcome()
    killer.join()
    assert time.monotonic() - killed_at[0] < GONE_S
    assert [pid for pid in reached.values() if runs(pid)] == run.living() == []
    told = f"{type(caught.value).__name__}: {caught.value}"
    kind = "BootFailed" if stage == "booting" else "EngineDied"
    expected = {
        "guard": rf"GuardKilled: the engine's guard was killed while {stage} \(SIGKILL\)",
        "server": rf"{kind}: the engine ended while {stage} \(killed by signal 9\)",
        "core": rf"{kind}: the engine ended while {stage}",
        "worker": rf"{kind}: the engine ended while {stage}",
    }
    assert re.match(expected[part], told), told
    if deaf:
        name = {"core": "EngineCore", "worker": "VllmWorker-0"}[part]
        assert f"{name} (pid {reached[part]}) died unexpectedly" in told
    (folder,) = (tmp_path / "logs").iterdir()
    refused = "has written no trace" if stage == "booting" else "has no end record after"
    with pytest.raises(TraceError, match=refused):
        Trace(read_trace_file(folder / "trace.arrow"))


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Callable[[str], "subprocess.Popen[str]"]]:
    started = []

    def launch(stage: str) -> "subprocess.Popen[str]":
        script = json.dumps({"family": True} | STAGES[stage])
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(tmp_path), script],
            env=commands.environment(),
            text=True,
        )
        started.append(process)
        return process

    yield launch
    for process in started:
        process.kill()
        process.wait()


RUNNERS = [("runner",), ("measuring",), ("guard", "runner"), ("guard", "measuring")]

RUNNER_KILLS = [
    pytest.param(
        who,
        stage,
        id=f"{' and '.join(who)}-{stage}",
        marks=[] if len(who) == 2 and stage == "serving requests" else pytest.mark.slow,
    )
    for who in RUNNERS
    for stage in STAGES
]


@pytest.mark.parametrize(("who", "stage"), RUNNER_KILLS)
def test_a_killed_runner_takes_all_of_its_engine_with_it(
    who: tuple[str, ...],
    stage: str,
    tmp_path: Path,
    launched: Callable[[str], "subprocess.Popen[str]"],
) -> None:
    runner = launched(stage)
    pids = Line(tmp_path, stage).wait()
    pids |= {"runner": runner.pid, "measuring": _parent(pids["guard"])}
    for name in who:
        os.kill(pids[name], signal.SIGKILL)
    if "runner" in who:
        runner.wait()
        assert living_s(list(pids.values())) < GONE_S
        assert Ledger.read(tmp_path / "ledger").attempts().empty
        return
    assert living_s([pid for name, pid in pids.items() if name != "runner"]) < GONE_S
    assert runner.wait(REACH_S) == 0
    (reason,) = Ledger.read(tmp_path / "ledger").attempts()["reason"]
    assert reason.startswith("worker died: killed by SIGKILL")


# -- the next cell ---------------------------------------------------------------------------------

STUBBORN = """
import os, signal, time
os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("there", flush=True)
time.sleep(3600)
"""


@pytest.fixture(autouse=True)
def own_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests beside these look for what is left of engines too, and kill it."""
    monkeypatch.setattr(remains, "MARK", f"{remains.MARK}_{os.getpid()}")


def stray(mark: str) -> "subprocess.Popen[str]":
    """A process of an engine, in a session of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN],
        env={**os.environ, remains.MARK: mark},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def ended_runner() -> str:
    """The mark of a runner that has ended."""
    process = subprocess.Popen(["sleep", "3600"])
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    process.kill()
    process.wait()
    return f"{process.pid}:{fields[19]}:0"


def test_no_cell_starts_while_something_of_the_last_engine_lives(tmp_path: Path) -> None:
    left, run = stray(ended_runner()), fake_run(tmp_path)
    started_beside_it: list[bool] = []

    def watch() -> None:
        left.wait()
        started_beside_it.append(Path(f"{run.script}.starts").exists())

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert run.outcome().metrics["num_finished"] == 3
    watcher.join()
    # It ends by a kill alone. Whoever waits for it first has its exit status; the other one has 0.
    assert left.returncode in (-signal.SIGKILL, 0)
    assert started_beside_it == [False]


def test_what_ends_by_itself_is_waited_for_and_not_killed(tmp_path: Path) -> None:
    left = stray(ended_runner())
    threading.Timer(0.5, left.send_signal, (signal.SIGUSR1,)).start()
    remains.require_none()
    assert left.wait(1.0) == -signal.SIGUSR1


def test_a_process_that_cannot_be_killed_refuses_the_cell_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = stray(ended_runner())
    monkeypatch.setattr(remains, "_ENDING_S", 0.1)
    monkeypatch.setattr(remains, "_KILLED_S", 0.1)
    monkeypatch.setattr(remains, "_kill", lambda pids: None)
    run = fake_run(tmp_path)
    with pytest.raises(EngineRemains, match=rf"cannot be killed: \S+ \({left.pid}\)"):
        run.outcome()
    assert not Path(f"{run.script}.starts").exists()
    left.kill()
    left.wait()


def test_the_engine_of_a_runner_that_lives_is_left_alone(tmp_path: Path) -> None:
    fields = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    others = stray(f"{os.getppid()}:{fields[19]}:0")
    own = EngineProcess(["sleep", "3600"], environment={}, log=tmp_path / "log")
    with own:
        assert remains.remains() == []
        assert others.poll() is None
    others.kill()
    others.wait()


def test_a_process_id_that_another_program_has_by_now_is_not_the_runner() -> None:
    left = stray(f"{os.getppid()}:1:0")  # no process of ours started at the first tick
    assert [remain.pid for remain in remains.remains()] == [left.pid]
    remains.require_none()
    left.wait()


# -- a death in the family -------------------------------------------------------------------------


def _die_with_starter(ready: Any) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None and parent.pid is not None
    die_with_parent(parent.pid)
    ready.send(os.getpid())
    time.sleep(3600)


def _start_in_thread_and_end_it(ready: Any) -> None:
    """Start a child from a thread that ends, as some executors do."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    starter = threading.Thread(
        target=lambda: context.Process(target=_die_with_starter, args=(theirs,)).start()
    )
    starter.start()
    pid = ours.recv()
    starter.join()
    time.sleep(0.3)
    ready.send((pid, runs(pid)))
    time.sleep(3600)


def test_a_child_dies_with_its_parent_and_not_with_the_thread_that_started_it() -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    parent = context.Process(target=_start_in_thread_and_end_it, args=(theirs,))
    parent.start()
    child, lives_behind_the_thread = ours.recv()
    assert lives_behind_the_thread
    parent.kill()
    parent.join()
    assert living_s([child]) < 2.0


def test_a_good_run_hears_of_no_death_in_its_family(tmp_path: Path) -> None:
    run: FakeRun = fake_run(tmp_path, family=True)
    assert run.outcome().metrics["num_finished"] == 3
    assert run.living() == []
