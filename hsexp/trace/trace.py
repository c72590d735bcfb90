"""A verified trace."""

import json
from collections import namedtuple
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from hsexp.trace.schema import COLUMNS, SCHEMA_VERSION, TraceError

Event = Any
"""A named tuple with the columns of its kind."""


@dataclass(frozen=True, kw_only=True)
class TracedPool:
    """Size of one pool; `num_pages` includes the null page, which nobody gets."""

    name: str
    num_pages: int
    page_bytes: int


@dataclass(frozen=True, kw_only=True)
class TracedMemory:
    """The memory that a trace is of."""

    pools: tuple[TracedPool, ...]
    recurrent_pool: int
    """Number of the pool that states are in; 0 is attention's."""
    block_size: int
    kernel_block_size: int
    checkpoint_grid: int
    pages_per_state: int
    slab_slots: int | None
    """Convolution slots of a slab; None where states are in pages of their own."""
    headroom_pages: tuple[int, ...]


class Trace:
    """The events of one run, complete: no gap, no drop, and an end."""

    def __init__(self, table: pa.Table) -> None:
        """
        Args:
            table: of `hsexp.trace.schema.SCHEMA`, in order.

        Raises:
            TraceError: it is not a whole trace.
        """
        self.table = table
        _require_whole(table)
        self.memory = _memory(table)

    def __len__(self) -> int:
        return len(self.table)

    def rows(self, *kinds: str) -> list[Event]:
        """The events of these kinds as tuples of plain values, in order; faster than `events`."""
        rows: list[Event] = []
        for kind in kinds:
            of_kind = self.table.filter(pc.equal(self.table["kind"], kind))
            make = event_type(kind)
            columns = [of_kind[name].to_pylist() for name in make._fields if name != "kind"]
            rows += [make(kind, *values) for values in zip(*columns, strict=True)]
        rows.sort(key=_seq)
        return rows

    def events(self, *kinds: str) -> pd.DataFrame:
        """The events of these kinds with the columns of any of them, in order.

        Columns that are null in some events have pandas' nullable types.
        """
        rows = self.table.filter(pc.is_in(self.table["kind"], pa.array(kinds)))
        names = dict.fromkeys(name for kind in kinds for name in COLUMNS[kind])
        frame: pd.DataFrame = rows.select(["seq", "kind", "step", *names]).to_pandas(
            types_mapper=_nullable, integer_object_nulls=False
        )
        return frame


@cache
def event_type(kind: str) -> Any:
    """The named tuple of a kind: `kind`, `seq`, `step`, and its columns."""
    return namedtuple(kind, ["kind", "seq", "step", *COLUMNS[kind]])


def _seq(event: Event) -> int:
    return event.seq  # type: ignore[no-any-return]


def _nullable(kind: pa.DataType) -> Any:
    if pa.types.is_int32(kind) or pa.types.is_int64(kind):
        return pd.Int64Dtype()
    if pa.types.is_boolean(kind):
        return pd.BooleanDtype()
    return None


def _require_whole(table: pa.Table) -> None:
    if not len(table) or table["kind"][0].as_py() != "start":
        raise TraceError("the trace has no start")
    last = table.slice(len(table) - 1).to_pylist()[0]
    if last["kind"] != "end":
        raise TraceError(f"the trace has no end record after {len(table)} events")
    if last["dropped"] or last["write_errors"]:
        raise TraceError(
            f"the trace has dropped {last['dropped']} events in {last['write_errors']} failed "
            "writes"
        )
    seq = table["seq"].to_numpy()
    expected = np.arange(len(table))
    if not np.array_equal(seq, expected):
        gap = int(np.flatnonzero(seq != expected)[0])
        raise TraceError(f"the trace has a gap at event {gap}")
    if last["count"] != len(table) - 1:
        raise TraceError(
            f"the trace has {len(table) - 1} events and its end record says {last['count']}"
        )


def _memory(table: pa.Table) -> TracedMemory:
    header = json.loads(table["text"][0].as_py())
    if header.pop("schema") != SCHEMA_VERSION:
        raise TraceError(f"the trace has another schema than {SCHEMA_VERSION}")
    pools = tuple(TracedPool(**pool) for pool in header.pop("pools"))
    headroom = tuple(header.pop("headroom_pages"))
    return TracedMemory(pools=pools, headroom_pages=headroom, **header)
