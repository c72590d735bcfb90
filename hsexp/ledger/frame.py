"""The attempts as a table: identity, axes, outcome, metrics and provenance as columns."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from hsexp.ledger.attempt import IDENTITY_COLUMNS, PROVENANCE_COLUMNS
from hsexp.ledger.history import History
from hsexp.ledger.journal import LedgerError

COMPARABLE_COLUMNS = ("engine", "device", "time_model")
"""Rows that differ in one of these are never analysed together."""


def attempt_frame(history: History, ids: Sequence[str]) -> pd.DataFrame:
    """One row for each of the attempts. Unknown numbers are NaN, unknown texts NA."""
    rows = [history.rows[attempt_id] for attempt_id in ids]
    columns: dict[str, pd.Series[Any]] = {}
    for name in IDENTITY_COLUMNS:
        columns[name] = _texts(row[name] for row in rows)
    for name in _union(row["axes"] for row in rows):
        columns[name] = pd.Series([row["axes"].get(name) for row in rows])
    columns["status"] = _texts(row["status"] for row in rows)
    columns["reason"] = _texts(row["reason"] for row in rows)
    columns["adopted"] = pd.Series([i in history.adoption_reasons for i in ids], dtype="bool")
    columns["adoption_reason"] = _texts(history.adoption_reasons.get(i) for i in ids)
    columns["exclusion_reason"] = _texts(history.exclusion_reasons.get(i) for i in ids)
    for name in _union(row["metrics"] for row in rows):
        columns[name] = _numbers(row["metrics"].get(name) for row in rows)
    for name in PROVENANCE_COLUMNS:
        values = [row["provenance"].get(name) for row in rows]
        columns[name] = _numbers(values) if name == "wall_s" else _texts(map(_text, values))
    return pd.DataFrame(columns)


def require_comparable(frame: pd.DataFrame, *, source: str) -> None:
    """Refuse rows of several engines, devices or time models, also of concatenated ledgers.

    Raises:
        LedgerError: names the column, its values and how many rows have each.
    """
    for column in COMPARABLE_COLUMNS:
        counts = frame[column].value_counts(dropna=False)
        if len(counts) > 1:
            found = " and ".join(f"{value!r} in {count} rows" for value, count in counts.items())
            raise LedgerError(
                f"{source}: rows of one analysis must share their {column}, got {found}; "
                "select the rows of one from attempts()"
            )


def _union(mappings: Iterable[Mapping[str, Any]]) -> list[str]:
    """All keys in the order they were first seen."""
    return list(dict.fromkeys(key for mapping in mappings for key in mapping))


def _text(value: object) -> str | None:
    """A text as it is; nested provenance as JSON."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _texts(values: Iterable[str | None]) -> "pd.Series[Any]":
    return pd.Series(list(values), dtype="string")


def _numbers(values: Iterable[float | None]) -> "pd.Series[Any]":
    """A column of integers where all values are known integers, else of floats."""
    known = [math.nan if value is None else value for value in values]
    whole = bool(known) and all(isinstance(value, int) for value in known)
    return pd.Series(known, dtype="int64" if whole else "float64")
