"""Every process of a measured cell is killed at every stage of it, on real vLLM.

Ten seconds later nothing of it lives, and the attempt has failed for the right reason: unless the
launch itself was killed, which leaves nothing to record and a cell to run. The cell is traced, and
what is left of its trace is refused.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import commands
import psutil
import pytest

from hsexp.ledger import Ledger
from hsexp.trace import Trace, TraceError
from hsexp.trace.file import read_trace_file

GONE_S = 10.0
REACH_S = 600.0
"""A busy machine takes minutes to load vLLM in three processes."""

CELL = (
    "campaign=q1",
    "engine=vllm",
    "device=cpu",
    "model=falcon_h1_mini",
    "organization=s2",
    "budget=b63",
    "trace=true",
    "seeds=[42000]",
    "engine.num_warmup_requests=1",
    "workload.num_requests=8",
    "workload.num_contexts=1",
    "stage=run",
)

REASONS = {
    ("core", "boot"): r"BootFailed: the engine ended while booting.*(EngineCore|core proc)",
    ("worker", "boot"): r"BootFailed: the engine ended while booting.*(VllmWorker|core proc)",
    ("server", "boot"): r"BootFailed: the engine ended while booting \(killed by signal 9\)",
    ("guard", "boot"): r"GuardKilled: the engine's guard was killed while booting \(SIGKILL\)",
    ("core", "serving"): r"EngineDied: the engine ended while serving requests",
    ("worker", "serving"): r"EngineDied: the engine ended while serving requests",
    ("server", "serving"): r"EngineDied: .* while serving requests \(killed by signal 9\)",
    ("guard", "serving"): r"GuardKilled: .* was killed while serving requests \(SIGKILL\)",
    ("core", "shutdown"): r"EngineDied: the engine ended while shutting down",
    ("worker", "shutdown"): r"EngineDied: the engine ended while shutting down",
    ("server", "shutdown"): r"EngineDied: .* while shutting down \(killed by signal 9\)",
    ("guard", "shutdown"): r"GuardKilled: .* was killed while shutting down \(SIGKILL\)",
}
"""Who is killed and when -> the reason of the attempt."""

WHO = ("core", "worker", "server", "guard", "runner", "guard and runner")
WHEN = ("boot", "serving", "shutdown")
USUAL = {("guard", "serving"), ("worker", "serving"), ("guard and runner", "boot")}
"""The others are slow."""

MATRIX = [
    pytest.param(who, when, marks=[] if (who, when) in USUAL else pytest.mark.slow)
    for who in WHO
    for when in WHEN
]


LINE = ("runner", "measuring", "guard", "server", "core", "worker")
"""Each is the parent of the next."""


class Launch:
    """One cell in a launch of its own."""

    def __init__(self, folder: Path, when: str) -> None:
        self.ledger = folder / "ledger"
        self._outputs = [folder / "out", folder / "err"]
        self.process = commands.start(
            *CELL,
            f"workload.output_mean_tokens={600 if when == 'serving' else 6}",
            f"ledger={self.ledger}",
            cwd=folder,
            env=commands.environment(OMP_NUM_THREADS="1"),
            stdout=self._outputs[0].open("w"),
            stderr=self._outputs[1].open("w"),
            start_new_session=True,
        )
        self.line: list[psutil.Process] = []
        """The processes by `LINE`, as far as they have started."""

    def reach(self, when: str, who: str) -> None:
        """Wait until the cell is there, with every process down to the worker.

        A core that is killed at the boot has no worker yet: both are still loading vLLM then.
        """
        wanted = LINE.index("core" if (who, when) == ("core", "boot") else "worker") + 1
        give_up = time.monotonic() + REACH_S
        while not (len(self._follow()) >= wanted and self._is_at(when)):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < give_up, self.said()
            time.sleep(0.05 if when == "boot" else 0.005)
        if when == "boot":
            time.sleep(0.5)

    def _follow(self) -> list[psutil.Process]:
        line = [psutil.Process(self.process.pid)]
        with suppress(psutil.NoSuchProcess, StopIteration):
            while len(line) < len(LINE):
                line.append(next(each for each in line[-1].children() if not _is_tracker(each)))
        # Of two equally long lines the later one holds: a booting core has children that end soon.
        self.line = max(line, self.line, key=len)
        return self.line

    def _is_at(self, when: str) -> bool:
        if when == "boot":
            return True
        if when == "serving":
            _, mark, run = self._text("engine.jsonl").rpartition('"mark"')
            return bool(mark) and run.count('"step"') > 3
        return "[shutdown]" in self._text("server.log")

    def _text(self, name: str) -> str:
        return "".join(path.read_text() for path in self.ledger.glob(f"logs/*/{name}"))

    def kill(self, who: str) -> None:
        for name in who.split(" and "):
            self.line[LINE.index(name)].kill()

    def living(self, first: str) -> list[str]:
        """What still runs of a process and all below it."""
        return [text for each in self.line[LINE.index(first) :] if (text := _running(each))]

    def said(self) -> str:
        texts = [self._text("server.log"), *(path.read_text() for path in self._outputs)]
        return "\n".join(text[-3000:] for text in texts)


def _is_tracker(process: psutil.Process) -> bool:
    return "resource_tracker" in " ".join(process.cmdline())


def _running(process: psutil.Process) -> str | None:
    """The process in words; None if it does not run any more."""
    with suppress(psutil.NoSuchProcess):
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            return f"{process.pid} {' '.join(process.cmdline())[:80]}"
    return None


@pytest.fixture
def launch(tmp_path: Path, when: str) -> Iterator[Launch]:
    made = Launch(tmp_path, when)
    yield made
    made.process.kill()
    made.process.wait()
    for process in made.line:
        with suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.mark.parametrize(("who", "when"), MATRIX)
def test_ten_seconds_after_a_kill_nothing_lives_and_the_reason_is_right(
    who: str, when: str, launch: Launch, record_property: Callable[[str, object], None]
) -> None:
    ends_launch = "runner" in who
    launch.reach(when, who)
    launch.kill(who)
    start = time.monotonic()
    # The launch itself goes on, unless it was killed: it records the attempt.
    while left := launch.living("runner" if ends_launch else "guard"):
        assert time.monotonic() - start < GONE_S, left
        time.sleep(0.02)
    record_property("gone_s", f"{time.monotonic() - start:.1f}")
    if when != "shutdown":  # by then it may be whole
        for path in launch.ledger.glob("logs/*/trace.arrow"):
            with pytest.raises(TraceError, match=r"no end record|no start|is torn"):
                Trace(read_trace_file(path))
    code = launch.process.wait(60.0)
    attempts = Ledger.read(launch.ledger).attempts()
    record_property("reasons", attempts["reason"].tolist())
    if ends_launch:
        assert attempts.empty
        return
    assert code == 1
    assert attempts["status"].tolist() == ["failed"]
    assert not list(launch.ledger.glob("traces/*"))
    assert re.search(REASONS[who, when], attempts["reason"][0]), attempts["reason"][0]
