"""What the kernel does for a family of processes: orphans are adopted, children die with a parent.

Linux only. It imports only the standard library, so that a process can call it at once.
"""

import ctypes
import os
import select
import signal
import threading
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def adopt_orphans() -> None:
    """From now on a descendant of this process becomes its child when its own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_thread(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends; survives `exec`.

    Args:
        parent: the process of that thread. If it has ended already, so does this one.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        _die()


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent ends, however it ends.

    The kernel watches not the parent but the thread that started this process. It is asked where
    that was the parent's main thread; otherwise a thread of this process watches the parent.

    Args:
        parent: the process that started this one. If it has ended already, so does this one.
    """
    if _was_started_by_main_thread(parent):
        die_with_thread(parent)
    else:
        threading.Thread(target=_die_after, args=(parent,), daemon=True).start()


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


def _was_started_by_main_thread(parent: int) -> bool:
    """False also where the kernel does not list the children of a thread."""
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    except OSError:
        return False
    return str(os.getpid()) in children


def _die_after(parent: int) -> None:
    try:
        descriptor = os.pidfd_open(parent)
    except ProcessLookupError:
        _die()
        return
    if os.getppid() == parent:
        select.select([descriptor], [], [])  # readable when the process has ended
    _die()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
