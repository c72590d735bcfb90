"""A trace file as text, its rows as values, and the error that refuses it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hsexp.workload.request import Segment

_MAX_TOKENS = 2**31 - 1
"""A length above this is not a length but, say, two numbers whose comma was lost."""
_MAX_TIME = 2**53
"""Above this a float no longer tells whole units apart."""


class TraceError(ValueError):
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

    prompt_tokens: int
    output_tokens: int
    segments: tuple[Segment, ...] = ()
    arrival_s: float | None = None
    """Seconds after the start of the trace; None where the file has no times."""
    conversation: int | None = None
    """Turns of one conversation keep their order; None where the file has no conversations."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The whole text of one trace file."""

    path: Path
    text: str

    @classmethod
    def read(cls, path: Path) -> "Source":
        """Read a UTF-8 file, with or without a byte order mark.

        Raises:
            TraceError: the file is missing, not readable, not text, or empty.
        """
        try:
            data = path.read_bytes()
        except OSError as error:
            raise TraceError(path, None, error.strerror or str(error)) from None
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data[: error.start].count(b"\n") + 1
            raise TraceError(path, line, f"not UTF-8 text ({error.reason})") from None
        if not text.strip():
            raise TraceError(path, 1, "the file is empty")
        return cls(path=path, text=text)

    def error(self, line: int, reason: str) -> TraceError:
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

    def time(self, line: int, name: str, value: object) -> float:
        """A time in the file's own unit: finite, not negative."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(line, f"{name} must be a number, got {value!r}")
        if not 0 <= value <= _MAX_TIME:  # also refuses NaN
            raise self.error(line, f"{name} must be in [0, {_MAX_TIME}], got {value}")
        return float(value)

    def field(self, line: int, record: dict[str, Any], name: str) -> Any:
        """A required field of a JSON object."""
        if name not in record:
            raise self.error(line, f"{name} is missing")
        return record[name]
