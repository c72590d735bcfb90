"""A trace file read as far as it is needed, its rows as values, and the error that refuses it."""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

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


class TraceError(ConfigError):
    """A trace was refused; names file, line (from 1; None where no line is to blame), reason."""

    def __init__(self, path: Path, line: int | None, reason: str) -> None:
        super().__init__(path, line, reason)  # all three, so that a worker process can return it
        self.path = path
        self.line = line
        self.reason = reason

    def __str__(self) -> str:
        place = f"{self.path}" if self.line is None else f"{self.path}, line {self.line}"
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


@dataclass(frozen=True, kw_only=True)
class Source:
    """One trace file. It is read from its start each time, and no further than is asked for."""

    path: Path

    @classmethod
    def of(cls, path: Path) -> "Source":
        """A UTF-8 file, with or without a byte order mark.

        Raises:
            TraceError: the file is missing, not readable, or empty.
        """
        source = cls(path=path)
        if not any(chunk.strip(codecs.BOM_UTF8 + b" \t\r\n") for chunk in source._binary_chunks()):
            raise source.error(1, "the file is empty")
        return source

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
                decoder = codecs.getincrementaldecoder("utf-8-sig" if number == 1 else "utf-8")()
                if b"\r" in data.rstrip(b"\r\n"):
                    raise self.error(
                        number, "a carriage return stands inside the line; lines must end with \\n"
                    )
                if len(data) == _MAX_LINE_BYTES:
                    raise self.error(number, f"the line is longer than {_MAX_LINE_BYTES:,} bytes")
                text = self._decoded(decoder, data, number, final=True).rstrip("\r\n")
                if text.strip():
                    yield number, text

    def _binary_chunks(self) -> Iterator[bytes]:
        with self._opened() as file:
            yield from iter(lambda: self._read(file.read, _CHUNK_BYTES), b"")

    def _opened(self) -> BinaryIO:
        try:
            return self.path.open("rb")
        except OSError as error:
            raise self._unreadable(error) from None

    def _read(self, read: Any, num_bytes: int) -> bytes:
        try:
            data: bytes = read(num_bytes)
        except OSError as error:
            raise self._unreadable(error) from None
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
        return TraceError(self.path, line, reason)

    def length(self, line: int, name: str, value: object) -> int:
        """A number of tokens: a whole number, at least 1.

        A request without prompt or output cannot be served, and dropping or lengthening it would
        change the trace unasked, so it is refused.
        """
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(line, f"{name} must be a whole number, got {value!r}")
        if not 1 <= value <= _MAX_TOKENS:
            raise self.error(line, f"{name} must be in [1, {_MAX_TOKENS}], got {value}")
        return value

    def time_ns(self, line: int, name: str, value: object, *, unit_ns: int) -> int:
        """A time in whole nanoseconds.

        Args:
            value: the time in the file's own unit: finite, not negative.
            unit_ns: nanoseconds in this unit.
        """
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise self.error(line, f"{name} must be a number, got {value!r}")
        if value != value or not 0 <= value <= _MAX_TIME:  # NaN differs from itself
            raise self.error(line, f"{name} must be in [0, {_MAX_TIME}], got {value}")
        return round(Decimal(str(value)) * unit_ns)

    def field(self, line: int, record: dict[str, Any], name: str) -> Any:
        """A required field of a JSON object."""
        if name not in record:
            raise self.error(line, f"{name} is missing")
        return record[name]


def integer(text: str) -> object:
    """The whole number in the text; the text itself if it is not one in plain digits."""
    return int(text) if _INTEGER.fullmatch(text) else text


def decimal(text: str) -> object:
    """The exact number in the text; the text itself if it is not one in plain digits."""
    if _NOT_FINITE.fullmatch(text):
        return float(text)
    return Decimal(text) if _DECIMAL.fullmatch(text) else text
