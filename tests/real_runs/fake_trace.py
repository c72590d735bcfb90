"""The trace of the scripted server: a real memory and a real recorder, and no scheduler."""

import threading
import time
from pathlib import Path
from typing import Any

from hsexp.engine.settings import EngineSettings
from hsexp.memory import SequenceMemory
from hsexp.memory.sequence import PrefixKeys
from hsexp.memory.stretches import StepStretch
from hsexp.trace import TraceRecorder
from hsexp.trace import recorder as recording
from hsexp.trace.file import TraceFile


class FakeTrace:
    """Every request has a step for its prompt and one for each further token."""

    def __init__(self, path: Path, additional_config: dict[str, Any]) -> None:
        recording.BATCH = 1  # a kill finds events in the file
        self._path = path
        self._lock = threading.Lock()
        self._file = TraceFile(path)
        self._memory = EngineSettings.of(additional_config).memory()
        self._recorder = TraceRecorder(clock=time.monotonic_ns, sink=self._file)
        self._recorder.start(self._memory)

    def admit(self, request_id: str, num_tokens: int) -> SequenceMemory:
        with self._lock:
            memory = self._memory
            keys = PrefixKeys(attention=[], checkpoints=[])
            sequence = SequenceMemory(
                request_id=request_id, keys=keys, num_prompt_tokens=num_tokens
            )
            memory.enter(sequence, num_tokens)
            memory.cache.step += 1
            memory.admit(sequence, memory.lookup(sequence, num_tokens), num_tokens)
            assert memory.extend(sequence, 0, num_tokens)
            self._recorder.on_chunk(request_id, memory.cache.step, 0, num_tokens)
            return sequence

    def step(self, start_ns: int, decode_tokens: int, prefill_tokens: int) -> None:
        with self._lock:
            self._recorder.on_steps(
                StepStretch(
                    first_step=self._memory.cache.step,
                    num_steps=1,
                    start_ns=start_ns,
                    step_ns=time.monotonic_ns() - start_ns,
                    decode_tokens=decode_tokens,
                    prefill_tokens=prefill_tokens,
                    running=1,
                    waiting=0,
                )
            )
            self._recorder.flush()

    def release(self, sequence: SequenceMemory, num_tokens: int) -> None:
        with self._lock:
            self._memory.release(sequence, num_tokens)

    def end(self, fault: str | None) -> None:
        """Write the end record, unless `fault` is one of none | gap | full | torn."""
        with self._lock:
            if fault == "full":
                self._file.dropped, self._file.write_errors = 3, 1
            last = self._recorder.finish()
            if fault == "gap":
                last = last.slice(1)
            if fault == "none":
                return
            self._file.close(last)
            if fault == "torn":
                data = self._path.read_bytes()
                self._path.write_bytes(data[:-100])
