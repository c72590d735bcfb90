"""An engine without a server: `engine.transport=inproc`, for quick tests.

The engine still has a process of its own (`inproc_engine`), under the same guard. The two share
only files in the attempt's folder: engine.json and load.json in, events.jsonl out. Its events are
those of the HTTP client, stamped where they happen.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Self

import pandas as pd

from hsexp.config.engine import LimitsConfig
from hsexp.measure.records import SAMPLE_COLUMNS
from runners.vllm.clock import Episode, now_ns
from runners.vllm.faults import BootFailed, BootTimeout, EngineDied, RecordTorn
from runners.vllm.load import Load, Measured
from runners.vllm.process import EngineProcess
from runners.vllm.readback import Report

_PERIOD_S = 0.05

PROGRAM = (sys.executable, "-m", "runners.vllm.inproc_engine")


class InprocEngine:
    """One engine process that is fed directly."""

    def __init__(
        self,
        arguments: dict[str, Any],
        *,
        folder: Path,
        environment: dict[str, str],
        limits: LimitsConfig,
        log: Path,
    ) -> None:
        """
        Args:
            arguments: fields of vLLM's EngineArgs.
            folder: where the files go.
        """
        self._folder = folder
        self._limits = limits
        self._process = EngineProcess(
            [*PROGRAM, str(folder)],
            environment=environment | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
            log=log,
        )
        self._stack = ExitStack()
        self.report: Report = {}
        (folder / "engine.json").write_text(json.dumps(arguments), encoding="utf-8")

    def __enter__(self) -> Self:
        with self._stack:  # a boot that fails leaves nothing behind
            self._stack.enter_context(self._process)
            self._wait_for_ready()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(self, load: Load) -> Measured:
        _hand_over(self._folder / "load.json", load)
        rows, begin_ns, start_ns = [], 0, 0
        for event in self._until_done(load):
            match event:
                case ["begin", begin_ns, start_ns]:
                    pass
                case ["sent", index, stamp_ns]:
                    load.streams.sent(index, stamp_ns)
                case ["tokens", index, stamp_ns, tokens]:
                    load.streams.arrived(index, stamp_ns, tokens)
                case ["finished", index]:
                    load.streams.finished(index)
                case ["sample", stamp_ns, *gauges]:
                    rows.append([(stamp_ns - start_ns) / 1e9, *gauges])
        samples = pd.DataFrame(rows, columns=list(SAMPLE_COLUMNS)).astype(SAMPLE_COLUMNS)
        episode = Episode(begin_ns=begin_ns, start_ns=start_ns, end_ns=now_ns())
        return Measured(episode=episode, samples=samples)

    def end(self, deadline_s: float) -> None:
        """Wait for the engine, which ends by itself after its load."""
        if not self._process.wait(deadline_s):
            raise RecordTorn(f"the engine did not end within {deadline_s:g} s and was killed")

    # -- inside ------------------------------------------------------------------------------------

    def _wait_for_ready(self) -> None:
        give_up = time.monotonic() + self._limits.boot_s
        events = _Events(self._folder / "events.jsonl")
        while True:
            for event in events.new():
                if event[0] == "ready":
                    self.report = event[1]
                    self._events = events
                    return
            self._process.raise_if_ended("booting", BootFailed)
            if time.monotonic() > give_up:
                raise BootTimeout(f"the engine was not ready within {self._limits.boot_s:g} s")
            time.sleep(_PERIOD_S)

    def _until_done(self, load: Load) -> Iterator[list[Any]]:
        while True:
            for event in self._events.new():
                if event[0] == "done":
                    return
                yield event
            self._process.raise_if_ended("serving requests", EngineDied)
            load.streams.require_progress(now_ns(), load.limits.stall_s)
            time.sleep(_PERIOD_S)


class _Events:
    """Whole lines of a growing file, each once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None
        self._half = ""

    def new(self) -> Iterator[list[Any]]:
        if self._file is None:
            if not self._path.exists():
                return
            self._file = self._path.open(encoding="utf-8")
        *lines, self._half = (self._half + self._file.read()).split("\n")
        for line in lines:
            event: list[Any] = json.loads(line)
            yield event


def _hand_over(path: Path, load: Load) -> None:
    """Write the load under its name at once: the engine waits for that name."""
    data = {
        "warmup": [list(prompt) for prompt in load.warmup],
        "requests": [
            {
                "arrival_s": stream.request.arrival_s,
                "after": load.streams.before(index),
                "think_s": stream.request.think_s,
                "max_tokens": stream.request.output_tokens,
                "cache_salt": stream.request.cache_salt,
                "only_token": stream.only_token,
                "prompt": list(prompt),
            }
            for index, (stream, prompt) in enumerate(
                zip(load.streams.all, load.prompts, strict=True)
            )
        ],
    }
    half = path.with_suffix(".tmp")
    half.write_text(json.dumps(data), encoding="utf-8")
    half.rename(path)
