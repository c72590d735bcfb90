"""State of a ledger after its journal's events: attempts, which of them count, and their tables.

Invariant: every cell with an ok attempt that was never excluded has exactly one adopted attempt.
A kill may separate an ok attempt from the event that adopts it; the fold adopts it all the same and
keeps it in `implied` until a writer has added the event. A decision about an attempt that no line
records (its line was damaged and removed by hand) has no effect: its cell is open.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hsexp.ledger.contract import Contract, Term
from hsexp.ledger.journal import Event, LedgerError
from hsexp.ledger.older import contract_of_header

SCHEMA = 1
"""Version of the events. A reader refuses any other."""

TABLE_KINDS = ("requests", "steps", "traces")
"""Tables that an attempt may have; each is a folder, and files of joined tables."""

FIRST_OK = "first ok attempt"

Row = dict[str, Any]

_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("cell_id", "attempt_id", "campaign", "block", "pair_id", "status"), str),
    **dict.fromkeys(("axes", "metrics", "provenance"), dict),
    "reason": (str, type(None)),
}
"""Fields that every row has, and their types."""

_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]*")
"""Ids become file names; one with a slash could point outside the ledger."""

_JOINED = re.compile(rf"({'|'.join(TABLE_KINDS)})-[0-9]+\.parquet")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a joined table is."""

    file: str
    group: int
    """The row group of the file that holds it."""
    sha256: str
    """SHA-256 of that row group's bytes."""


class History:
    """A fold over events; changed by `apply` alone."""

    def __init__(self) -> None:
        self.num_events = 0
        self.header: Event | None = None
        self.extensions: list[Event] = []
        """Terms that the contract gained after the header, in order."""
        self.launches: list[Event] = []
        self.rows: dict[str, Row] = {}
        """Every attempt by its id, in order of recording."""
        self.attempts_of: dict[str, list[str]] = {}
        self.named: set[str] = set()
        """Ids of attempts that any event names, also those without a row; no id is used twice."""
        self.adopted: dict[str, str] = {}
        """The attempt that counts, by cell."""
        self.implied: dict[str, str] = {}
        """Entries of `adopted` that no event records yet."""
        self.adoption_reasons: dict[str, str] = {}
        self.exclusion_reasons: dict[str, str] = {}
        self.places: dict[str, dict[str, Place]] = {kind: {} for kind in TABLE_KINDS}
        """Joined tables by kind and attempt; a loose table has no entry."""
        self.footers: dict[str, str] = {}
        """SHA-256 of the footer of every joined file, also of those removed since."""
        self.registered: Event | None = None
        """The registration event; None in ledgers written before registrations existed."""
        self.amendments: list[Event] = []

    @property
    def contract(self) -> Contract:
        """What the runs share, and what the names in their rows mean."""
        assert self.header is not None
        contract = contract_of_header(self.header["contract"], self._runs())
        for event in self.extensions:
            contract = contract.extended(Contract.of(event["contract"]))
        return contract

    def terms_with_runs(self, contract: Contract) -> set[Term]:
        """Terms of a contract that may no longer change. A failed attempt measured nothing."""
        return set().union(*(contract.terms_of(row) for row in self._runs()))

    def _runs(self) -> list[Row]:
        return [row for row in self.rows.values() if row["status"] == "ok"]

    @property
    def registration(self) -> dict[str, Any] | None:
        """The registered fields as they stand after the amendments."""
        if self.registered is None:
            return None
        fields: dict[str, Any] = self.registered["registration"]
        return self.amendments[-1]["after"] if self.amendments else fields

    def next_attempt_id(self, cell_id: str) -> str:
        number = len(self.attempts_of.get(cell_id, [])) + 1
        while (attempt_id := f"{cell_id}-{number}") in self.named:
            number += 1
        return attempt_id

    def apply(self, events: Iterable[Event]) -> None:
        """Add events in journal order.

        Raises:
            LedgerError: an event that this schema does not have; names its line.
        """
        for event in events:
            self.num_events += 1
            try:
                self._apply(event)
            except LedgerError as error:
                raise LedgerError(f"{error} (line {self.num_events})") from None
            except KeyError as error:
                raise LedgerError(
                    f"the field {error} is missing (line {self.num_events})"
                ) from None
            except (TypeError, AttributeError) as error:
                raise LedgerError(f"not an event: {error} (line {self.num_events})") from None

    def _apply(self, event: Event) -> None:
        kind = event["kind"]
        if (self.header is None) != (kind == "header"):
            raise LedgerError(
                f"the first event must be the header, got {kind!r}"
                if self.header is None
                else "a second header; the file contains two journals"
            )
        match kind:
            case "header":
                self._start(event)
            case "extend":
                Contract.of(event["contract"])
                self.extensions.append(event)
            case "launch":
                self.launches.append(event)
            case "attempt":
                self._add(event["row"])
            case "adopt":
                self._adopt(event["cell_id"], event["attempt_id"], event["reason"])
            case "exclude":
                self._exclude(event["cell_id"], event["attempt_id"], event["reason"])
            case "join":
                self._join(event["table"], event["file"], event["footer"], event["attempts"])
            case "register":
                _require(event, "registration", "num_attempts")
                self.registered = event
            case "amend":
                _require(event, "after", "num_attempts", "recorded_at", "reason", "changes")
                self.amendments.append(event)
            case _:
                raise LedgerError(f"no event of schema {SCHEMA} has the kind {kind!r}")

    def _start(self, event: Event) -> None:
        schema = event["schema"]
        if schema != SCHEMA or not isinstance(schema, int) or isinstance(schema, bool):
            is_newer = type(schema) is int and schema > SCHEMA
            hint = "; a newer hsexp wrote this ledger, which only that one can read"
            raise LedgerError(f"schema must be {SCHEMA}, got {schema!r}{hint if is_newer else ''}")
        _require(event, "contract")
        self.header = event

    def _add(self, row: Row) -> None:
        for field, kind in _FIELDS.items():
            if not isinstance(row[field], kind):
                raise LedgerError(f"{field} of a row cannot be {row[field]!r}")
        cell_id, attempt_id = row["cell_id"], row["attempt_id"]
        for name in (cell_id, attempt_id):
            if not _ID.fullmatch(name):
                raise LedgerError(f"the id of a cell or an attempt cannot be {name!r}")
        if attempt_id in self.rows:
            raise LedgerError(f"attempt {attempt_id} is recorded twice")
        self.rows[attempt_id] = row
        self.named.add(attempt_id)
        self.attempts_of.setdefault(cell_id, []).append(attempt_id)
        if row["status"] == "ok" and cell_id not in self.adopted:
            self._count(cell_id, attempt_id, FIRST_OK)
            self.implied[cell_id] = attempt_id

    def _adopt(self, cell_id: str, attempt_id: str, reason: str) -> None:
        self.named.add(attempt_id)
        if attempt_id in self.rows:
            self._count(cell_id, attempt_id, reason)
            self.implied.pop(cell_id, None)

    def _count(self, cell_id: str, attempt_id: str, reason: str) -> None:
        before = self.adopted.get(cell_id)
        if before is not None:
            del self.adoption_reasons[before]
        self.adopted[cell_id] = attempt_id
        self.adoption_reasons[attempt_id] = reason
        self.exclusion_reasons.pop(attempt_id, None)

    def _exclude(self, cell_id: str, attempt_id: str, reason: str) -> None:
        self.named.add(attempt_id)
        self.exclusion_reasons[attempt_id] = reason
        if self.adopted.get(cell_id) == attempt_id:
            del self.adopted[cell_id]
            del self.adoption_reasons[attempt_id]
            self.implied.pop(cell_id, None)

    def _join(self, kind: str, file: str, footer: str, digests: dict[str, str]) -> None:
        """From now on the tables of these attempts are the row groups of a file, in order."""
        if not _JOINED.fullmatch(file) or not file.startswith(f"{kind}-"):
            raise LedgerError(f"the file of joined tables cannot be {file!r}")
        self.footers[file] = footer
        self.named.update(digests)
        for group, (attempt_id, digest) in enumerate(digests.items()):
            self.places[kind][attempt_id] = Place(file=file, group=group, sha256=digest)


def _require(event: Event, *fields: str) -> None:
    for field in fields:
        event[field]
