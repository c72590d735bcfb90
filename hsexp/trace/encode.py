"""Rows of events as Arrow tables."""

from collections.abc import Hashable
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from hsexp.trace.schema import COLUMNS, KEY_COLUMNS, SCHEMA, TYPES, Row

_ORDER = "place"


class Encoder:
    """Numbers the events of one trace, and the keys that are no integers."""

    def __init__(self) -> None:
        self.num_events = 0
        self._key_numbers: dict[Hashable, int] = {}

    def encode(self, rows: list[Row]) -> pa.Table:
        """The next events as a table of `SCHEMA`, in the order of the rows."""
        by_kind: dict[str, list[int]] = {}
        for place, row in enumerate(rows):
            by_kind.setdefault(row[0], []).append(place)
        tables = [
            self._of_kind(kind, [rows[place] for place in places]).append_column(
                _ORDER, pa.array(places, pa.int64())
            )
            for kind, places in by_kind.items()
        ]
        table = pa.concat_tables(tables, promote_options="default") if tables else pa.table({})
        first, self.num_events = self.num_events, self.num_events + len(rows)
        columns: dict[str, Any] = {"seq": pa.array(np.arange(first, self.num_events))}
        if tables:
            table = table.take(pa.array(np.argsort(table.column(_ORDER).to_numpy())))
        for name, kind in TYPES.items():
            if name in table.column_names:
                columns[name] = table.column(name).cast(kind)
            elif name not in columns:
                columns[name] = pa.nulls(len(rows), kind)
        return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)

    def _of_kind(self, kind: str, rows: list[Row]) -> pa.Table:
        names = ("step", *COLUMNS[kind])
        values = list(zip(*rows, strict=True))[1:]
        arrays = [self._array(name, column) for name, column in zip(names, values, strict=True)]
        return pa.table(
            [pa.array([kind] * len(rows), TYPES["kind"]), *arrays], names=["kind", *names]
        )

    def _array(self, name: str, values: tuple[Any, ...]) -> pa.Array:
        kind = TYPES[name]
        if not pa.types.is_list(kind) or None in values:
            return pa.array(values, kind)
        # One flat list is much faster than a list at a time.
        lengths = np.fromiter(map(len, values), dtype=np.int32, count=len(values))
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        flat = list(chain.from_iterable(values))
        if name in KEY_COLUMNS and not set(map(type, flat)) <= {int}:
            flat = list(map(self._number, flat))
        return pa.ListArray.from_arrays(
            pa.array(offsets), pa.array(flat, kind.value_type), type=kind
        )

    def _number(self, key: Hashable) -> int:
        """An integer is its own number; others get negative ones."""
        if type(key) is int:
            return key
        return -1 - self._key_numbers.setdefault(key, len(self._key_numbers))
