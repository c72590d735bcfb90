"""Records of a trace file, whatever it is written in: CSV, JSON lines, a JSON list, or Parquet.

    csv        the first line names the columns; the values are text
    jsonl      an object a line
    json       a list of objects
    parquet    columns of numbers and text

Blank lines hold no record. A CSV file that was cut inside its very last number cannot be told from
a whole one (Azure's files end without a newline). CSV is not read with pandas or pyarrow: they drop
the number of a line, which a refusal names.
"""

import csv
import difflib
import importlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from hsexp.workload.traces.source import Source, TraceError, decimal, integer

Container = Literal["csv", "jsonl", "json", "parquet"]

_SPACE = re.compile(r"\s*")
_LONGEST_WORD = len("-Infinity")
"""Characters of the longest word or escape that the end of a text can cut."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One record, its values by name."""

    source: Source
    number: int
    """Its line; its row in a file without lines."""
    values: Mapping[str, Any]
    is_text: bool = False
    """Whether numbers are written as text."""

    def value(self, name: str) -> Any:
        """A required value.

        Raises:
            TraceError: it is missing.
        """
        if name not in self.values:
            raise self.error(f"{name} is missing{nearest(name, self.values)}")
        return self.values[name]

    def length(self, name: str, *, remedy: str = "") -> int:
        """A required number of tokens, at least 1."""
        return self.source.length(self.number, name, self.whole(name), remedy=remedy)

    def whole(self, name: str) -> object:
        """A required value as a whole number, if it is one."""
        value = self.value(name)
        return integer(value) if self.is_text else value

    def time_ns(self, name: str, unit_ns: int) -> int:
        """A required time, in units of so many nanoseconds."""
        value = self.value(name)
        number = decimal(value) if self.is_text else value
        return self.source.time_ns(self.number, name, number, unit_ns=unit_ns)

    def date_ns(self, name: str) -> int:
        """A required date and time."""
        return self.source.date_ns(self.number, name, self.value(name))

    def error(self, reason: str) -> TraceError:
        return self.source.error(self.number, reason)


def container_of(source: Source) -> Container:
    """How a file is written: by its suffix, and by its first character where that says nothing."""
    if source.is_parquet:
        return "parquet"
    match source.suffix:
        case ".jsonl" | ".ndjson":
            return "jsonl"
        case ".json":
            return "json"
        case ".csv" | ".tsv":
            return "csv"
    text = "".join(islice(source.chunks(), 1)).lstrip()
    return "jsonl" if text.startswith("{") else "json" if text.startswith("[") else "csv"


def names_of(source: Source, container: Container) -> list[str]:
    """Names of the columns, or of the fields of the first record.

    Raises:
        TraceError: there is no record, or it is broken.
    """
    match container:
        case "csv":
            return _CsvReader(source).names
        case "parquet":
            return list(_parquet(source).schema_arrow.names)
        case "jsonl":
            first: object = next((_object(source, *line) for line in source.lines()), {})
        case "json":
            first = next((value for _, value in listed(source)), {})
    return list(first) if isinstance(first, dict) else []


def read_records(
    source: Source, container: Container, columns: Iterable[str], *, of: str = "requests"
) -> Iterator[Record]:
    """Every record. Where columns have one header, it must have these.

    Args:
        of: what a JSON list holds, for a refusal.

    Raises:
        TraceError: a record is broken, or a column is missing.
    """
    match container:
        case "csv":
            yield from _csv(source, list(columns))
        case "parquet":
            yield from _rows(source, list(columns))
        case "jsonl":
            for number, text in source.lines():
                yield Record(source=source, number=number, values=_object(source, number, text))
        case "json":
            for number, value in listed(source, of=of):
                if not isinstance(value, dict):
                    if of == "conversations":  # its reader says what such a record holds
                        value = {}
                    else:
                        raise source.error(number, f"expected a JSON object, got {value!r:.60}")
                yield Record(source=source, number=number, values=value)


def closest(name: str, names: Iterable[str]) -> str | None:
    """The most similar name, if one is similar."""
    by_lower = {given.lower(): given for given in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[close[0]] if close else None


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint at the most similar name, if one is similar."""
    close = closest(name, names)
    return "" if close is None else f"; the nearest is {close}"


def _require(source: Source, columns: Iterable[str], names: list[str]) -> None:
    missing = [column for column in columns if column not in names]
    if missing:
        hint = "".join(nearest(column, names) for column in missing[:1])
        raise source.error(
            1,
            f"columns {missing} are missing, the file has {names}{hint}; workload.columns names "
            "others",
        )


# -- CSV -------------------------------------------------------------------------------------------


class _CsvReader:
    """Fields of a CSV file, row by row, and the line on which the last one ended."""

    def __init__(self, source: Source) -> None:
        self._source = source
        delimiter = "\t" if source.suffix == ".tsv" else ","
        self._rows = csv.reader(self._numbered_lines(), strict=True, delimiter=delimiter)
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


def _csv(source: Source, columns: list[str]) -> Iterator[Record]:
    reader = _CsvReader(source)
    names = reader.names
    _require(source, columns, names)
    while (fields := reader.row()) is not None:
        if len(fields) != len(names):
            raise source.error(
                reader.number, f"expected {len(names)} fields, got {len(fields)}: {fields}"
            )
        yield Record(
            source=source,
            number=reader.number,
            values=dict(zip(names, map(str.strip, fields), strict=True)),
            is_text=True,
        )


# -- Parquet ---------------------------------------------------------------------------------------


def _parquet(source: Source) -> Any:
    parquet: Any = importlib.import_module("pyarrow.parquet")
    arrow: Any = importlib.import_module("pyarrow")
    try:
        return parquet.ParquetFile(source.path)
    except (OSError, arrow.ArrowException) as error:
        raise source.error(None, f"not a whole Parquet file: {error}") from None


def _rows(source: Source, columns: list[str]) -> Iterator[Record]:
    """Rows of a Parquet file. pandas writes whole numbers as floats where one is missing."""
    file, number = _parquet(source), 0
    _require(source, columns, list(file.schema_arrow.names))
    for batch in file.iter_batches():
        for values in _whole_floats(batch).to_pylist():
            number += 1
            yield Record(source=source, number=number, values=values)


def _whole_floats(batch: Any) -> Any:
    """The batch, with columns of floats that are all whole as integers, and times to the
    microsecond, which is what a `datetime` holds."""
    arrow: Any = importlib.import_module("pyarrow")
    types = arrow.types
    for place, column in enumerate(batch.schema):
        if types.is_floating(column.type):
            wanted = arrow.int64()
        elif types.is_timestamp(column.type):
            wanted = arrow.timestamp("us", tz=column.type.tz)
        else:
            continue
        try:
            cast = batch.column(place).cast(wanted, safe=types.is_floating(column.type))
        except arrow.ArrowInvalid:  # a fraction, or no number
            continue
        batch = batch.set_column(place, arrow.field(column.name, wanted), cast)
    return batch


# -- JSON ------------------------------------------------------------------------------------------


def _object(source: Source, number: int, text: str) -> dict[str, Any]:
    twice: set[str] = set()

    def note_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice.update(name for name in names if names.count(name) > 1)
        return found

    try:
        record = json.loads(text, object_pairs_hook=note_twice)
    except json.JSONDecodeError as error:
        raise source.error(
            number, f"not a whole JSON object ({error.msg} at column {error.colno})"
        ) from None
    except (ValueError, RecursionError) as error:  # too many digits, too deep
        raise source.error(number, f"not a JSON object of a trace ({error})") from None
    if not isinstance(record, dict):
        raise source.error(number, f"expected a JSON object, got {text[:60]}")
    if twice:
        raise source.error(number, f"the fields {sorted(twice)} occur twice")
    return record


def listed(source: Source, *, of: str = "conversations") -> Iterator[tuple[int, object]]:
    """Each element of a JSON list with the line on which it begins.

    One at a time, so that a refusal can name its line and a limit need not read the whole list.
    """
    text = _Text(source)
    if text.next_character() != "[":
        raise source.error(text.line, f"expected a JSON list of {of}")
    text.skip_character()
    separator = text.next_character()
    while separator != "]":
        line = text.line
        yield line, text.value()
        separator = text.next_character()
        if separator == ",":
            text.skip_character()
            text.next_character()
        elif separator != "]":
            raise source.error(text.line, f"broken or cut JSON: the list of {of} does not end")
    text.skip_character()
    if text.next_character():
        raise source.error(text.line, f"text after the list of {of}")


class _Text:
    """A JSON text from its next character on; more of the file is read when it is needed."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._chunks = source.chunks()
        self._decoder = json.JSONDecoder()
        self._text = ""
        self._position = 0
        self._first_line = 1
        """Line on which `_text` begins."""
        self.line = 1
        """Line of the next character."""

    def next_character(self) -> str:
        """Pass over white space. Returns the character after it; empty at the end of the file."""
        while True:
            space = _SPACE.match(self._text, self._position)
            assert space is not None
            self._move(space.end())
            if self._position < len(self._text) or not self._read_on():
                return self._text[self._position : self._position + 1]

    def skip_character(self) -> None:
        self._move(self._position + 1)

    def value(self) -> object:
        """Take the JSON value that begins at the next character.

        Raises:
            TraceError: it is broken or cut.
        """
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._position)
            except json.JSONDecodeError as error:
                if self._may_go_on(error) and self._read_on():
                    continue
                line = self._first_line + error.lineno - 1
                raise self._source.error(line, f"broken or cut JSON: {error.msg}") from None
            except (ValueError, RecursionError) as error:  # too many digits, too deep
                raise self._source.error(self.line, f"broken JSON: {error}") from None
            self._move(end)
            return value

    def _may_go_on(self, error: json.JSONDecodeError) -> bool:
        """Whether more text could mend the value: it ends where the text does."""
        rest = self._text[error.pos :].strip()
        return len(rest) <= _LONGEST_WORD or error.msg.startswith("Unterminated string")

    def _move(self, position: int) -> None:
        self.line += self._text.count("\n", self._position, position)
        self._position = position

    def _read_on(self) -> bool:
        """Read as much again as there is, so that a long value is decoded few times. False at the
        end of the file."""
        kept = self._text[self._position :]
        news: list[str] = []
        while sum(map(len, news)) <= len(kept):
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            news.append(chunk)
        if not any(news):
            return False
        self._text, self._position, self._first_line = kept + "".join(news), 0, self.line
        return True
