"""A phase of `make test-gpu`: a program with a deadline, and the verdict on it.

A phase writes a JSON object to the file that it is given and ends with an exit status: 0 passed,
69 nothing could be tried here, else failed. It may start processes; none of them outlives it.
"""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SEVERITY = {"passed": 0, "skipped": 1, "late": 2, "failed": 3}
"""Exit status of the whole by its worst phase."""

_TAIL = 2000
"""Characters of a log that a verdict repeats."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One program."""

    number: int
    name: str
    command: tuple[str, ...]
    """With the file for its JSON as the last argument, which `run` appends."""
    deadline_s: float
    """It has at least this long; time that earlier phases leave is added."""
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of a phase."""

    phase: int
    name: str
    status: str
    """passed, skipped, late or failed."""
    seconds: float
    granted_s: float
    reason: str | None
    facts: Any
    """What the phase has written; null if nothing."""

    @property
    def severity(self) -> int:
        return SEVERITY[self.status]

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def run(phase: Phase, folder: Path, granted_s: float) -> Verdict:
    """Run a phase in processes of its own, and leave none of them behind.

    Args:
        folder: gets the phase's log and JSON.
    """
    result, log = folder / f"phase-{phase.number}.facts.json", folder / f"phase-{phase.number}.log"
    result.unlink(missing_ok=True)
    start = time.monotonic()
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            [*phase.command, str(result)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | dict(phase.environment),
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(granted_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_descendants(process)
    seconds = time.monotonic() - start
    facts = _read(result)
    status, reason = _judge(code, facts, granted_s)
    if status in ("late", "failed"):
        reason = f"{reason}; its log ends: {_tail(log)}"
    return Verdict(
        phase=phase.number,
        name=phase.name,
        status=status,
        seconds=round(seconds, 2),
        granted_s=round(granted_s, 2),
        reason=reason,
        facts=facts,
    )


def _judge(code: int | None, facts: Any, granted_s: float) -> tuple[str, str | None]:
    said = facts.get("reason") if isinstance(facts, dict) else None
    if code is None:
        return "late", f"killed at its deadline of {granted_s:.0f} s"
    if code == os.EX_UNAVAILABLE:
        return "skipped", said or "it could not be tried here"
    if code != 0:
        return "failed", said or f"exit status {code}"
    if facts is None:
        return "failed", "it ended well and has written nothing"
    return "passed", None


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-_TAIL:].strip()


def end_descendants(process: "subprocess.Popen[Any]") -> None:
    """Kill a process with its group, and whatever else of its family is left below this one.

    This process adopts orphans, so that a child which left its group is found.
    """
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for _ in range(100):  # a process may start another while it is being killed
        left = _descendants(os.getpid())
        if not left:
            return
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        time.sleep(0.02)


def _descendants(root: int) -> list[int]:
    """Processes below one, without those that have ended."""
    children: dict[int, list[int]] = {}
    ended = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            # pid (name) state ppid ...; a name may contain anything
            state, parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(parent), []).append(int(entry.name))
            if state in "ZX":
                ended.add(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    for pid in ended.intersection(found):
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return [pid for pid in found if pid not in ended]
