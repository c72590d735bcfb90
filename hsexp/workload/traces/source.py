"""A trace file read as far as it is needed, its rows as values, and the error that refuses it."""

import codecs
import gzip
import importlib
import io
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, cast

from hsexp.config.base import ConfigError
from hsexp.workload.request import Segment

_MAX_TOKENS = 2**31 - 1
"""A length above this is not a length but, say, two numbers whose comma was lost."""
_MAX_TIME = 2**53
"""Above this a float no longer tells whole units apart."""
_CHUNK_BYTES = 2**20
_MAX_LINE_BYTES = 2**24
"""A row of a million tokens takes a thousandth of it."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,400}")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf)", re.IGNORECASE)
_TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?"
    r"(?P<zone>Z|[+-][0-9]{2}:?[0-9]{2})?"
)
"""A date and a time to the second; `datetime` takes 20231116 for one, too."""
_EPOCH = datetime(1, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_GZIP, _ZSTD, _PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"
"""First bytes of a file."""
_COMPRESSED = (".gz", ".zst", ".zstd")


class TraceError(ConfigError):
    """A trace was refused; names file, line (from 1; None where no line is to blame), reason.

    In a file without lines, such as Parquet, the number is that of the row.
    """

    def __init__(self, path: Path, line: int | None, reason: str, counted: str = "line") -> None:
        super().__init__(path, line, reason, counted)  # so that a worker process can return it
        self.path = path
        self.line = line
        self.reason = reason
        self.counted = counted

    def __str__(self) -> str:
        place = f"{self.path}" if self.line is None else f"{self.path}, {self.counted} {self.line}"
        return f"{place}: {self.reason}"


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceRow:
    """One request of a trace, before it is placed in the order of arrival."""

    line: int
    """Line of the file on which it begins."""
    prompt_tokens: int
    output_tokens: int
    segments: tuple[Segment, ...] = ()
    time_ns: int | None = None
    """Nanoseconds on the file's own clock; None where the file has no times."""
    conversation: int | None = None
    """Turns of one conversation keep their order; None where the file has no conversations."""
    pause_ns: int | None = None
    """Time from the answer of the turn before; None where the file does not say it."""
    answer: Segment | None = None
    """The output as content that a later prompt may hold; None where none does."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """One trace file. It is read from its start each time, and no further than is asked for.

    Text may be compressed with gzip or Zstandard, which the first bytes tell.
    """

    path: Path

    @classmethod
    def of(cls, path: Path) -> "Source":
        """A UTF-8 file, with or without a byte order mark, or a Parquet file.

        Raises:
            TraceError: the file is missing, not readable, or empty.
        """
        source = cls(path=path)
        if not any(chunk.strip(codecs.BOM_UTF8 + b" \t\r\n") for chunk in source._binary_chunks()):
            raise source.error(1, "the file is empty")
        return source

    @property
    def suffix(self) -> str:
        """Suffix of the name, without that of a compression."""
        suffixes = [suffix.lower() for suffix in self.path.suffixes]
        while suffixes and suffixes[-1] in _COMPRESSED:
            suffixes.pop()
        return suffixes[-1] if suffixes else ""

    @property
    def is_parquet(self) -> bool:
        return self._begins_with(_PARQUET)

    def chunks(self) -> Iterator[str]:
        """The text, a megabyte at a time.

        Raises:
            TraceError: the file is not readable or not text.
        """
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        line = 1
        for data in self._binary_chunks():
            yield self._decoded(decoder, data, line)
            line += data.count(b"\n")
        yield self._decoded(decoder, b"", line, final=True)

    def lines(self) -> Iterator[tuple[int, str]]:
        r"""Each line that is not blank, without its end, and its number.

        Raises:
            TraceError: the file is not readable or not text, or a line holds a carriage return
                that is not part of its end.
        """
        with self._opened() as file:
            read = iter(lambda: self._read(file.readline, _MAX_LINE_BYTES), b"")
            for number, data in enumerate(read, 1):
                if b"\r" in data.rstrip(b"\r\n"):
                    raise self.error(
                        number, "a carriage return stands inside the line; lines must end with \\n"
                    )
                if len(data) == _MAX_LINE_BYTES:
                    raise self.error(number, f"the line is longer than {_MAX_LINE_BYTES:,} bytes")
                decoder = codecs.getincrementaldecoder("utf-8-sig" if number == 1 else "utf-8")()
                text = self._decoded(decoder, data, number, final=True).rstrip("\r\n")
                if text.strip():
                    yield number, text

    def _binary_chunks(self) -> Iterator[bytes]:
        with self._opened() as file:
            yield from iter(lambda: self._read(file.read, _CHUNK_BYTES), b"")

    def _begins_with(self, magic: bytes) -> bool:
        try:
            with self.path.open("rb") as file:
                return file.read(len(magic)) == magic
        except OSError as error:
            raise self._unreadable(error) from None

    def _opened(self) -> BinaryIO:
        try:
            if self._begins_with(_GZIP):
                return cast(BinaryIO, gzip.open(self.path))
            if self._begins_with(_ZSTD):
                arrow = importlib.import_module("pyarrow")
                stream = arrow.input_stream(str(self.path), compression="zstd")
                return io.BufferedReader(stream)
            return self.path.open("rb")
        except OSError as error:
            raise self._unreadable(error) from None

    def _read(self, read: Any, num_bytes: int) -> bytes:
        try:
            data: bytes = read(num_bytes)
        except OSError as error:
            raise self._unreadable(error) from None
        except (EOFError, zlib.error) as error:
            raise self.error(None, f"the compressed file is cut or damaged: {error}") from None
        return data

    def _decoded(
        self, decoder: codecs.IncrementalDecoder, data: bytes, line: int, *, final: bool = False
    ) -> str:
        """The text of data that begins on a line."""
        try:
            return decoder.decode(data, final)
        except UnicodeDecodeError as error:
            line += data[: error.start].count(b"\n")
            raise self.error(line, f"not UTF-8 text ({error.reason})") from None

    def _unreadable(self, error: OSError) -> TraceError:
        return TraceError(self.path, None, error.strerror or str(error))

    def error(self, line: int | None, reason: str) -> TraceError:
        """The refusal of this file; the caller raises it."""
        return TraceError(self.path, line, reason, "row" if self._has_rows else "line")

    @property
    def _has_rows(self) -> bool:
        """Whether its numbers count rows."""
        return self.path.is_file() and self.is_parquet

    def length(self, line: int, name: str, value: object, *, remedy: str = "") -> int:
        """A number of tokens: a whole number, at least 1.

        A request without prompt or output cannot be served, and dropping or lengthening it would
        change the trace unasked, so it is refused.

        Args:
            remedy: what to do about a length of 0; ends the refusal.
        """
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(line, f"{name} must be a whole number, got {value!r}")
        if not 1 <= value <= _MAX_TOKENS:
            reason = f"{name} must be in [1, {_MAX_TOKENS}], got {value}"
            raise self.error(line, reason + (remedy if value == 0 else ""))
        return value

    def time_ns(self, line: int, name: str, value: object, *, unit_ns: int) -> int:
        """A time in whole nanoseconds.

        Args:
            value: the time in the file's own unit: finite, not negative.
            unit_ns: nanoseconds in this unit.
        """
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            hint = "; workload.time_unit=date reads dates" if is_date(value) else ""
            raise self.error(line, f"{name} must be a number, got {value!r}{hint}")
        if value != value or not 0 <= value <= _MAX_TIME:  # NaN differs from itself
            raise self.error(line, f"{name} must be in [0, {_MAX_TIME}], got {value}")
        if isinstance(value, int):
            return value * unit_ns
        return round(Decimal(str(value)) * unit_ns)

    def date_ns(self, line: int, name: str, value: object) -> int:
        """A date and time in whole microseconds, as nanoseconds; without a time zone it is UTC."""
        try:
            if isinstance(value, datetime):
                when = value
            elif isinstance(value, str) and _TIMESTAMP.fullmatch(value):
                when = datetime.fromisoformat(value)
            else:
                raise ValueError
        except ValueError:
            raise self.error(
                line,
                f"{name} must be a date and time like 2023-11-16 18:17:03.97996, got {value!r}",
            ) from None
        since_epoch = (when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH
        return (since_epoch // _MICROSECOND) * 1_000


def is_date(value: object) -> bool:
    """Whether a value looks like a date and time."""
    return isinstance(value, datetime) or (
        isinstance(value, str) and _TIMESTAMP.fullmatch(value) is not None
    )


def integer(text: str) -> object:
    """The whole number in the text; the text itself if it is not one in plain digits."""
    return int(text) if _INTEGER.fullmatch(text) else text


def decimal(text: str) -> object:
    """The exact number in the text; the text itself if it is not one in plain digits."""
    if _NOT_FINITE.fullmatch(text):
        return float(text)
    return Decimal(text) if _DECIMAL.fullmatch(text) else text


_UNIT_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def unit_ns(unit: str) -> int:
    """Nanoseconds in a unit of time; a pause beside dates counts seconds."""
    return _UNIT_NS.get(unit, _UNIT_NS["s"])
