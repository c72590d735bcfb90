r"""An append-only file of JSON events that survives a kill at any byte.

Owns one file and its lock. A line is valid JSON and carries the CRC-32 of its event's bytes::

    {"crc":"1f2e3d4c","event":{"kind":"adopt", ...}}\n

Invariant: up to `offset` the file consists of whole, checked lines, all returned by `read_new`.
Bytes after the last whole line are the torn end of an append that never returned: the next
writer moves them to a side file (`journal.torn-1`, `-2`, ...) before it adds a line. A damaged line
followed by a whole line is not a torn end but damage, and is refused.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

Event = dict[str, Any]

_HEAD = b'{"crc":"'
_MIDDLE = b'","event":'
_TAIL = b"}\n"
_CRC_DIGITS = 8
_BODY = len(_HEAD) + _CRC_DIGITS + len(_MIDDLE)

_LOCK_WAIT_S = 60.0
"""An append takes milliseconds; a process that holds the lock this long is stopped."""
_LOCK_POLL_S = 0.002


class LedgerError(Exception):
    """A ledger cannot be read, written or used for this run; the message names the path."""


class NoTableError(LedgerError):
    """A run has no table of this kind."""


class Journal:
    """The events of one file, shared by any number of processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_lines = 0
        self.offset = 0
        """Bytes of the file that were read and checked."""
        self.set_aside: list[Path] = []
        """Side files that this object wrote."""
        self._lock = FileLock(path.with_suffix(".lock"))

    def read_new(self) -> list[Event]:
        """The events of whole lines added since the last call; a torn end is left alone.

        Raises:
            LedgerError: a damaged line stands before a whole one, or the file has shrunk.
        """
        events, _ = self._scan()
        return events

    def digest(self, *, without: str) -> str:
        """SHA-256 (64 hex digits) of the file's whole lines, except events of one kind."""
        digest = hashlib.sha256()
        for line in _lines(self.path.read_bytes()):
            event = _decode(line)
            if event is not None and event.get("kind") != without:
                digest.update(line)
        return digest.hexdigest()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep every other writer out; may be nested."""
        try:
            self._lock.acquire(timeout=_LOCK_WAIT_S, poll_interval=_LOCK_POLL_S)
        except Timeout:
            raise LedgerError(
                f"{self._lock.lock_file}: another process has held the lock for "
                f"{_LOCK_WAIT_S:.0f} s; is it stopped?"
            ) from None
        except OSError as error:
            raise write_error(Path(self._lock.lock_file), error) from error
        try:
            yield
        finally:
            self._lock.release()

    def repair(self) -> list[Event]:
        """`read_new`, then set a torn end aside so that a line can be added."""
        with self.exclusive():
            events, torn = self._scan()
            if torn:
                self._move_torn_end(torn)
            return events

    def append(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Add all events in one write and wait until the disk has them.

        The caller is inside `exclusive` and has called `repair`, so that it has read every line
        before its own. `read_new` returns the events afterwards.

        Raises:
            LedgerError: the disk refused; the file is as it was before.
        """
        assert self._lock.is_locked, "append needs the lock"
        data = b"".join(_encode(event) for event in events)
        try:
            self._write(data)
        except OSError as error:
            raise write_error(self.path, error) from error

    def _write(self, data: bytes) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            assert os.fstat(descriptor).st_size == self.offset, "append needs a repaired journal"
            try:
                # One call, unless the disk fills during it: then the next call raises.
                written = os.write(descriptor, data)
                while written < len(data):
                    written += os.write(descriptor, data[written:])
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, self.offset)
                raise
        finally:
            os.close(descriptor)

    def _scan(self) -> tuple[list[Event], bytes]:
        """Whole lines from `offset` on, and the bytes after the last of them."""
        lines = _lines(self._read_from_offset())
        events: list[Event] = []
        for index, line in enumerate(lines):
            event = _decode(line)
            if event is None:
                torn = b"".join(lines[index:])
                if any(_decode(later) is not None for later in lines[index + 1 :]):
                    raise LedgerError(
                        f"{self.path}, line {self.num_lines + 1}: the line is damaged (its "
                        "checksum does not match) and whole lines follow it; restore the file "
                        "from a copy, or remove the line by hand and the run will be repeated"
                    )
                return events, torn
            events.append(event)
            self.num_lines += 1
            self.offset += len(line)
        return events, b""

    def _read_from_offset(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < self.offset:
                    raise LedgerError(
                        f"{self.path}: the file has shrunk from {self.offset} to {size} bytes "
                        "while it was open; something else writes to it"
                    )
                file.seek(self.offset)
                return file.read()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be read: {error.strerror}") from error

    def _move_torn_end(self, torn: bytes) -> None:
        aside = self._free_side_path()
        write_durably(aside, torn)
        try:
            os.truncate(self.path, self.offset)
        except OSError as error:
            raise write_error(self.path, error) from error
        self.set_aside.append(aside)

    def _free_side_path(self) -> Path:
        number = 1
        while (path := self.path.with_suffix(f".torn-{number}")).exists():
            number += 1
        return path


def write_durably(path: Path, data: bytes) -> None:
    """Write a file so that it exists whole or not at all, also after a power failure.

    Raises:
        LedgerError: the disk refused; nothing is left behind.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise write_error(path, error) from error


def sync_directory(path: Path) -> None:
    """Make new and renamed names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_error(path: Path, error: OSError) -> LedgerError:
    return LedgerError(f"{path}: cannot be written: {error.strerror}")


def _lines(data: bytes) -> list[bytes]:
    *whole, rest = data.split(b"\n")
    return [line + b"\n" for line in whole] + ([rest] if rest else [])


def _encode(event: Mapping[str, Any]) -> bytes:
    text = json.dumps(event, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    body = text.encode()
    return _HEAD + b"%08x" % zlib.crc32(body) + _MIDDLE + body + _TAIL


def _decode(line: bytes) -> Event | None:
    """The event of a whole line, None for any other bytes."""
    if not (line.startswith(_HEAD) and line.endswith(_TAIL)):
        return None
    crc, middle = line[len(_HEAD) : len(_HEAD) + _CRC_DIGITS], line[_BODY - len(_MIDDLE) : _BODY]
    body = line[_BODY : -len(_TAIL)]
    if middle != _MIDDLE or crc != b"%08x" % zlib.crc32(body):
        return None
    event: Event = json.loads(body)
    return event
