"""The runner's side of `runners.continuation.engine`: one guarded process for many checks."""

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from runners.vllm.faults import EngineDied, EngineStalled
from runners.vllm.process import EngineProcess

_PERIOD_S = 0.02

PROGRAM = (sys.executable, "-m", "runners.continuation.engine")

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the checks look into the engine core
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
}


class CheckFailed(RuntimeError):
    """A check ended in an error inside the engine's process; carries its type and message."""


class CheckProcess:
    """A context manager: the process is gone when it ends."""

    def __init__(
        self,
        environment: dict[str, str],
        *,
        log: Path,
        limit_s: float,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        """
        Args:
            environment: variables for vLLM besides `ENVIRONMENT`.
            limit_s: longest time for one check.
            program: answers jobs as `runners.continuation.engine` does.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="hsexp-continuation-")
        self._path = Path(self._folder.name)
        self._limit_s = limit_s
        self._number = 0
        self.log = log
        self._process = EngineProcess(
            [*program, str(self._path)], environment=ENVIRONMENT | environment, log=log
        )

    def __enter__(self) -> Self:
        self._process.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the process: every answer is here."""
        self._process.kill()
        self._folder.cleanup()

    def check(self, job: dict[str, Any]) -> dict[str, Any]:
        """What `runners.continuation.compare.compare` gives, and the engine's report.

        Raises:
            CheckFailed: the check raised.
            RunFault: the process ended or took too long; the next check needs another one.
        """
        answer = self._path / f"answer-{self._number}.json"
        self._put(job)
        give_up = time.monotonic() + self._limit_s
        while not answer.exists():
            self._process.raise_if_ended("running a check", EngineDied)
            if time.monotonic() > give_up:
                raise EngineStalled(f"a check took longer than {self._limit_s:g} s")
            time.sleep(_PERIOD_S)
        self._number += 1
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        if "error" in found:
            raise CheckFailed(found["error"])
        outcome: dict[str, Any] = found["outcome"]
        return outcome

    def _put(self, job: object) -> None:
        path = self._path / f"job-{self._number}.json"
        half = path.with_suffix(".tmp")
        half.write_text(json.dumps(job), encoding="utf-8")
        half.rename(path)
