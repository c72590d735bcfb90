"""The journal of one ledger and its history, kept in step."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hsexp.ledger.history import FIRST_OK, History
from hsexp.ledger.journal import Event, Journal, LedgerError


class Log:
    """A ledger's events as one process has read them. A reader's log is a snapshot."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self.path = path
        self.journal = Journal(path / "journal.jsonl")
        self.history = History()
        self._writable = writable
        self._later: Log | None = None
        """A second log of a reader, newer than its snapshot."""

    def current(self) -> History:
        """The history, with events that other processes added if this one writes."""
        if self._writable:
            self.refresh()
        return self.history

    def latest(self) -> History:
        """The journal as it is now, also for a reader, whose own history stays as it is."""
        if self._writable:
            return self.current()
        if self._later is None:
            self._later = Log(self.path, writable=False)
        self._later.refresh()
        return self._later.history

    def refresh(self) -> None:
        self._apply(self.journal.read_new())

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock, with every event so far read and every implied adoption recorded."""
        self.require_writable()
        with self.journal.exclusive():
            self._apply(self.journal.repair())
            implied = self.history.implied
            if implied:
                self.append([adopt_event(*pair, FIRST_OK) for pair in implied.items()])
            yield

    def append(self, events: Sequence[Event]) -> None:
        """Add events. Call it inside `writing`.

        Raises:
            LedgerError: the disk refused; the ledger is as it was before.
        """
        self.journal.append(events)
        self.refresh()

    def require_header(self) -> Event:
        if self.history.header is None:
            raise LedgerError(f"{self.path}: there is no ledger here; run the campaign first")
        return self.history.header

    def require_writable(self) -> None:
        if not self._writable:
            raise LedgerError(f"{self.path}: opened for reading; use Ledger.open to write")

    def _apply(self, events: Iterable[Event]) -> None:
        try:
            self.history.apply(events)
        except LedgerError as error:
            raise LedgerError(f"{self.journal.path}: {error}") from None


def adopt_event(cell_id: str, attempt_id: str, reason: str) -> Event:
    return {"kind": "adopt", "cell_id": cell_id, "attempt_id": attempt_id, "reason": reason}
