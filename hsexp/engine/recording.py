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

KEY = "hsexp_record"
"""Name of the file's entry in vLLM's additional configuration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    """A scheduled step whose output has not come back yet."""

    start_ns: int
    decode_tokens: int
    prefill_tokens: int
    running: int
    waiting: int


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
        self._scheduled: deque[_Step] = deque()
        self._work: dict[str, _Work] = {}
        self._last_end_ns = 0
        self._write("start", time.monotonic_ns())

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        start_ns = time.monotonic_ns()
        decoding = {r.request_id for r in self.running if not r.is_prefill_chunk}
        output = super().schedule(*args, **kwargs)
        chunks = output.num_scheduled_tokens
        if chunks:
            prefill = 0
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
                    work.add_chunk(request, request.num_computed_tokens, chunk)
            self._scheduled.append(
                _Step(
                    start_ns=start_ns,
                    decode_tokens=sum(1 for request_id in chunks if request_id in decoding),
                    prefill_tokens=prefill,
                    running=len(self.running),
                    waiting=self._num_waiting(),
                )
            )
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = super().update_from_output(scheduler_output, *args, **kwargs)
        if scheduler_output.num_scheduled_tokens:
            step = self._scheduled.popleft()
            end_ns = time.monotonic_ns()
            self._write(
                "step",
                max(step.start_ns, self._last_end_ns),  # asynchronous steps overlap
                end_ns,
                step.decode_tokens,
                step.prefill_tokens,
                step.running,
                step.waiting,
            )
            self._last_end_ns = end_ns
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


def _open(additional_config: dict[str, Any]) -> IO[str]:
    if KEY not in additional_config:
        raise ConfigError(f"additional_config.{KEY} is required by a recording scheduler")
    return Path(additional_config[KEY]).open("w", encoding="utf-8")
