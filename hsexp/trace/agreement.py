"""Counts of a run that two sources have: its trace, and its tables and counters.

The trace is written where things happen. The tables and counters are kept by the scheduler and by
the memory. A difference means that one of them is wrong.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral

import pandas as pd

from hsexp.trace.pools import Agreement
from hsexp.trace.shortages import checks
from hsexp.trace.trace import Trace
from hsexp.trace.usage import slab_losses, usage
from hsexp.trace.work import lives, work


@dataclass(frozen=True, kw_only=True)
class Count:
    """One quantity of a run from two sources."""

    name: str
    traced: int
    counted: int

    @property
    def agrees(self) -> bool:
        return self.traced == self.counted


def counts(trace: Trace, counted: Mapping[str, object]) -> list[Count]:
    """The totals that both sources have.

    Args:
        counted: totals of the run by name, e.g. those of a ledger's row; others are ignored.
    """
    known = ((name, total, counted.get(name)) for name, total in _totals(trace))
    return [
        Count(name=name, traced=total, counted=int(other))
        for name, total, other in known
        if isinstance(other, Integral | float) and other == other  # not NaN
    ]


def _totals(trace: Trace) -> Iterator[tuple[str, int]]:
    steps, all_lives, calls = work(trace), lives(trace), checks(trace)
    yield (
        "submitted_tokens",
        steps.initial_tokens + steps.resume_tokens + sum(life.decode_tokens for life in all_lives),
    )
    yield "prefill_tokens", steps.initial_tokens + steps.resume_tokens
    yield "decode_tokens", sum(life.decode_tokens for life in all_lives)
    yield "k_records", steps.num_forwards
    yield "initial_prefill_tokens", steps.initial_tokens
    yield "replayed_tokens", steps.resume_tokens
    yield "replayed_output_tokens", sum(life.output_tokens for life in all_lives if life.episode)
    yield "refusals", calls.labels["defer"]
    yield "preemptions", len(calls.preemptions)
    yield "num_preemptions", len(calls.preemptions)
    used = usage(trace)
    yield "num_steps", used.num_steps
    if used.stranded_byte_steps is not None and used.pool_byte_steps is not None:
        yield "stranded_byte_steps", used.stranded_byte_steps
        yield "pool_byte_steps", used.pool_byte_steps
    if used.slabs is not None:
        yield "used_slot_steps", used.slabs.used_slot_steps
        yield "slab_slot_steps", used.slabs.slab_slot_steps
        yield "reclaimed_slabs", slab_losses(trace).reclaimed_slabs
    lost = trace.rows("lose")
    yield "lost_checkpoints", sum(event.entry == "state" for event in lost)
    yield "lost_blocks", sum(len(event.pages) for event in lost if event.entry == "attention")
    published = trace.rows("publish")
    yield "published_checkpoints", sum(event.entry == "state" for event in published)


def requests_agree(trace: Trace, requests: pd.DataFrame) -> Agreement:
    """Requests whose prefill, replay and preemptions are equal in both sources.

    Args:
        requests: the request table of the run.
    """
    names = ["prefill_tokens", "replayed_tokens", "replayed_output_tokens", "num_preemptions"]
    totals: dict[str, list[int]] = {}
    for life in lives(trace):
        total = totals.setdefault(life.id, [0, 0, 0, 0])
        total[1 if life.episode else 0] += life.prefill_tokens
        total[2] += life.output_tokens if life.episode else 0
        total[3] += life.cause == "preempted"
    ids = requests["request_id"].astype(str)
    rows = requests[names].to_numpy().tolist()
    num_equal = sum(
        totals.get(name, [0, 0, 0, 0]) == row for name, row in zip(ids, rows, strict=True)
    )
    return Agreement(num_equal=num_equal, num_all=len(requests))


def steps_agree(trace: Trace) -> Agreement:
    """Steps whose prefill tokens are the sum of their chunks."""
    chunks: dict[int, int] = {}
    for event in trace.rows("chunk"):
        chunks[event.step] = chunks.get(event.step, 0) + event.tokens
    num_equal = num_all = 0
    for event in trace.rows("step"):
        steps = range(event.step, event.step + event.count)
        num_all += event.count
        num_equal += sum(chunks.get(step, 0) == event.prefill_tokens for step in steps)
    return Agreement(num_equal=num_equal, num_all=num_all)
