"""Writes down what vLLM's scheduler did: one line a step, one a finished request, counters.

Active where vLLM's additional configuration names a file, with a scheduler of this module::

    scheduler_cls="hsexp.engine.recording.RecordingScheduler"
    additional_config={"hsexp": {...}, "hsexp_record": "engine.jsonl"}

The file holds JSON lists, in order of time; times are nanoseconds of the machine's monotonic clock,
which a client on the same machine shares::

    ["start", ns]
    ["step", start, end, decode tokens, prefill tokens, running, waiting]
    ["request", id, status, first scheduled, preemptions, adopted tokens, prefill tokens,
                replayed tokens, replayed output tokens]
    ["mark", ns, counters]       whenever nothing runs, and after the prefix cache was emptied
    ["end", ns, counters, live requests, pages that were not given back]

A record without its end line is torn and proves nothing, even if every request has finished
(Appendix D.4). A failed write ends the record, never the serving.

A second file has the trace of the same scheduler (`hsexp.trace`), if `hsexp_trace` names one. Its
events have the memory's step numbers and times of the same clock. It grows between steps and gets
its end record at shutdown, if no request is left by then; without that record it is no trace.
"""

import json
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hsexp.config.base import ConfigError
from hsexp.engine.scheduler import AsyncHybridScheduler, HybridScheduler
from hsexp.memory.stretches import StepStretch
from hsexp.trace import TraceRecorder
from hsexp.trace.file import TraceFile

KEY = "hsexp_record"
"""Name of the file's entry in vLLM's additional configuration."""
TRACE_KEY = "hsexp_trace"
"""Name of the trace's entry; without it nothing is traced."""


@dataclass(kw_only=True, slots=True)
class _Work:
    """Work done for a request so far; columns of `measure.records.REQUEST_COLUMNS`."""

    first_scheduled_ns: int
    adopted_tokens: int
    prefill_tokens: int = 0
    replayed_tokens: int = 0
    replayed_output_tokens: int = 0

    def add_chunk(self, request: Any, end: int, chunk: int) -> None:
        """A prefill chunk that ends at token `end`."""
        if request.num_preemptions:
            self.replayed_tokens += chunk
            self.replayed_output_tokens += min(max(end - request.num_prompt_tokens, 0), chunk)
        else:
            self.prefill_tokens += chunk


class RecordingScheduler(HybridScheduler):
    """`HybridScheduler` with a record. Observes; changes nothing that is scheduled."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._file: IO[str] | None = _open(self.vllm_config.additional_config)
        self._scheduled: deque[StepStretch] = deque()
        """Steps whose output has not come back yet."""
        self._work: dict[str, _Work] = {}
        self._last_end_ns = 0
        self._trace: _EngineTrace | None = None
        if (path := self.vllm_config.additional_config.get(TRACE_KEY)) is not None:
            self._trace = _EngineTrace(Path(path))
            self._trace.recorder.start(self._memory)
        self._write("start", time.monotonic_ns())

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        start_ns = time.monotonic_ns()
        decoding = {r.request_id for r in self.running if not r.is_prefill_chunk}
        output = super().schedule(*args, **kwargs)
        chunks = output.num_scheduled_tokens
        if chunks:
            prefill, step = 0, self._memory.cache.step
            for request_id, chunk in chunks.items():
                request = self.requests[request_id]
                work = self._work.get(request_id)
                if work is None:
                    work = self._work[request_id] = _Work(
                        first_scheduled_ns=start_ns,
                        adopted_tokens=request.num_computed_tokens - chunk,
                    )
                if request_id not in decoding:
                    prefill += chunk
                    end = request.num_computed_tokens
                    work.add_chunk(request, end, chunk)
                    if self._trace is not None:
                        self._trace.recorder.on_chunk(request_id, step, end - chunk, chunk)
            self._scheduled.append(
                StepStretch(
                    first_step=step,
                    num_steps=1,
                    start_ns=start_ns,
                    step_ns=0,
                    decode_tokens=sum(1 for request_id in chunks if request_id in decoding),
                    prefill_tokens=prefill,
                    running=len(self.running),
                    waiting=self._num_waiting(),
                )
            )
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        step = self._scheduled.popleft() if scheduler_output.num_scheduled_tokens else None
        if step is not None and self._trace is not None:
            self._trace.recorder.on_steps(step)  # before what its output brings about
        outputs = super().update_from_output(scheduler_output, *args, **kwargs)
        if step is not None:
            end_ns = time.monotonic_ns()
            step.start_ns = max(step.start_ns, self._last_end_ns)  # asynchronous steps overlap
            step.step_ns = end_ns - step.start_ns
            self._write(
                "step",
                step.start_ns,
                end_ns,
                step.decode_tokens,
                step.prefill_tokens,
                step.running,
                step.waiting,
            )
            self._last_end_ns = end_ns
            if self._trace is not None:
                self._trace.recorder.flush()
            if not self.has_unfinished_requests():
                self._mark()
        return outputs

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
        done = super().reset_prefix_cache(*args, **kwargs)
        self._mark()
        return done

    def shutdown(self) -> None:
        memory = self._memory
        kept = sum(pool.spec.num_usable - pool.num_free for pool in memory.cache.pools)
        self._write("end", time.monotonic_ns(), self._counters(), len(memory.cache.sequences), kept)
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None
        if self._trace is not None:
            self._trace.close(is_whole=not self.requests and not self._scheduled)
            self._trace = None
        super().shutdown()

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Every request ends here, finished or not."""
        work = self._work.pop(request.request_id, None)
        if work is not None:
            self._write(
                "request",
                request.request_id,
                request.status.name,
                work.first_scheduled_ns,
                request.num_preemptions,
                work.adopted_tokens,
                work.prefill_tokens,
                work.replayed_tokens,
                work.replayed_output_tokens,
            )
        return super()._free_request(request, *args, **kwargs)

    # -- inside --------------------------------------------------------------------------------

    @property
    def _memory(self) -> Any:
        return self.kv_cache_manager.memory

    def _num_waiting(self) -> int:
        return len(self.waiting) + len(self.skipped_waiting)

    def _counters(self) -> dict[str, int]:
        return {**self._memory.counters(), **self._monitor.sums.counters()}

    def _mark(self) -> None:
        self._write("mark", time.monotonic_ns(), self._counters())
        try:
            if self._file is not None:
                self._file.flush()
        except OSError:
            self._file = None

    def _write(self, *values: Any) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(values, separators=(",", ":")) + "\n")
        except OSError:  # a full disk: the missing end line shows it
            self._file = None


class AsyncRecordingScheduler(RecordingScheduler, AsyncHybridScheduler):
    """`AsyncHybridScheduler` with a record."""


class _EngineTrace:
    """The trace of a scheduler, and the file that it grows into."""

    def __init__(self, path: Path) -> None:
        self._file = TraceFile(path)
        self.recorder = TraceRecorder(clock=time.monotonic_ns, sink=self._file)

    def close(self, *, is_whole: bool) -> None:
        """Write what is left.

        Args:
            is_whole: no request is left behind; without an end record the trace is refused.
        """
        last = self.recorder.finish()
        self._file.close(last if is_whole else last.slice(0, len(last) - 1))


def _open(additional_config: dict[str, Any]) -> IO[str]:
    if KEY not in additional_config:
        raise ConfigError(f"additional_config.{KEY} is required by a recording scheduler")
    return Path(additional_config[KEY]).open("w", encoding="utf-8")
