"""What a journal's events add up to: the attempts, and which of them count.

Invariant: every cell with an ok attempt that was never excluded has exactly one adopted attempt.
A kill may part an ok attempt from the event that adopts it; the fold adopts it all the same and
keeps it in `implied` until a writer has added the event.
"""

from collections.abc import Iterable
from typing import Any

from hsexp.ledger.contract import Contract, Term
from hsexp.ledger.journal import Event, LedgerError
from hsexp.ledger.older import contract_of_header

SCHEMA = 1
"""Of the events. A reader refuses any other."""

FIRST_OK = "first ok attempt"

Row = dict[str, Any]


class History:
    """A fold over events; changed by `apply` alone."""

    def __init__(self) -> None:
        self.header: Event | None = None
        self.extensions: list[Event] = []
        """Terms that the contract took on after the header, in order."""
        self.launches: list[Event] = []
        self.rows: dict[str, Row] = {}
        """Every attempt by its id, in order of recording."""
        self.attempts_of: dict[str, list[str]] = {}
        self.adopted: dict[str, str] = {}
        """The attempt that counts, by cell."""
        self.implied: dict[str, str] = {}
        """Those of `adopted` that no event states yet."""
        self.adoption_reasons: dict[str, str] = {}
        self.exclusion_reasons: dict[str, str] = {}
        self.registered: Event | None = None
        """What was fixed before the first run; ledgers from before this was kept have none."""
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
        """Those of a contract that may not change any more. A failed attempt measured nothing."""
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

    def apply(self, events: Iterable[Event]) -> None:
        """Add events in journal order.

        Raises:
            LedgerError: an event that this schema does not have.
        """
        for event in events:
            kind = event["kind"]
            if self.header is None and kind != "header":
                raise LedgerError(f"the first event must be the header, got {kind!r}")
            match kind:
                case "header":
                    self._start(event)
                case "extend":
                    self.extensions.append(event)
                case "launch":
                    self.launches.append(event)
                case "attempt":
                    self._add(event["row"])
                case "adopt":
                    self._adopt(event["cell_id"], event["attempt_id"], event["reason"])
                    self.implied.pop(event["cell_id"], None)
                case "exclude":
                    self._exclude(event["cell_id"], event["attempt_id"], event["reason"])
                case "register":
                    self.registered = event
                case "amend":
                    self.amendments.append(event)
                case _:
                    raise LedgerError(f"no event of schema {SCHEMA} has the kind {kind!r}")

    def _start(self, event: Event) -> None:
        if event["schema"] != SCHEMA:
            raise LedgerError(f"schema must be {SCHEMA}, got {event['schema']!r}")
        self.header = event

    def _add(self, row: Row) -> None:
        cell_id, attempt_id = row["cell_id"], row["attempt_id"]
        self.rows[attempt_id] = row
        self.attempts_of.setdefault(cell_id, []).append(attempt_id)
        if row["status"] == "ok" and cell_id not in self.adopted:
            self._adopt(cell_id, attempt_id, FIRST_OK)
            self.implied[cell_id] = attempt_id

    def _adopt(self, cell_id: str, attempt_id: str, reason: str) -> None:
        before = self.adopted.get(cell_id)
        if before is not None:
            del self.adoption_reasons[before]
        self.adopted[cell_id] = attempt_id
        self.adoption_reasons[attempt_id] = reason
        self.exclusion_reasons.pop(attempt_id, None)

    def _exclude(self, cell_id: str, attempt_id: str, reason: str) -> None:
        self.exclusion_reasons[attempt_id] = reason
        if self.adopted.get(cell_id) == attempt_id:
            del self.adopted[cell_id]
            del self.adoption_reasons[attempt_id]
            self.implied.pop(cell_id, None)
