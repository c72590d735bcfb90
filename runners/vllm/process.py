"""One engine process under its guard: started, watched, ended; its log is a file."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from runners.vllm.faults import RunFault, death, tail

_KILL_WAIT_S = 10.0
"""A killed process is gone at once, unless it is stuck in the kernel."""

_SIGNAL_BASE = 128


class EngineProcess:
    """A context manager: every process that it started is gone when it ends."""

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], log: Path
    ) -> None:
        self._command = command
        self._environment = environment
        self.log = log

    def __enter__(self) -> Self:
        self._guard = subprocess.Popen(
            [sys.executable, "-m", "runners.vllm.guard", str(self.log), *self._command],
            stdin=subprocess.PIPE,  # closes when we die: the guard then ends the engine
            env={**os.environ, **self._environment},
            start_new_session=True,
        )
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def raise_if_ended(self, activity: str, otherwise: type[RunFault]) -> None:
        """Raise the fault that the log shows if the engine has ended by itself.

        Args:
            activity: what the engine was doing, such as "booting".
            otherwise: the fault where the log names none.
        """
        if self._guard.poll() is not None:
            raise death(tail(self.log), self._exit_code(), otherwise, activity)

    def end(self, deadline_s: float) -> bool:
        """Ask the engine to end, and kill it after the deadline. Returns whether it obeyed."""
        with suppress(ProcessLookupError):
            self._guard.terminate()
        return self.wait(deadline_s)

    def wait(self, deadline_s: float) -> bool:
        """Let the engine end by itself, and kill it after the deadline. Returns whether it did."""
        try:
            self._guard.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True

    def kill(self) -> None:
        """End the engine and everything it started, at once."""
        assert self._guard.stdin is not None
        with suppress(BrokenPipeError):
            self._guard.stdin.close()
        try:
            self._guard.wait(_KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()

    def _exit_code(self) -> int | None:
        """The engine's exit code, negative for a signal."""
        code = self._guard.returncode
        return _SIGNAL_BASE - code if code is not None and code > _SIGNAL_BASE else code
