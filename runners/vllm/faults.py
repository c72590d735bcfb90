"""Why a real run failed: one class a kind, whose name and message become the attempt's reason."""

import re
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

TAIL_LINES = 40
"""Lines of a log that are kept with a reason."""

_TAIL_BYTES = 64 * 1024

_OOM_COUNTERS = (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat"))
"""Of the container if there is one, else of the machine."""


class RunFault(RuntimeError):
    """A run that gives no numbers."""


class BootFailed(RunFault):
    """The engine ended before it was ready."""


class BootTimeout(RunFault):
    """The engine was not ready in time."""


class PortTaken(BootFailed):
    """Another program has the port."""


class OutOfMemory(RunFault):
    """The engine, or the kernel for it, ran out of memory."""


class GuardKilled(RunFault):
    """The engine's guard was killed, and the engine with it."""


class EngineRemains(RunFault):
    """A process of an earlier engine cannot be ended."""


class GpuMissing(BootFailed):
    """The engine found no GPU."""


class EngineDied(RunFault):
    """The engine ended while requests were outstanding."""


class EngineStalled(RunFault):
    """No token for too long while a request is outstanding."""


class ConnectionLost(RunFault):
    """A request lost more connections than it may."""


class RequestRefused(RunFault):
    """The engine did not take a request, or gave it up."""


class ShortOutput(RunFault):
    """A request ended with more or fewer tokens than planned."""


class OtherOutput(RunFault):
    """A request ended with other tokens than a later prompt holds."""


class PromptChanged(RunFault):
    """The engine computed another prompt than was sent."""


class KnobDiffers(RunFault):
    """The engine runs with other settings than the cell asks for."""


class RecordTorn(RunFault):
    """The engine's own record has no end, or contradicts the client."""


class TraceRefused(RunFault):
    """The trace of a traced run is not whole (Appendix D.4)."""


class _Sign(NamedTuple):
    pattern: re.Pattern[str]
    fault: type[RunFault]


_KILLED = re.compile(r"^\S+ \(pid \d+\) died unexpectedly$")
"""The guard's line on a core or worker that was killed."""

_SIGNS = (
    _Sign(re.compile(r"address already in use", re.I), PortTaken),
    _Sign(re.compile(r"out of memory|OutOfMemoryError|Cannot allocate memory", re.I), OutOfMemory),
    _Sign(
        re.compile(r"No CUDA GPUs|no NVIDIA driver|Failed to infer device type", re.I), GpuMissing
    ),
)
"""Lines of a log that show why an engine ended, most specific first."""


_NOISE = re.compile(r"nanobind: | - (leaked|\.\.\. skipped) |See https://nanobind")
"""Scores of lines that an extension module writes whenever its process ends."""


def death(
    log: Sequence[str],
    exit_code: int | None,
    otherwise: type[RunFault],
    activity: str,
    *,
    out_of_memory: bool | None = None,
) -> RunFault:
    """The fault of an engine that ended by itself.

    Args:
        exit_code: negative for a signal; None if unknown.
        otherwise: the kind where the log names none.
        activity: what the engine was doing, such as "booting".
        out_of_memory: the kernel has killed a process for memory meanwhile; None if unknown.
    """
    how = f"killed by signal {-exit_code}" if exit_code and exit_code < 0 else f"exit {exit_code}"
    line, kind = _telling_line(log)
    if kind is None and exit_code == -signal.SIGKILL and out_of_memory is None:
        return OutOfMemory(f"the engine was killed while {activity} (out of memory?)")
    if kind is None and out_of_memory:
        how = f"{how}; the kernel has killed a process for memory meanwhile"
        kind = OutOfMemory
    kind = kind or otherwise
    if kind is PortTaken and otherwise is not BootFailed:
        kind = otherwise
    if line and _KILLED.search(line):  # and the guard has ended the rest
        return kind(f"the engine ended while {activity}: {line}")
    quoted = f": {line}" if line else ""
    return kind(f"the engine ended while {activity} ({how}){quoted}")


def count_oom_kills() -> int | None:
    """Processes that the kernel has killed for memory here so far; None where it does not say."""
    for path in _OOM_COUNTERS:
        with suppress(OSError):
            found = re.search(r"^oom_kill (\d+)$", path.read_text(), re.M)
            if found:
                return int(found[1])
    return None


def was_oom_killed(before: int | None) -> bool | None:
    """Whether the kernel has killed any process for memory since the count was `before`."""
    now = count_oom_kills()
    return None if before is None or now is None else now > before


def _telling_line(log: Sequence[str]) -> tuple[str | None, type[RunFault] | None]:
    """The last line that has a sign; else the guard's; else the last one that names an error."""
    for line in reversed(log):
        for sign in _SIGNS:
            if sign.pattern.search(line):
                return _plain(line), sign.fault
    for line in reversed(log):
        if _KILLED.search(line):
            return line, None
    for line in reversed(log):
        if re.search(r"\b\w*(Error|Exception)\b", line):
            return _plain(line), None
    return None, None


def _plain(line: str) -> str:
    """The line without the prefixes of vLLM's log: process, level, time, place."""
    text = re.sub(r"^\(\w+ pid=\d+\) ", "", line.strip())
    return re.sub(r"^[A-Z]+ \d\d-\d\d [\d:]+ \[[\w.]+:\d+\] ", "", text)[:300]


def tail(path: Path, lines: int = TAIL_LINES) -> list[str]:
    """The last lines of a log that tell anything; empty where there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if not _NOISE.match(line)][-lines:]
