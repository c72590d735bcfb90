"""The processes below an engine: each says that it is there, and later that it ends in order.

An engine whose core was killed may take half a minute to notice, or hang. The guard sees from here
that a process has ended without a word. Members write lines into one file, whose name they inherit;
only the standard library is imported.
"""

import multiprocessing
import multiprocessing.util
import os
import select
from contextlib import suppress
from pathlib import Path

VARIABLE = "HSEXP_FAMILY"
"""Of the environment: the file."""


def join() -> None:
    """Become a member, in a process that `multiprocessing` has started."""
    if VARIABLE in os.environ:
        _write(f"+ {os.getpid()} {multiprocessing.current_process().name}")
        # Called at the end of such a process, whether it returns or raises; a kill skips it.
        multiprocessing.util.Finalize(None, _write, args=(f"- {os.getpid()}",), exitpriority=-1000)


def _write(line: str) -> None:
    with suppress(OSError), Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


class Family:
    """The guard's side."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._members: dict[int, tuple[int, str]] = {}
        """Process id -> its descriptor and its name, of those that have not said that they end."""
        self._num_read = 0

    def killed(self) -> str | None:
        """A member that has ended without a word, in words; None if there is none."""
        self._read()
        descriptors = [descriptor for descriptor, _ in self._members.values()]
        ended, _, _ = select.select(descriptors, [], [], 0)
        if not ended:
            return None
        self._read()  # what it wrote in between
        for pid, (descriptor, name) in self._members.items():
            if descriptor in ended:
                return f"{name} (pid {pid}) died unexpectedly"
        return None

    def close(self) -> None:
        self._path.unlink(missing_ok=True)

    def _read(self) -> None:
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        except FileNotFoundError:
            return
        for line in lines[self._num_read :]:
            if not line.endswith("\n"):
                return  # it is being written
            self._num_read += 1
            sign, pid, *name = line.split()
            if sign == "-":
                self._leave(int(pid))
            else:
                self._enter(int(pid), " ".join(name))

    def _enter(self, pid: int, name: str) -> None:
        try:
            self._members[pid] = (os.pidfd_open(pid), name)
        except ProcessLookupError:  # it has ended: a descriptor that is ready at once stands for it
            reader, writer = os.pipe()
            os.close(writer)
            self._members[pid] = (reader, name)

    def _leave(self, pid: int) -> None:
        if pid in self._members:
            os.close(self._members.pop(pid)[0])
