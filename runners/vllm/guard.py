"""Starts a program and ensures its end: `python -m runners.vllm.guard LOG PROGRAM ARGUMENT ...`

The guard stands between the runner and an engine that starts processes of its own. It has a session
and a process group of its own, so that no Ctrl-C of a terminal ends it, and it adopts whatever the
engine orphans. It ends the engine, and everything the engine started,

    when its standard input closes    the runner has died, however: the kernel closes the pipe
    on SIGTERM                        passed on to the engine, which may end in its own way
    when the engine ends              what it left behind is killed

and then ends with the engine's exit code, or 128 + the number of the signal that killed it. It
imports only the standard library, so that it starts at once.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def main(log: str, *command: str) -> int:
    """Run the command to its end. Returns the exit code."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with Path(log).open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_guard,
        )
    signal.signal(signal.SIGTERM, lambda *_: _kill(process.pid, signal.SIGTERM))
    threading.Thread(target=_kill_without_runner, args=(process.pid,), daemon=True).start()
    code = process.wait()
    _kill_group(process.pid)
    _kill_orphans()
    return code if code >= 0 else 128 - code


def _die_with_guard() -> None:
    """In the child, before it becomes the engine."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


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
