"""CSV traces: the Azure LLM inference trace, and a plain table of lengths.

    azure     TIMESTAMP,ContextTokens,GeneratedTokens     2023-11-16 18:17:03.9799600,4808,10
    lengths   arrival_s,input_tokens,output_tokens        0.046927,2358,531

The first line names the columns, in any order; further columns are ignored and empty lines
passed over. Neither format shares content between requests. A file that was cut inside its very
last number cannot be told from a whole one (Azure's files end without a newline).

These are not read with pandas or pyarrow: they drop the number of a line, which a refusal names.
"""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hsexp.workload.traces.source import Source, TraceRow, decimal, integer

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
LENGTH_COLUMNS = ("input_tokens", "output_tokens")
ARRIVAL_COLUMN = "arrival_s"

_TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?"
    r"(?P<zone>Z|[+-][0-9]{2}:?[0-9]{2})?"
)
"""A date and a time to the second; `datetime` takes 20231116 for one, too."""
_EPOCH = datetime(1, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def read_azure(source: Source) -> Iterator[TraceRow]:
    """Rows of an Azure trace.

    The trace is in order of time. A row that goes backwards is refused: the file is damaged or was
    joined from several. Times have microsecond resolution.
    """
    latest_ns = 0
    for line in _lines(source, AZURE_COLUMNS):
        time_ns = line.timestamp_ns("TIMESTAMP")
        if time_ns < latest_ns:
            raise source.error(line.number, "TIMESTAMP is earlier than the row before it")
        latest_ns = time_ns
        yield TraceRow(
            line=line.number,
            time_ns=time_ns,
            prompt_tokens=line.length("ContextTokens"),
            output_tokens=line.length("GeneratedTokens"),
        )


def read_lengths(source: Source) -> Iterator[TraceRow]:
    """Rows of a table of lengths; `arrival_s` may be absent, and need not ascend."""
    timed = ARRIVAL_COLUMN in column_names(source)
    columns = (*LENGTH_COLUMNS, ARRIVAL_COLUMN) if timed else LENGTH_COLUMNS
    for line in _lines(source, columns):
        yield TraceRow(
            line=line.number,
            time_ns=line.seconds_ns(ARRIVAL_COLUMN) if timed else None,
            prompt_tokens=line.length("input_tokens"),
            output_tokens=line.length("output_tokens"),
        )


def column_names(source: Source) -> list[str]:
    """The names in the first line of a CSV file.

    Raises:
        TraceError: two columns have one name.
    """
    return _Reader(source).names


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    """One data line of a CSV file, its values by column name."""

    source: Source
    number: int
    values: dict[str, str]

    def length(self, column: str) -> int:
        return self.source.length(self.number, column, integer(self.values[column]))

    def seconds_ns(self, column: str) -> int:
        value = decimal(self.values[column])
        return self.source.time_ns(self.number, column, value, unit_ns=1_000_000_000)

    def timestamp_ns(self, column: str) -> int:
        """A date and time; without a time zone it is UTC."""
        text = self.values[column]
        try:
            if not _TIMESTAMP.fullmatch(text):
                raise ValueError
            when = datetime.fromisoformat(text)
        except ValueError:
            raise self.source.error(
                self.number,
                f"{column} must be a date and time like 2023-11-16 18:17:03.97996, got {text!r}",
            ) from None
        since_epoch = (when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH
        return (since_epoch // _MICROSECOND) * 1_000


class _Reader:
    """Fields of a CSV file, row by row, and the line on which the last one ended."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._rows = csv.reader(self._numbered_lines(), strict=True)
        self.number = 0
        self.names = [name.strip() for name in self.row() or ()]
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise source.error(self.number, f"the columns {twice} occur twice in {self.names}")

    def row(self) -> list[str] | None:
        """The next row; None at the end of the file."""
        try:
            return next(self._rows, None)
        except csv.Error as error:
            raise self._source.error(self.number, str(error)) from None

    def _numbered_lines(self) -> Iterator[str]:
        for number, text in self._source.lines():
            self.number = number
            yield f"{text}\n"


def _lines(source: Source, columns: tuple[str, ...]) -> Iterator[_Line]:
    reader = _Reader(source)
    names = reader.names
    missing = [column for column in columns if column not in names]
    if missing:
        raise source.error(1, f"columns {missing} are missing, the file has {names}")
    while (fields := reader.row()) is not None:
        if len(fields) != len(names):
            raise source.error(
                reader.number, f"expected {len(names)} fields, got {len(fields)}: {fields}"
            )
        yield _Line(
            source=source,
            number=reader.number,
            values={name: text.strip() for name, text in zip(names, fields, strict=True)},
        )
