"""Records the events of one memory and its scheduler, the same way in both engines.

The simulator keeps the rows until its run ends. vLLM writes them in batches (`hsexp.trace.file`),
between steps.
"""

import json
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, Protocol

import pyarrow as pa

from hsexp.memory.checkpoint import Checkpoint
from hsexp.memory.hybrid import HybridMemory
from hsexp.memory.observer import Act, LossCause, Observer
from hsexp.memory.pool import PageUse
from hsexp.memory.sequence import Copy, Hit, Refusal, SequenceMemory
from hsexp.memory.stretches import StepStretch
from hsexp.trace.encode import Encoder
from hsexp.trace.schema import SCHEMA_VERSION, Row

BATCH = 2048
"""Rows that are written at once. Larger batches cost less in all, and hold up one step for longer
(2,048 rows: some 10 ms)."""


class Sink(Protocol):
    """Where the tables of a running engine go."""

    dropped: int
    """Events that were lost."""
    write_errors: int

    def write(self, table: pa.Table) -> None: ...


class TraceRecorder(Observer):
    """An observer that keeps every event as a row of `hsexp.trace.schema`.

    It has a method for every event, hence more than twenty of them.
    """

    def __init__(self, *, clock: Callable[[], int] | None = None, sink: Sink | None = None) -> None:
        """
        Args:
            clock: nanoseconds now; None leaves times out.
            sink: takes full batches; None keeps all rows until `finish`.
        """
        self.clock = clock
        self._sink = sink
        self._encoder = Encoder()
        self._rows: list[Row] = []
        self._numbers: dict[int | str, int] = {}
        self._episodes: dict[int, int] = {}
        """Preemptions so far, by number of the request."""
        self._act: tuple[int | None, Act] = (None, "reset")

    def start(self, memory: HybridMemory) -> None:
        """Describe the memory, and watch it from here on. It is empty."""
        cache = memory.cache
        self._cache = cache
        self._pools = cache.pools
        header = {
            "schema": SCHEMA_VERSION,
            "pools": [
                {
                    "name": pool.spec.name,
                    "num_pages": pool.spec.num_pages,
                    "page_bytes": pool.spec.page_bytes,
                }
                for pool in cache.pools
            ],
            "recurrent_pool": cache.pools.index(cache.states.pool),
            "block_size": cache.block_size,
            "kernel_block_size": cache.attention.kernel_block_size,
            "checkpoint_grid": cache.checkpoint_grid,
            "pages_per_state": cache.states.pages_per_state,
            "slab_slots": cache.states.slots_per_slab,
            "headroom_pages": list(memory.admission.headroom_pages),
        }
        self._add("start", json.dumps(header))
        cache.watch(self)

    def finish(self) -> pa.Table:
        """The rows that no sink has taken, with the end record. Nothing may come after it."""
        sink = self._sink
        count = self._encoder.num_events + len(self._rows)
        dropped, write_errors = (0, 0) if sink is None else (sink.dropped, sink.write_errors)
        self._add("end", count, dropped, write_errors)
        rows, self._rows = self._rows, []
        self._cache.observer = None
        for pool in self._pools:
            pool.watch = None
        return self._encoder.encode([_plain(row) for row in rows])

    def flush(self) -> None:
        """Give a full batch to the sink. Call it between steps."""
        if self._sink is not None and len(self._rows) >= BATCH:
            rows, self._rows = self._rows, []
            self._sink.write(self._encoder.encode([_plain(row) for row in rows]))

    # -- the queue ---------------------------------------------------------------------------------

    def on_enter(self, sequence: SequenceMemory, num_tokens: int) -> None:
        cache, keys = self._cache, sequence.keys
        reach = cache.attention.reach(sequence, num_tokens)
        number = self._number(sequence.request_id)
        self._add(
            "enter",
            self._now(),
            number,
            str(sequence.request_id),
            self._episodes[number],
            sequence.num_prompt_tokens,
            num_tokens,
            list(keys.attention[: (reach - 1) // cache.block_size]),
            list(keys.checkpoints[: (reach - 1) // cache.checkpoint_grid]),
        )

    def on_lookup(self, sequence: SequenceMemory, hit: Hit) -> None:
        request = self._number(sequence.request_id)
        self._add("lookup", request, hit.tokens, _name(hit.checkpoint), not hit.ready)

    def on_refuse(self, sequence: SequenceMemory, refusal: Refusal, need: Sequence[int]) -> None:
        cause = "memory"
        if refusal.by_price:
            cause = "price"
        elif refusal.by_headroom:
            cause = "headroom"
        pool = next(i for i, pool in enumerate(self._pools) if pool.spec.name == refusal.pool)
        request = self._number(sequence.request_id)
        self._add("refuse", request, cause, pool, None, list(need), self._free(), 1)

    def on_refuse_again(self, sequence: SequenceMemory, count: int) -> None:
        request = self._number(sequence.request_id)
        self._add("refuse", request, "standing", None, None, None, None, count)

    def on_adopt(self, sequence: SequenceMemory, hit: Hit) -> None:
        number = self._number(sequence.request_id)
        episode = self._episodes[number]
        name = str(sequence.request_id)
        pages = list(hit.blocks)
        self._add("adopt", number, name, episode, hit.tokens, pages, _name(hit.checkpoint))

    # -- pages -------------------------------------------------------------------------------------

    def on_act(self, request_id: int | str | None, act: Act) -> None:
        self._act = (None if request_id is None else self._number(request_id), act)

    def on_take(self, pool: int, pages: Sequence[int], use: PageUse) -> None:
        self._add("take", *self._act, pool, use, list(pages))

    def on_hold(self, pool: int, pages: Sequence[int]) -> None:
        self._add("hold", *self._act, pool, list(pages))

    def on_free(self, pool: int, pages: Sequence[int]) -> None:
        self._add("free", *self._act, pool, list(pages))

    def on_short(self, sequence: SequenceMemory, need: Sequence[int]) -> None:
        self._add("short", self._number(sequence.request_id), list(need), self._free())

    def on_state(self, sequence: SequenceMemory, state: Checkpoint) -> None:
        self._add("state", self._number(sequence.request_id), list(state.pages), state.line)

    def on_copy(self, sequence: SequenceMemory, copy: Copy) -> None:
        request = self._number(sequence.request_id)
        pages, targets = list(copy.source), list(copy.target)
        self._add("copy", request, copy.kind, copy.num_tokens, pages, targets, copy.target_line)

    # -- cached entries ----------------------------------------------------------------------------

    def on_publish_blocks(
        self,
        sequence: SequenceMemory,
        first: int,
        keys: Sequence[Hashable],
        pages: Sequence[int],
        *,
        ahead: bool,
    ) -> None:
        request, size = self._number(sequence.request_id), self._cache.block_size
        end = (first + len(pages)) * size
        self._add("publish", request, "attention", ahead, first, end, list(keys), list(pages))

    def on_publish_state(self, sequence: SequenceMemory, state: Checkpoint, *, ahead: bool) -> None:
        request, tokens = self._number(sequence.request_id), state.tokens
        self._add("publish", request, "state", ahead, None, tokens, [state.key], list(state.pages))

    def on_lose_blocks(self, pool: int, pages: Sequence[int], cause: LossCause) -> None:
        self._add("lose", *self._act, cause, pool, "attention", list(pages))

    def on_lose_state(self, state: Checkpoint, cause: LossCause) -> None:
        pool = self._pools.index(self._cache.states.pool)
        self._add("lose", *self._act, cause, pool, "state", list(state.pages))

    def on_keep(
        self, request_id: int | str, state: Checkpoint, reason: Literal["retained", "pinned"]
    ) -> None:
        self._add("keep", self._number(request_id), reason, state.pages[0], state.refs)

    # -- the schedule ------------------------------------------------------------------------------

    def on_release(self, sequence: SequenceMemory, num_tokens: int, *, preempted: bool) -> None:
        number = self._number(sequence.request_id)
        episode = self._episodes[number]
        cause = "preempted" if preempted else "finished"
        self._add("release", self._now(), number, episode, cause, num_tokens)
        self._episodes[number] += preempted

    def on_chunk(self, request_id: int | str, step: int, start: int, num_tokens: int) -> None:
        number = self._number(request_id)
        self._rows.append(("chunk", step, number, self._episodes[number], start, num_tokens))

    def on_steps(self, stretch: StepStretch) -> None:
        self._rows.append(("step", stretch))

    # -- inside ------------------------------------------------------------------------------------

    def _add(self, kind: str, *values: Any) -> None:
        self._rows.append((kind, self._cache.step, *values))

    def _number(self, request_id: int | str) -> int:
        number = self._numbers.get(request_id)
        if number is None:
            number = self._numbers[request_id] = len(self._numbers)
            self._episodes[number] = 0
        return number

    def _now(self) -> int | None:
        return None if self.clock is None else self.clock()

    def _free(self) -> list[int]:
        return [pool.num_free for pool in self._pools]


def _name(state: Checkpoint | None) -> int | None:
    return None if state is None else state.pages[0]


def _plain(row: Row) -> Row:
    """The row of a stretch of steps, which may have grown until now."""
    if row[0] != "step":
        return row
    steps: StepStretch = row[1]
    return (
        "step",
        steps.first_step,
        steps.start_ns,
        steps.step_ns,
        steps.num_steps,
        steps.decode_tokens,
        steps.prefill_tokens,
        steps.running,
        steps.waiting,
    )
