"""Starts a program and ensures its end: `python -m runners.vllm.guard LOG PROGRAM ARGUMENT ...`

The guard stands between the runner and an engine that starts processes of its own. It has a session
and a process group of its own, so that no Ctrl-C of a terminal ends it, and it adopts whatever the
engine orphans. It ends the engine, and everything the engine started,

    when its standard input closes    the runner has died, however: the kernel closes the pipe
    on SIGTERM                        passed on to the engine, which may end in its own way
    when the engine ends              what it left behind is killed
    when a part of it was killed      after a moment, in which it may say more in its log (`family`)
    when it is killed itself          the kernel kills the engine; `api_server` says what follows

and then ends with the engine's exit code, or 128 + the number of the signal that killed it. It
imports nothing heavy, so that it starts at once.
"""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType

from hsexp.descent import adopt_orphans, die_with_thread
from runners.vllm.family import VARIABLE, Family

_PERIOD_S = 0.1

_LAST_WORDS_S = 4.0
"""An engine whose core was killed notices within three seconds, or not at all."""


_CORE_PATIENCE_S = 7.5
"""A core that ends kills a worker which has not ended eight seconds later: that is in order."""


def main(log: str, *command: str) -> int:
    """Run the command to its end. Returns the exit code."""
    adopt_orphans()
    family = Family(Path(f"{log}.family"))
    with Path(log).open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, VARIABLE: f"{log}.family"},
            preexec_fn=partial(die_with_thread, os.getpid()),
        )
    asked_at: list[float] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        asked_at.append(time.monotonic())
        _kill(process.pid, number)

    signal.signal(signal.SIGTERM, pass_on)
    threading.Thread(target=_kill_without_runner, args=(process.pid,), daemon=True).start()
    killed = _wait(process, family, asked_at)
    _kill_group(process.pid)
    code = process.wait()
    _kill_orphans()
    family.close()
    if killed is not None:
        with Path(log).open("ab") as output:
            output.write(f"\n{killed}\n".encode())  # what came before may be half a line
        code = code or 1
    return code if code >= 0 else 128 - code


def _wait(
    process: "subprocess.Popen[bytes]", family: Family, asked_at: Sequence[float]
) -> str | None:
    """Wait for the engine's end, or for a while after a part of it was killed: says which.

    Args:
        asked_at: when the engine was asked to end, if it was.
    """
    killed, give_up = None, math.inf
    while time.monotonic() < give_up:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PERIOD_S)
            break
        if asked_at and time.monotonic() - asked_at[0] > _CORE_PATIENCE_S:
            continue
        if killed is None and (killed := family.killed()) is not None:
            give_up = time.monotonic() + _LAST_WORDS_S
    was_killed_itself = process.returncode is not None and process.returncode < 0
    return None if was_killed_itself else killed  # its parts have died with it


def _kill_without_runner(group: int) -> None:
    while os.read(0, 1024):
        pass
    _kill_group(group)


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _kill_orphans() -> None:
    """Kill what the engine left: orphans of any process group become children of the guard."""
    while children := _children():
        for pid in children:
            _kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def _children() -> list[int]:
    ours = f"PPid:\t{os.getpid()}\n"
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            if ours in status.read_text():
                found.append(int(status.parent.name))
    return found


def _kill(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
