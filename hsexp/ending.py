"""How every command ends, whatever stops it: in one line and an exit code.

    refused, or a file cannot be used   "error: ..." on standard error                2
    Ctrl-C, SIGTERM, SIGHUP             "stopped by SIGTERM" on standard error        128 + number
    standard output cannot be written   the work goes on, "error: ..." at the end     1

A reader who has seen enough, as in `... | head`, is not an error to report: only the code tells.
"""

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TextIO

from hsexp.console import make_console

EXIT_LOST_OUTPUT, EXIT_REFUSED = 1, 2
EXIT_FAILED_CELLS = 1

_UNUSABLE = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
}
"""What is wrong with a file or its disk, and not with our code."""

_stop: signal.Signals = signal.SIGINT
"""The last signal that asked this process to stop; Python itself handles Ctrl-C."""


class Stopped(KeyboardInterrupt):
    """A stop whose line is printed already."""


def end_well(command: Callable[[], int | None], *refusals: type[Exception]) -> int:
    """Run a command. Returns its exit code, or that of its end; may be nested.

    Args:
        refusals: errors that a user can correct; each ends the command in its own words.
    """
    with _standard_streams() as output, _stops_as_interrupts():
        code = _run(command, refusals)
        output.flush()
        if output.error is not None:
            if output.error.errno != errno.EPIPE:
                print_error(f"error: standard output cannot be written: {output.error.strerror}")
            code = code or EXIT_LOST_OUTPUT
        return code


def print_error(text: str) -> None:
    """Print a line on standard error."""
    make_console(stderr=True).print(text, markup=False)


def file_fault(error: OSError) -> str | None:
    """The error in words where a file, a folder or its disk is at fault; None for any other one."""
    if error.errno not in _UNUSABLE:
        return None
    place = "" if error.filename is None else f"{error.filename}: "
    return f"{place}{error.strerror}"


def stop_code() -> int:
    """The exit code after a stop."""
    return 128 + _stop


def stop_name() -> str:
    """What has asked this process to stop."""
    return "Ctrl-C" if _stop is signal.SIGINT else _stop.name


def refused(reason: object) -> int:
    """Print why a command is refused. Returns its exit code."""
    print_error(f"error: {reason}")
    return EXIT_REFUSED


def _run(command: Callable[[], int | None], refusals: tuple[type[Exception], ...]) -> int:
    try:
        return command() or 0
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
            return 1
        return end.code or 0
    except KeyboardInterrupt as stop:
        if not isinstance(stop, Stopped):
            print_error(f"stopped by {stop_name()}")
        return stop_code()
    except refusals as error:
        return refused(error)
    except OSError as error:
        fault = file_fault(error)
        if fault is None:
            raise
        return refused(fault)


# -- signals ---------------------------------------------------------------------------------------


@contextmanager
def _stops_as_interrupts() -> Iterator[None]:
    """SIGTERM and SIGHUP do what Ctrl-C does, unless they are ignored (`nohup`) or handled."""
    global _stop
    _stop = signal.SIGINT
    before: dict[signal.Signals, Any] = {}
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # by `hsexp.starting`
        with suppress(ValueError):
            before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            with suppress(ValueError):  # not in the main thread
                before[number] = signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Signalled(KeyboardInterrupt):
    """A KeyboardInterrupt proper that passes through `exec` of a text, as dataclasses do, makes
    Python end itself by SIGINT at its exit, even if it was handled."""


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _stop
    _stop = signal.Signals(number)
    raise _Signalled


# -- streams ---------------------------------------------------------------------------------------


class _Stream:
    """A standard stream that never stops a command: what it cannot take is lost, and `error` says
    why. From the first error on it writes to nowhere."""

    def __init__(self, stream: TextIO | None, descriptor: int) -> None:
        self.error: OSError | None = None
        self._descriptor = descriptor
        self._is_closed = stream is None
        self._stream = stream or os.fdopen(descriptor, "w", encoding="utf-8", closefd=False)

    def write(self, text: str) -> int:
        if self._is_closed and self.error is None:
            self.error = OSError(errno.EBADF, os.strerror(errno.EBADF))
        try:
            return self._stream.write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.error = self.error or error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._descriptor)
        os.close(nowhere)
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _standard_streams() -> Iterator[_Stream]:
    """Standard output and error as streams that never stop a command. Yields the former.

    A closed descriptor is opened to nowhere. Otherwise the next file takes its number: a ledger
    that is descriptor 1 would receive what a child process prints.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this
    before = sys.stdout, sys.stderr
    output, errors = _Stream(sys.stdout, 1), _Stream(sys.stderr, 2)
    sys.stdout, sys.stderr = output, errors
    try:
        yield output
    finally:
        errors.flush()
        sys.stdout, sys.stderr = before
