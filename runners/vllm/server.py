"""A vLLM server as an engine: boots on a free port, reports, serves one load, shuts down."""

import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from hsexp.config.engine import LimitsConfig
from runners.vllm.client import run_load
from runners.vllm.exposition import Exposition
from runners.vllm.faults import (
    BootFailed,
    BootTimeout,
    ConnectionLost,
    KnobDiffers,
    PortTaken,
    RecordTorn,
)
from runners.vllm.load import Load, Measured
from runners.vllm.process import EngineProcess
from runners.vllm.readback import Report

_HEALTH_PERIOD_S = 0.25
_HTTP_TIMEOUT_S = 10.0
_INFO = "hsexp:engine_info"

_UNREACHABLE = (urllib.error.URLError, ConnectionError, TimeoutError)


class HttpEngine:
    """One server process on a port of its own."""

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        *,
        environment: dict[str, str],
        limits: LimitsConfig,
        log: Path,
    ) -> None:
        """
        Args:
            command: the server's command line for a port.
        """
        self._command = command
        self._environment = environment
        self._limits = limits
        self._log = log
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack:  # a boot that fails leaves nothing behind
            self._boot()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def report(self) -> Report:
        """Labels of the server's information gauge.

        Raises:
            KnobDiffers: it serves without an organization.
            RunFault: it does not answer.
        """
        try:
            page = Exposition(self._get("/metrics"))
        except _UNREACHABLE as error:
            self._process.raise_if_ending("booting", BootFailed)
            raise ConnectionLost(f"/metrics: {type(error).__name__}: {error}") from None
        for sample in page.samples(_INFO):
            return sample.labels
        raise KnobDiffers(f"the server does not report {_INFO}: no organization is active")

    def run(self, load: Load) -> Measured:
        return run_load(self._url, load, self._process)

    def end(self, deadline_s: float) -> None:
        if not self._process.end(deadline_s):
            raise RecordTorn(f"the server did not end within {deadline_s:g} s and was killed")

    # -- boot --------------------------------------------------------------------------------------

    def _boot(self) -> None:
        """Start until a server has a port to itself.

        Raises:
            BootFailed, BootTimeout, OutOfMemory: why it did not.
        """
        for last in [False] * (self._limits.port_tries - 1) + [True]:
            try:
                with ExitStack() as attempt:
                    self._start(attempt, free_port())
                    self._stack.push(attempt.pop_all())
                    return
            except PortTaken:
                if last:
                    raise

    def _start(self, stack: ExitStack, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._process = stack.enter_context(
            EngineProcess(self._command(port), environment=self._environment, log=self._log)
        )
        give_up = time.monotonic() + self._limits.boot_s
        while not self._is_healthy():
            self._process.raise_if_ended("booting", BootFailed)
            if time.monotonic() > give_up:
                raise BootTimeout(f"the server was not ready within {self._limits.boot_s:g} s")
            time.sleep(_HEALTH_PERIOD_S)

    def _is_healthy(self) -> bool:
        try:
            self._get("/health")
        except _UNREACHABLE:
            return False
        return True

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"{self._url}{path}", timeout=_HTTP_TIMEOUT_S) as answer:
            text: Any = answer.read().decode()
            return str(text)


def free_port() -> int:
    """A free TCP port of this machine; another program may take it before the server does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
