r"""The ledger: every attempt of every cell of one contract, and which attempt counts.

Owns a folder::

    journal.jsonl            events in order: header, register, launch, attempt, adopt, ...
    journal.lock             held while a writer reads, decides and appends
    journal.torn-1           the torn end of a killed append, kept for inspection
    requests/<attempt>.parquet   one row a request of an ok attempt
    steps/<attempt>.parquet      one row a stretch of steps, where the run kept them
    traces/<attempt>.parquet     one row an event, where the run was traced (`hsexp.trace`)
    requests-<n>.parquet, ...    the same tables, joined when a launch ends
    set-aside/                   tables that no event names
    locks/<cell>.lock        held by the process that runs the cell

The state is a fold over the journal alone, so that two processes with one journal see the same
ledger. A cell counts once: its first ok attempt is adopted, later ones stay visible beside
it, and only `adopt` or `exclude`, each with a reason, changes that.

Tables reach the disk before the attempt that names them. A table that no attempt names was left by
a killed writer, or the journal lacks lines: opening the ledger for writing sets the table aside,
under the lock, and reports it in `notices`.
"""

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from hsexp.ledger.attempt import Attempt
from hsexp.ledger.contract import differences, plain_data
from hsexp.ledger.history import FIRST_OK, SCHEMA, Row
from hsexp.ledger.join import join_tables, remove_unfinished
from hsexp.ledger.journal import Event, LedgerError, sync_directory, write_error
from hsexp.ledger.log import adopt_event
from hsexp.ledger.provenance import Provenance
from hsexp.ledger.reading import LedgerReader
from hsexp.ledger.tables import EncodedTable
from hsexp.plan.cells import Cell


class Claim:
    """The right of this process to run one cell; the operating system releases it at a kill."""

    def __init__(self, cell_id: str, lock: FileLock) -> None:
        self.cell_id = cell_id
        self._lock = lock

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class Ledger(LedgerReader):
    """A folder of runs. `open` to run cells, `read` to analyse them."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        super().__init__(path, writable=writable)
        self._locks = path / "locks"

    # -- opening ---------------------------------------------------------------------------------

    @classmethod
    def open(cls, path: str | Path, *, contract: Mapping[str, Any] | None = None) -> Self:
        """Open for writing; several processes may. Repairs what a killed writer left.

        With a contract, creates the ledger if there is none, and adds the names that are new to an
        existing one. Without a contract, the ledger must exist.

        Raises:
            LedgerError: the contract gives another meaning to a name that has runs (each differing
                field is named); the ledger is damaged, cannot be written, or does not exist.
        """
        ledger = cls(Path(path), writable=True)
        log = ledger._log
        log.refresh()
        if contract is None:
            log.require_header()
        elif log.history.header is not None:
            ledger.require_contract(contract)
        ledger._make_folders()
        with log.writing():
            if contract is not None:
                if log.history.header is None:
                    ledger._write_header(contract)
                ledger._agreement.make(contract, now=utc_now())
            for files in ledger._files.values():
                remove_unfinished(log, files)
                ledger._set_aside += files.tidy(log.history)
        return ledger

    # -- writing ---------------------------------------------------------------------------------

    def agree(self, contract: Mapping[str, Any]) -> None:
        """Add the names of a contract that are new, and those that changed and have no runs.

        Raises:
            LedgerError: as `require_contract`.
        """
        with self._log.writing():
            self._agreement.make(contract, now=utc_now())

    def join_tables(self) -> None:
        """Join the loose tables of attempts into one Parquet file; see `hsexp.ledger.join`.

        Raises:
            LedgerError: the disk refused; every table is where it was.
        """
        for files in self._files.values():
            self._set_aside += join_tables(self._log, files)

    def register(
        self, registration: Mapping[str, Any], *, digest: str, amend: str | None = None
    ) -> None:
        """Fix the fields at the first launch; later launches must have the same, or amend them.

        Args:
            registration: plain data.
            digest: digest of the plan that the fields belong to.
            amend: reason to replace the registered fields. Both versions stay in the ledger.

        Raises:
            LedgerError: the fields differ from those registered (each is named) and there is no
                reason to amend them.
        """
        with self._log.writing():
            before, after = self._log.history.registration, plain_data(registration)
            event: Event = {"digest": digest, "num_attempts": len(self._log.history.rows)}
            event["recorded_at"] = utc_now()
            if before is None:
                self._log.append([{"kind": "register", "registration": after, **event}])
                return
            changes = differences(ledger=before, run=after)
            if not changes:
                return
            if amend is None:
                lines = [f"{self.path}: the campaign has other preregistered fields:", *changes]
                hint = 'amend="REASON" replaces and records them; ledger=DIR starts another ledger'
                raise LedgerError("\n  ".join([*lines, hint]))
            _require_reason(amend)
            event |= {"reason": amend, "changes": changes, "before": before, "after": after}
            self._log.append([{"kind": "amend", **event}])

    def launch(
        self,
        *,
        overrides: Sequence[str],
        notes: Sequence[str],
        provenance: Provenance,
        note: str | None = None,
    ) -> None:
        """Record that a command starts to work on this ledger.

        Args:
            notes: the planner's notes.
            note: the user's note.
        """
        event = {
            "kind": "launch",
            "overrides": list(overrides),
            "notes": list(notes),
            "note": note,
            "code_version": provenance.code_version,
            "versions": provenance.versions,
            "started_at": utc_now(),
        }
        with self._log.writing():
            self._log.append([event])

    def record(
        self,
        attempt: Attempt,
        *,
        requests: EncodedTable | None = None,
        steps: EncodedTable | None = None,
        trace: EncodedTable | None = None,
        replacing: str | None = None,
    ) -> str:
        """Append one attempt, with its tables, and adopt it if it is the cell's first ok one.

        Args:
            replacing: reason to adopt this attempt, which has a step table, instead of one that has
                the same metrics and no step table; None keeps the first one.

        Returns the attempt's id, `<cell_id>-<number>`.

        Raises:
            LedgerError: the disk refused; the ledger is as it was before.
        """
        if (attempt.status == "ok") != (requests is not None):
            raise ValueError(f"cell {attempt.cell.cell_id}: a request table belongs to ok attempts")
        cell_id = attempt.cell.cell_id
        with self._log.writing():
            self._agreement.keep()
            attempt_id = self._log.history.next_attempt_id(cell_id)
            row = attempt.to_row(attempt_id)
            events: list[Event] = [{"kind": "attempt", "row": row}]
            if attempt.status == "ok" and cell_id not in self._log.history.adopted:
                events.append(adopt_event(cell_id, attempt_id, FIRST_OK))
            elif replacing is not None and steps is not None and self._is_fuller(row):
                events.append(adopt_event(cell_id, attempt_id, replacing))
            tables = {"requests": requests, "steps": steps, "traces": trace}
            row["tables"] = {
                kind: self._files[kind].write(attempt_id, table)
                for kind, table in tables.items()
                if table is not None
            }
            self._log.append(events)
        return attempt_id

    def refer(self, cell: Cell, source: "Ledger") -> str:
        """Reuse the accepted run of an equal cell in another ledger, by reference.

        The row belongs to this campaign and names the ledger that holds the run (`reused_from`:
        folder and attempt); its tables are read from that ledger. It is one run, however many
        ledgers name it. Returns the id of the attempt that counts in this ledger; a cell that
        another process has accepted in the meantime keeps its own.

        Raises:
            LedgerError: the source has not accepted the cell.
        """
        accepted = source.accepted().get(cell.cell_id)
        if accepted is None:
            raise LedgerError(f"{source.path}: cell {cell.cell_id} is not accepted there")
        row = source._log.history.rows[accepted]
        further = row["provenance"].get("reused_from") or {"ledger": ".", "attempt_id": accepted}
        stands_in = source.path / further["ledger"]
        with self._log.writing():
            self._agreement.keep()
            if (counts := self._log.history.adopted.get(cell.cell_id)) is not None:
                return counts
            attempt_id = self._log.history.next_attempt_id(cell.cell_id)
            folder = Path(os.path.relpath(stands_in, self.path)).as_posix()
            reference = {"ledger": folder, "attempt_id": further["attempt_id"]}
            provenance = row["provenance"] | {"reused_from": reference}
            referring = row | {
                "attempt_id": attempt_id,
                "campaign": cell.campaign,
                "block": cell.block,
                "pair_id": cell.pair_id,
                "provenance": provenance,
            }
            self._log.append(
                [
                    {"kind": "attempt", "row": referring},
                    adopt_event(cell.cell_id, attempt_id, f"run of {folder}"),
                ]
            )
        return attempt_id

    def adopt(self, cell_id: str, attempt_id: str, *, reason: str) -> None:
        """Make another ok attempt of the cell count from now on, excluded or not."""
        with self._log.writing():
            row = self._row_of(cell_id, attempt_id)
            _require_reason(reason)
            if row["status"] != "ok":
                raise LedgerError(f"{self.path}: attempt {attempt_id} failed and cannot be adopted")
            self._log.append([adopt_event(cell_id, attempt_id, reason)])

    def exclude(self, cell_id: str, attempt_id: str, *, reason: str) -> None:
        """Keep an attempt out of the analysis; its cell then counts as not yet run."""
        with self._log.writing():
            self._row_of(cell_id, attempt_id)
            _require_reason(reason)
            event = {
                "kind": "exclude",
                "cell_id": cell_id,
                "attempt_id": attempt_id,
                "reason": reason,
            }
            self._log.append([event])

    def claim(self, cell_id: str) -> Claim | None:
        """Claim a cell for this process; None while another one runs it.

        The holder of a claim must check `accepted` again: the cell may have been run just before.
        """
        self._log.require_writable()
        lock = FileLock(self._locks / f"{cell_id}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return None
        except OSError as error:
            raise write_error(Path(lock.lock_file), error) from error
        return Claim(cell_id, lock)

    # -- inside ----------------------------------------------------------------------------------

    def _is_fuller(self, row: Row) -> bool:
        """Whether the run that counts has the same metrics as this row but no step table."""
        counts = self._log.history.adopted[row["cell_id"]]
        before = self._log.history.rows[counts]["metrics"]
        same = {name: row["metrics"].get(name) for name in before} == before
        return same and not self.has_steps(row["cell_id"])

    def _write_header(self, contract: Mapping[str, Any]) -> None:
        if any(files.any_table() for files in self._files.values()):
            raise LedgerError(
                f"{self.path}: request tables without {self._log.journal.path.name}; "
                "restore the journal or choose an empty folder"
            )
        header = {
            "kind": "header",
            "schema": SCHEMA,
            "created": utc_now(),
            "contract": plain_data(contract),
        }
        self._log.append([header])
        sync_directory(self.path)

    def _make_folders(self) -> None:
        for files in self._files.values():
            files.make_folder()
        try:
            self._locks.mkdir(exist_ok=True)
        except OSError as error:
            raise write_error(self._locks, error) from error

    def _row_of(self, cell_id: str, attempt_id: str) -> Row:
        row = self._log.history.rows.get(attempt_id)
        if row is None or row["cell_id"] != cell_id:
            raise LedgerError(f"{self.path}: cell {cell_id} has no attempt {attempt_id!r}")
        return row


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _require_reason(reason: str) -> None:
    if not reason.strip():
        raise LedgerError(f"reason must say why, got {reason!r}")
