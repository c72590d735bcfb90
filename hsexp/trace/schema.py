"""The events of a trace, and their columns.

Every event has `seq`, its place in the trace from 0 on, `kind`, and `step`, the number of the
scheduler's step in which it happened. `request` is a number that the first `enter` or `adopt` of a
request gives it, in that order; `id` there is its name in the engine. Pages are those of pool
`pool`; page ids are reused, and a page's life lasts from one `take` to the next. A state's name is
its first page, its representative.
"""

from typing import Any, Final

import pyarrow as pa

SCHEMA_VERSION: Final = 1


class TraceError(ValueError):
    """A trace is torn, has a gap or a drop, or contradicts itself."""


_INT, _LONG, _TEXT = pa.int32(), pa.int64(), pa.string()
_INTS, _LONGS = pa.list_(pa.int32()), pa.list_(pa.int64())

TYPES: Final[dict[str, pa.DataType]] = {
    "seq": _LONG,
    "kind": _TEXT,
    "step": _INT,
    "time_ns": _LONG,  # of the engine's clock
    "duration_ns": _LONG,
    "request": _INT,
    "id": _TEXT,
    "episode": _INT,  # preemptions before it: 0 is INITIAL, others are RESUME
    "act": _TEXT,  # `hsexp.memory.observer.Act`: what the pages move for
    "cause": _TEXT,
    "pool": _INT,
    "use": _TEXT,  # `hsexp.memory.pool.PageUse`
    "entry": _TEXT,  # attention | state
    "ahead": pa.bool_(),  # published before the step that computes it
    "start": _INT,
    "tokens": _INT,
    "prompt_tokens": _INT,
    "decode_tokens": _INT,
    "prefill_tokens": _INT,
    "running": _INT,
    "waiting": _INT,
    "count": _INT,
    "line": _INT,
    "state": _INT,
    "pages": _INTS,
    "targets": _INTS,
    "keys": _LONGS,
    "boundary_keys": _LONGS,
    "need": _INTS,
    "free": _INTS,
    "dropped": _LONG,
    "write_errors": _LONG,
    "text": _TEXT,
}
"""Types of all columns. Counts are tokens, pages or steps; a column that a kind lacks is null."""

COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    # The memory as JSON: pools, block size, checkpoint grid, headroom, slots of a slab.
    "start": ("text",),
    # A request joins the queue, also after a preemption: `tokens` to compute, of which
    # `prompt_tokens` came with it; `keys` of its full attention blocks and `boundary_keys` of its
    # boundaries, both chained: equal keys are equal prefixes.
    "enter": (
        "time_ns", "request", "id", "episode", "prompt_tokens", "tokens", "keys", "boundary_keys",
    ),
    # The joint depth `tokens` that a waiting request would adopt, from state `state`; `ahead`: the
    # coming step has yet to compute it, so that the request waits.
    "lookup": ("request", "tokens", "state", "ahead"),
    # An admission is refused `count` times: pages `need` of each pool beside those `free`, and the
    # first pool that is short. `cause`: memory | headroom | price.
    "refuse": ("request", "cause", "pool", "tokens", "need", "free", "count"),
    # A running request finds no room for its next step.
    "short": ("request", "need", "free"),
    # A request is admitted and adopts `tokens` tokens: attention `pages` and state `state`.
    "adopt": ("request", "id", "episode", "tokens", "pages", "state"),
    # References: pages get an owner, a further one, or lose one.
    "take": ("request", "act", "pool", "use", "pages"),
    "hold": ("request", "act", "pool", "pages"),
    "free": ("request", "act", "pool", "pages"),
    # A request gets a state in `pages`; `line` is its convolution line, -1 if it has none.
    "state": ("request", "pages", "line"),
    # `pages` are copied to `targets` before the step.
    "copy": ("request", "entry", "tokens", "pages", "targets", "line"),
    # Entries become visible: attention blocks from index `start` on, or the state of `tokens`
    # tokens, under `keys`.
    "publish": ("request", "entry", "ahead", "start", "tokens", "keys", "pages"),
    # Entries are lost, for whom `request` and `act` say; `cause` is a `LossCause`.
    "lose": ("request", "act", "cause", "pool", "entry", "pages"),
    # A policy keeps a state beyond execution, which has `count` references, with the kept one.
    # `cause`: retained | pinned.
    "keep": ("request", "cause", "state", "count"),
    # A request leaves after `tokens` computed tokens. `cause`: finished | preempted.
    "release": ("time_ns", "request", "episode", "cause", "tokens"),
    # A step prefilled tokens [start, start + tokens) of a request.
    "chunk": ("request", "episode", "start", "tokens"),
    # `count` equal steps, the first of which is `step`; tokens and requests are those of each.
    "step": (
        "time_ns", "duration_ns", "count", "decode_tokens", "prefill_tokens", "running", "waiting",
    ),
    # How many events came before, and what the writer lost.
    "end": ("count", "dropped", "write_errors"),
}  # fmt: skip
"""Columns of each kind of event, beside `seq`, `kind` and `step`."""

KEY_COLUMNS: Final = ("keys", "boundary_keys")

SCHEMA: Final = pa.schema(list(TYPES.items()))

Row = tuple[Any, ...]
"""(kind, step, values of its columns)"""
