"""CSV traces: the Azure LLM inference trace, and a plain table of lengths.

    azure     TIMESTAMP,ContextTokens,GeneratedTokens     2023-11-16 18:17:03.9799600,4808,10
    lengths   arrival_s,input_tokens,output_tokens        0.046927,2358,531

The first line names the columns, in any order; further columns are ignored and empty lines
passed over. Neither format shares content between requests. A file that was cut inside its very
last number cannot be told from a whole one (Azure's files end without a newline).
"""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from hsexp.workload.traces.source import Source, TraceRow

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
LENGTH_COLUMNS = ("input_tokens", "output_tokens")
ARRIVAL_COLUMN = "arrival_s"


def read_azure(source: Source, limit: int | None) -> list[TraceRow]:
    """Rows of an Azure trace; times count from the first row.

    The trace is in order of time. A row that goes backwards is refused: the file is damaged or was
    joined from several. Times have microsecond resolution.
    """
    rows: list[TraceRow] = []
    start: datetime | None = None
    latest_s = 0.0
    for line in islice(_lines(source, AZURE_COLUMNS), limit):
        when = line.timestamp("TIMESTAMP")
        start = start or when
        arrival_s = (when - start).total_seconds()
        if arrival_s < latest_s:
            raise source.error(line.number, "TIMESTAMP is earlier than the row before it")
        latest_s = arrival_s
        rows.append(
            TraceRow(
                arrival_s=arrival_s,
                prompt_tokens=line.length("ContextTokens"),
                output_tokens=line.length("GeneratedTokens"),
            )
        )
    return rows


def read_lengths(source: Source, limit: int | None) -> list[TraceRow]:
    """Rows of a table of lengths; `arrival_s` may be absent.

    Times are kept as they are. Such a table need not be in order of time, so its rows are sorted
    by `arrival_s`, equal times in the order of the file.
    """
    timed = ARRIVAL_COLUMN in column_names(source)
    columns = (*LENGTH_COLUMNS, ARRIVAL_COLUMN) if timed else LENGTH_COLUMNS
    rows = [
        TraceRow(
            arrival_s=line.seconds(ARRIVAL_COLUMN) if timed else None,
            prompt_tokens=line.length("input_tokens"),
            output_tokens=line.length("output_tokens"),
        )
        for line in islice(_lines(source, columns), limit)
    ]
    return sorted(rows, key=lambda row: row.arrival_s or 0.0)


def column_names(source: Source) -> list[str]:
    """The names in the first line of a CSV file."""
    first_line = source.text.split("\n", 1)[0]
    return [name.strip() for name in next(csv.reader([first_line]))]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    """One data line of a CSV file, its values by column name."""

    source: Source
    number: int
    values: dict[str, str]

    def length(self, column: str) -> int:
        return self.source.length(self.number, column, _parsed(int, self.values[column]))

    def seconds(self, column: str) -> float:
        return self.source.time(self.number, column, _parsed(float, self.values[column]))

    def timestamp(self, column: str) -> datetime:
        """A date and time; without a time zone it is UTC."""
        text = self.values[column]
        try:
            when = datetime.fromisoformat(text)
        except ValueError:
            raise self.source.error(
                self.number, f"{column} must be a date and time, got {text!r}"
            ) from None
        return when if when.tzinfo else when.replace(tzinfo=UTC)


def _parsed(kind: type[int] | type[float], text: str) -> object:
    """The number in the text; the text itself if it is not a number."""
    try:
        return kind(text)
    except ValueError:
        return text


def _lines(source: Source, columns: tuple[str, ...]) -> Iterator[_Line]:
    names = column_names(source)
    missing = [column for column in columns if column not in names]
    if missing:
        raise source.error(1, f"columns {missing} are missing, the file has {names}")
    reader = csv.reader(io.StringIO(source.text, newline=""))
    next(reader)
    try:
        for fields in reader:
            if not fields:
                continue
            if len(fields) != len(names):
                raise source.error(
                    reader.line_num, f"expected {len(names)} fields, got {len(fields)}: {fields}"
                )
            yield _Line(
                source=source,
                number=reader.line_num,
                values={name: text.strip() for name, text in zip(names, fields, strict=True)},
            )
    except csv.Error as error:
        raise source.error(reader.line_num, str(error)) from None
