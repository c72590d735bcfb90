"""One engine process under its guard: started, watched, ended; its log is a file.

What ends the engine if this runner cannot: the guard, when this process ends; the kernel, when the
guard ends (`hsexp.descent`); and the next engine of any runner here, before it starts (`remains`).
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from hsexp.descent import adopt_orphans
from runners.vllm import remains
from runners.vllm.faults import (
    EngineDied,
    GuardKilled,
    RunFault,
    count_oom_kills,
    death,
    tail,
    was_oom_killed,
)

_KILL_WAIT_S = 10.0
"""A killed process is gone at once, unless it is stuck in the kernel."""

DEATH_WAIT_S = 10.0
"""A server whose engine has died refuses at once and ends a few seconds later."""

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
        """Start the engine.

        Raises:
            EngineRemains: a process of an earlier engine cannot be ended.
        """
        remains.require_none()
        adopt_orphans()  # what a killed guard leaves
        self._oom_kills = count_oom_kills()
        self._mark = remains.open_mark()
        self._guard = subprocess.Popen(
            [sys.executable, "-m", "runners.vllm.guard", str(self.log), *self._command],
            stdin=subprocess.PIPE,  # closes when we die: the guard then ends the engine
            env={
                **os.environ,
                **self._environment,
                remains.MARK: self._mark,
                "SPT_NOENV": "1",  # vLLM's setproctitle would write over the mark
            },
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
            raise self._death(activity, otherwise)

    def raise_if_ending(self, activity: str, otherwise: type[RunFault]) -> None:
        """The same for an engine that does not answer: it may take a moment to end."""
        with suppress(subprocess.TimeoutExpired):
            self._guard.wait(DEATH_WAIT_S)
        self.raise_if_ended(activity, otherwise)

    def end(self, deadline_s: float) -> bool:
        """Ask the engine to end, and kill it after the deadline. Returns whether it obeyed.

        Raises:
            RunFault: it ended in another way.
        """
        with suppress(ProcessLookupError):
            self._guard.terminate()
        return self.wait(deadline_s)

    def wait(self, deadline_s: float) -> bool:
        """Let the engine end by itself, and kill it after the deadline. Returns whether it did.

        Raises:
            RunFault: it ended in another way.
        """
        try:
            self._guard.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        if self._guard.returncode != 0:
            raise self._death("shutting down", EngineDied)
        return True

    def kill(self) -> None:
        """End the engine and everything it started, at once.

        Raises:
            EngineRemains: a process cannot be killed.
        """
        assert self._guard.stdin is not None
        with suppress(BrokenPipeError):
            self._guard.stdin.close()
        try:
            self._guard.wait(_KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        remains.close_mark(self._mark)
        Path(f"{self.log}.family").unlink(missing_ok=True)  # a killed guard leaves it

    def _death(self, activity: str, otherwise: type[RunFault]) -> RunFault:
        code = self._guard.returncode
        if code < 0:
            return GuardKilled(
                f"the engine's guard was killed while {activity} ({signal.Signals(-code).name}), "
                "and the engine with it"
            )
        return death(
            tail(self.log),
            _SIGNAL_BASE - code if code > _SIGNAL_BASE else code,
            otherwise,
            activity,
            out_of_memory=was_oom_killed(self._oom_kills),
        )
