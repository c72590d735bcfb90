"""Which format a trace file has, and what reads it.

`workload.format` names it. `auto` tells it from the names of columns or fields; columns that the
settings name stand in for the format's own.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from hsexp.workload.traces.config import FormatName, TraceWorkload
from hsexp.workload.traces.records import Container, closest, container_of, names_of, nearest
from hsexp.workload.traces.source import Source, TraceRow
from hsexp.workload.traces.tables import (
    AIPERF,
    GUIDELLM,
    LENGTHS,
    TABLES,
    TableFormat,
    TableReader,
)
from hsexp.workload.traces.texts import TEXT_FIELDS, TextReader, is_guidellm_dialogue


class Reader(Protocol):
    def rows(self) -> Iterator[TraceRow]:
        """The rows in the order of the file.

        Raises:
            TraceError: a row cannot be served.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How one file is read."""

    name: FormatName
    reader: Reader
    dropped: Counter[str]
    """Rows that the reader left out so far, by the reason."""
    is_sorted: bool
    """Whether rows come in order of time, or are refused."""
    infers_history: bool
    """Whether sessions say what their turns share (`hsexp.workload.traces.sessions`)."""


def reading_of(source: Source, spec: TraceWorkload) -> Reading:
    """How a file is read.

    Raises:
        TraceError: its format cannot be told, or a column that the settings name is not there.
        ConfigError: the tokenizer cannot be loaded.
    """
    container = container_of(source)
    names = names_of(source, container)
    _require_given(source, spec, names)
    name = _told(source, container, spec, names) if spec.format == "auto" else spec.format
    table = _table(name, names)
    dropped: Counter[str] = Counter()
    if table is None:
        texts = TextReader(source, container, name, spec, names, dropped)
        return Reading(
            name=name, reader=texts, dropped=dropped, is_sorted=False, infers_history=False
        )
    table = table.named(spec)
    lengths = TableReader(source, container, table, spec, names, dropped)
    hashes = table.columns.get("hashes", table.optional.get("hashes"))
    return Reading(
        name=name,
        reader=lengths,
        dropped=dropped,
        is_sorted=table.is_sorted,
        infers_history=hashes not in names,
    )


def _require_given(source: Source, spec: TraceWorkload, names: list[str]) -> None:
    for role, name in spec.columns.given.items():
        if names and name not in names:
            raise source.error(
                1,
                f"workload.columns.{role}={name} is not in the file, which has "
                f"{names}{nearest(name, names)}",
            )


def _table(name: FormatName, names: list[str]) -> TableFormat | None:
    """The table of a format; None where the file holds text."""
    if name == "guidellm" and ("prompt" in names or is_guidellm_dialogue(names)):
        return None
    if name == "aiperf" and not set(names).isdisjoint(TEXT_FIELDS["aiperf"]):
        return None
    return next((table for table in TABLES if table.name == name), None)


def _told(
    source: Source, container: Container, spec: TraceWorkload, names: list[str]
) -> FormatName:
    given = spec.columns.given.keys()
    for table in TABLES:
        # Where the settings name all of its columns, nothing of the format is left to tell.
        is_told = table is LENGTHS or not table.columns.keys() <= given
        if table not in (AIPERF, GUIDELLM) and is_told and _has_all(table.named(spec), names):
            return table.name
    for name in ("sharegpt", "openai", "aiperf"):
        if not set(names).isdisjoint(TEXT_FIELDS[name]):
            return _text_format(name)
    if is_guidellm_dialogue(names) or {"prompt", "output_tokens_count"} <= set(names):
        return "guidellm"
    if "prompt" in names:
        return "vllm"
    if _has_all(AIPERF.named(spec), names):
        if "session_id" in names or "delay" in names or "timestamp" not in names:
            return "aiperf"
        if spec.time_unit is not None:
            return "guidellm"
        raise source.error(
            1,
            "timestamp may count seconds or milliseconds: workload.format=guidellm reads "
            "seconds, workload.format=aiperf milliseconds",
        )
    if container == "json":
        return "sharegpt"
    raise source.error(1, _not_told(names, spec))


def _text_format(name: str) -> FormatName:
    return "openai" if name == "openai" else "aiperf" if name == "aiperf" else "sharegpt"


def _has_all(table: TableFormat, names: list[str]) -> bool:
    needed = [*table.columns.values(), *([table.parent] if table.parent else [])]
    return set(needed) <= set(names)


def _not_told(names: list[str], spec: TraceWorkload) -> str:
    """Why no format fits, and which is the nearest."""
    tables = [table.named(spec) for table in TABLES]
    present = [sum(name in names for name in table.columns.values()) for table in tables]
    table = tables[present.index(max(present))] if any(present) else LENGTHS.named(spec)
    missing = [name for name in table.columns.values() if name not in names]
    known = {*table.columns.values(), *table.optional.values()}
    unused = [name for name in names if name not in known]
    mapping = " ".join(
        f"workload.columns.{role}={closest(name, unused) or 'NAME'}"
        for role, name in table.columns.items()
        if name in missing
    )
    return (
        f"cannot tell the format from {names}: the nearest is {table.name}, which also needs "
        f"{missing}; {mapping} reads other columns"
    )
