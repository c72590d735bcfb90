"""Finds and ends what is left of engines: no cell is measured beside the processes of another.

Every process of an engine inherits a mark in its environment: the runner that started the engine,
as process id and start time, and a number. A marked process is left over when its runner has ended,
or when the runner has closed that engine. It is found wherever it has gone: to another process
group, another session, another parent.
"""

import itertools
import os
import select
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from runners.vllm.faults import EngineRemains

MARK = "HSEXP_ENGINE"

_ENDING_S = 3.0
"""Time that a process of an ended engine has to end by itself."""

_KILLED_S = 10.0
"""A killed process is gone at once, unless it is stuck in the kernel."""

_PERIOD_S = 0.02

_numbers = itertools.count()
_open: set[str] = set()
"""Marks of this runner's engines that may run."""


class Remain(NamedTuple):
    """A process that is left over."""

    pid: int
    name: str


def open_mark() -> str:
    """The mark of a new engine of this runner."""
    pid = os.getpid()
    mark = f"{pid}:{_start_time(pid)}:{next(_numbers)}"
    _open.add(mark)
    return mark


def close_mark(mark: str) -> None:
    """The engine of this mark has ended: kill what it left.

    Raises:
        EngineRemains: something cannot be killed.
    """
    _open.discard(mark)
    _end(0.0)


def require_none() -> None:
    """Wait until nothing is left of earlier engines, and kill what does not end by itself.

    Raises:
        EngineRemains: something cannot be killed; names it.
    """
    _end(_ENDING_S)


def remains() -> list[Remain]:
    """Processes of this user's engines whose runner has ended or has closed them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        if _is_left_over(pid):
            found.append(Remain(pid, _name(pid)))
    return found


def _end(patience_s: float) -> None:
    give_up = time.monotonic() + patience_s
    while remains() and time.monotonic() < give_up:
        time.sleep(_PERIOD_S)
    give_up = time.monotonic() + _KILLED_S
    while left := remains():
        if time.monotonic() > give_up:
            listed = ", ".join(f"{name} ({pid})" for pid, name in left)
            raise EngineRemains(f"processes of an earlier engine cannot be killed: {listed}")
        _kill([pid for pid, _ in left])


def _kill(pids: Collection[int]) -> None:
    """Kill processes and wait a moment for their end. The adopted ones leave no zombie."""
    for pid in pids:
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                if _is_left_over(pid):  # and still the process that was found
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    select.select([descriptor], [], [], _PERIOD_S * 10)
            finally:
                os.close(descriptor)
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _is_left_over(pid: int) -> bool:
    mark = _mark_of(pid)
    if mark is None or mark in _open:
        return False
    runner, _, start = mark.rpartition(":")[0].partition(":")
    is_ours = int(runner) == os.getpid()
    return is_ours or _start_time(int(runner)) != int(start)


def _mark_of(pid: int) -> str | None:
    """None also for a process that has ended, or is another user's."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    prefix = f"{MARK}=".encode()
    marks = [each.removeprefix(prefix) for each in variables if each.startswith(prefix)]
    return marks[0].decode() if marks else None


def _start_time(pid: int) -> int | None:
    """Clock ticks after boot; None where no such process runs."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"
