r"""The ledger: every attempt of every cell of one contract, and which attempt counts.

Owns a folder::

    journal.jsonl            events in order: header, register, launch, attempt, adopt, ...
    journal.lock             held while a writer reads, decides and appends
    journal.torn-1           the torn end of a killed append, kept for the curious
    requests/<attempt>.parquet   one row a request of an ok attempt
    steps/<attempt>.parquet      one row a stretch of steps, where the run kept them
    locks/<cell>.lock        held by the process that runs the cell

The state is a fold over the journal and nothing else, so that two processes with one journal have
one ledger. A cell counts once: its first ok attempt is adopted, later ones stay visible beside
it, and only `adopt` or `exclude`, each with a reason, changes that.

Tables reach the disk before the attempt that names them. A table that no attempt names is what a
killed writer left: opening the ledger for writing removes it, under the lock.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import pandas as pd
from filelock import FileLock, Timeout

from hsexp.ledger.attempt import Attempt
from hsexp.ledger.contract import Contract, differences, plain_data
from hsexp.ledger.frame import attempt_frame, require_comparable
from hsexp.ledger.history import FIRST_OK, SCHEMA, History, Row
from hsexp.ledger.journal import (
    Event,
    Journal,
    LedgerError,
    sync_directory,
    write_durably,
    write_error,
)
from hsexp.ledger.provenance import Provenance
from hsexp.ledger.tables import EncodedTable, decode_table
from hsexp.plan.cells import Cell, canonical_json


class Claim:
    """The right of this process to run one cell; the operating system takes it back at a kill."""

    def __init__(self, cell_id: str, lock: FileLock) -> None:
        self.cell_id = cell_id
        self._lock = lock

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class Ledger:
    """A folder of runs. `open` to run cells, `read` to analyse them."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self.path = path
        self._writable = writable
        self._journal = Journal(path / "journal.jsonl")
        self._history = History()
        self._requests = path / "requests"
        self._steps = path / "steps"
        self._locks = path / "locks"
        self._agreed: Contract | None = None
        """What this object was told that its runs mean."""
        self._num_extensions = 0
        """Extensions that `_agreed` was compared with."""

    # -- opening ---------------------------------------------------------------------------------

    @classmethod
    def open(cls, path: str | Path, *, contract: Mapping[str, Any] | None = None) -> Self:
        """Open for writing; several processes may. Sets right what a killed writer left.

        With a contract, a new ledger is made where there is none, and an existing one takes on the
        names that are new to it. Without, the ledger must exist.

        Raises:
            LedgerError: the contract gives another meaning to what has runs (each differing field
                is named); the ledger is damaged, cannot be written, or does not exist.
        """
        ledger = cls(Path(path), writable=True)
        ledger._refresh()
        if contract is None:
            ledger._require_header()
        elif ledger._history.header is not None:
            ledger.require_contract(contract)
        ledger._make_folders()
        with ledger._writing():
            if contract is not None:
                if ledger._history.header is None:
                    ledger._write_header(contract)
                ledger._agree(Contract.of(contract))
            ledger._remove_orphans()
        return ledger

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """A snapshot for analysis; writes nothing.

        Raises:
            LedgerError: there is no ledger, or it is damaged.
        """
        ledger = cls(Path(path), writable=False)
        ledger._refresh()
        ledger._require_header()
        return ledger

    @property
    def contract(self) -> dict[str, Any]:
        """What the runs here share and what their names mean; see `hsexp.ledger.contract`."""
        self._require_header()
        return self._current().contract.to_data()

    @property
    def notices(self) -> tuple[str, ...]:
        """What was set right on opening, in words."""
        return tuple(
            f"the journal ended in a torn line; its bytes are in {path}"
            for path in self._journal.set_aside
        )

    def require_contract(self, contract: Mapping[str, Any]) -> None:
        """Whether runs of a contract may stand here; changes nothing.

        Raises:
            LedgerError: the contract differs in what all runs share or in a name that has runs;
                each differing field is named.
        """
        self._require_header()
        ours = self._current().contract
        fixed = self._history.terms_with_runs(ours)
        self._refuse(ours.conflicts(Contract.of(contract), fixed=fixed))

    def agree(self, contract: Mapping[str, Any]) -> None:
        """Take on the names of a contract that are new, and those that changed and have no runs.

        Raises:
            LedgerError: as `require_contract`.
        """
        with self._writing():
            self._agree(Contract.of(contract))

    def require_cells(self, cells: Iterable[Cell]) -> None:
        """Whether every setting that has a run here is the same cell as in a plan.

        Contracts say so where they have all names; those of older ledgers lack some.

        Raises:
            LedgerError: names the first setting that has become another cell.
        """
        rows = self._current().rows.values()
        runs = {_setting(row): row["cell_id"] for row in rows if row["status"] == "ok"}
        for cell in cells:
            setting = canonical_json([cell.block, cell.axes])
            if runs.get(setting, cell.cell_id) != cell.cell_id:
                axes = " ".join(f"{axis}={value}" for axis, value in cell.axes.items())
                raise LedgerError(
                    f"{self.path} holds runs of another configuration:\n  block {cell.block}, "
                    f"{axes}: ledger has cell {runs[setting]}, this run has {cell.cell_id}"
                )

    @property
    def registration(self) -> dict[str, Any] | None:
        """What the campaign has fixed, after its amendments; None in a ledger from before."""
        return self._current().registration

    @property
    def registration_notes(self) -> tuple[str, ...]:
        """What a reader of the runs must know of the registration, in words."""
        history = self._current()
        notes = []
        if history.registered is not None and history.registered["num_attempts"]:
            notes.append(f"registered only after {history.registered['num_attempts']} attempts")
        notes += [
            f"registration amended at {event['recorded_at']} after {event['num_attempts']} "
            f"attempts, because {event['reason']}; {'; '.join(event['changes'])}"
            for event in history.amendments
        ]
        return tuple(notes)

    # -- writing ---------------------------------------------------------------------------------

    def register(
        self, registration: Mapping[str, Any], *, digest: str, amend: str | None = None
    ) -> None:
        """Fix the fields at the first launch; later ones must bring the same, or amend them.

        Args:
            registration: plain data.
            digest: of the plan whose fields these are.
            amend: why other fields may replace those registered. Both stay in the ledger.

        Raises:
            LedgerError: the fields differ from those registered (each is named) and there is no
                reason to amend them.
        """
        with self._writing():
            before, after = self._history.registration, plain_data(registration)
            event: Event = {"digest": digest, "num_attempts": len(self._history.rows)}
            event["recorded_at"] = utc_now()
            if before is None:
                self._append([{"kind": "register", "registration": after, **event}])
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
            self._append([{"kind": "amend", **event}])

    def launch(
        self,
        *,
        overrides: Sequence[str],
        notes: Sequence[str],
        provenance: Provenance,
        note: str | None = None,
    ) -> None:
        """Note that a command starts to work on this ledger.

        Args:
            notes: what the planner says.
            note: what the user says.
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
        with self._writing():
            self._append([event])

    def record(
        self,
        attempt: Attempt,
        *,
        requests: EncodedTable | None = None,
        steps: EncodedTable | None = None,
    ) -> str:
        """Append one attempt, with its tables, and adopt it if it is the cell's first ok one.

        Returns the attempt's id, `<cell_id>-<number>`.

        Raises:
            LedgerError: the disk refused; the ledger is as it was before.
        """
        if (attempt.status == "ok") != (requests is not None):
            raise ValueError(f"cell {attempt.cell.cell_id}: a request table belongs to ok attempts")
        cell_id = attempt.cell.cell_id
        with self._writing():
            self._require_agreement()
            attempt_id = f"{cell_id}-{self.num_attempts(cell_id) + 1}"
            events: list[Event] = [{"kind": "attempt", "row": attempt.to_row(attempt_id)}]
            if attempt.status == "ok" and cell_id not in self._history.adopted:
                events.append(_adopt_event(cell_id, attempt_id, FIRST_OK))
            for folder, table in [(self._requests, requests), (self._steps, steps)]:
                if table is not None:
                    write_durably(_table_path(folder, attempt_id), table)
            self._append(events)
        return attempt_id

    def refer(self, cell: Cell, source: "Ledger") -> str:
        """Take over the accepted run of an equal cell in another ledger, by reference.

        The row is this campaign's and says where the run stands (`reused_from`: folder and
        attempt); its tables are read there. It is one run, however many ledgers name it. Returns
        the id of the attempt that counts here; a cell that another process has accepted in the
        meantime keeps its own.

        Raises:
            LedgerError: the source has not accepted the cell.
        """
        accepted = source.accepted().get(cell.cell_id)
        if accepted is None:
            raise LedgerError(f"{source.path}: cell {cell.cell_id} is not accepted there")
        row = source._history.rows[accepted]
        further = row["provenance"].get("reused_from") or {"ledger": ".", "attempt_id": accepted}
        stands_in = source.path / further["ledger"]
        with self._writing():
            self._require_agreement()
            if (counts := self._history.adopted.get(cell.cell_id)) is not None:
                return counts
            attempt_id = f"{cell.cell_id}-{self.num_attempts(cell.cell_id) + 1}"
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
            self._append(
                [
                    {"kind": "attempt", "row": referring},
                    _adopt_event(cell.cell_id, attempt_id, f"run of {folder}"),
                ]
            )
        return attempt_id

    def adopt(self, cell_id: str, attempt_id: str, *, reason: str) -> None:
        """Let another ok attempt of the cell count from now on, excluded or not."""
        with self._writing():
            row = self._row_of(cell_id, attempt_id)
            _require_reason(reason)
            if row["status"] != "ok":
                raise LedgerError(f"{self.path}: attempt {attempt_id} failed and cannot be adopted")
            self._append([_adopt_event(cell_id, attempt_id, reason)])

    def exclude(self, cell_id: str, attempt_id: str, *, reason: str) -> None:
        """Keep an attempt out of the analysis; its cell then counts as not yet run."""
        with self._writing():
            self._row_of(cell_id, attempt_id)
            _require_reason(reason)
            event = {
                "kind": "exclude",
                "cell_id": cell_id,
                "attempt_id": attempt_id,
                "reason": reason,
            }
            self._append([event])

    def claim(self, cell_id: str) -> Claim | None:
        """Take a cell for this process, or None while another one runs it.

        The holder of a claim asks `accepted` again: the cell may have been run just before.
        """
        self._require_writable()
        lock = FileLock(self._locks / f"{cell_id}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return None
        except OSError as error:
            raise write_error(Path(lock.lock_file), error) from error
        return Claim(cell_id, lock)

    # -- reading ---------------------------------------------------------------------------------

    def accepted(self) -> dict[str, str]:
        """The adopted attempt of each cell that has one."""
        return dict(self._current().adopted)

    def num_attempts(self, cell_id: str) -> int:
        return len(self._current().attempts_of.get(cell_id, []))

    def launches(self) -> pd.DataFrame:
        """One row a launch: overrides, notes, note, code_version, versions, started_at."""
        launches = self._current().launches
        return pd.DataFrame(launches).drop(columns="kind", errors="ignore")

    def amendments(self) -> pd.DataFrame:
        """One row a change of the registration: reason, changes, before, after, digest, when."""
        amendments = self._current().amendments
        return pd.DataFrame(amendments).drop(columns="kind", errors="ignore")

    def attempts(self) -> pd.DataFrame:
        """Every attempt in order of recording: identity, axes, outcome, metrics, provenance.

        Unknown metrics are NaN, unknown texts NA.
        """
        history = self._current()
        return attempt_frame(history, list(history.rows))

    def frame(self) -> pd.DataFrame:
        """The rows an analysis uses: one adopted ok row a cell, whatever order they ran in.

        Raises:
            LedgerError: the rows come from more than one engine, device or time model.
        """
        history = self._current()
        frame = attempt_frame(history, [history.adopted[key] for key in sorted(history.adopted)])
        require_comparable(frame, source=str(self.path))
        return frame

    def request_table(self, key: str) -> pd.DataFrame:
        """One row a request, of an attempt id or of a cell id's adopted attempt."""
        return self._table(self._requests, key)

    def step_table(self, key: str) -> pd.DataFrame:
        """One row a stretch of steps, of an attempt id or of a cell id's adopted attempt."""
        return self._table(self._steps, key)

    def requests(self, cell_ids: Iterable[str] | None = None) -> pd.DataFrame:
        """The request tables of cells (default: all accepted ones) under each other.

        Columns `cell_id` and `attempt_id` come first.
        """
        adopted = self._current().adopted
        tables = []
        for cell_id in sorted(adopted) if cell_ids is None else cell_ids:
            table = self.request_table(cell_id)
            table.insert(0, "cell_id", cell_id)
            table.insert(1, "attempt_id", adopted[cell_id])
            tables.append(table)
        if not tables:
            raise LedgerError(f"{self.path}: no accepted run has a request table yet")
        return pd.concat(tables, ignore_index=True)

    # -- inside ----------------------------------------------------------------------------------

    def _current(self) -> History:
        if self._writable:
            self._refresh()
        return self._history

    def _refresh(self) -> None:
        self._apply(self._journal.read_new())

    def _apply(self, events: Iterable[Event]) -> None:
        try:
            self._history.apply(events)
        except LedgerError as error:
            raise LedgerError(f"{self._journal.path}: {error}") from None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """The lock, every event so far, and no adoption left unsaid."""
        self._require_writable()
        with self._journal.exclusive():
            self._apply(self._journal.repair())
            implied = self._history.implied
            if implied:
                self._append([_adopt_event(*pair, FIRST_OK) for pair in implied.items()])
            yield

    def _append(self, events: Sequence[Event]) -> None:
        self._journal.append(events)
        self._refresh()

    def _agree(self, contract: Contract) -> None:
        """Under the lock: refuse a contract, or extend the ledger's by it."""
        ours = self._history.contract
        fixed = self._history.terms_with_runs(ours)
        self._refuse(ours.conflicts(contract, fixed=fixed))
        if news := ours.news(contract).to_data():
            self._append([{"kind": "extend", "contract": news, "recorded_at": utc_now()}])
        self._agreed, self._num_extensions = contract, len(self._history.extensions)

    def _require_agreement(self) -> None:
        """Under the lock: what other processes added since then must leave our names alone."""
        if self._agreed is None or len(self._history.extensions) == self._num_extensions:
            return
        ours = self._history.contract
        self._refuse(ours.conflicts(self._agreed, fixed=ours.terms))
        self._num_extensions = len(self._history.extensions)

    def _refuse(self, differing: Sequence[str]) -> None:
        if differing:
            raise LedgerError(
                "\n  ".join([f"{self.path} holds runs of another configuration:", *differing])
            )

    def _write_header(self, contract: Mapping[str, Any]) -> None:
        if any(self._requests.glob("*.parquet")):
            raise LedgerError(
                f"{self.path}: request tables without {self._journal.path.name}; "
                "restore the journal or choose an empty folder"
            )
        header = {
            "kind": "header",
            "schema": SCHEMA,
            "created": utc_now(),
            "contract": plain_data(contract),
        }
        self._append([header])
        sync_directory(self.path)

    def _make_folders(self) -> None:
        for folder in (self._requests, self._steps, self._locks):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise write_error(folder, error) from error

    def _remove_orphans(self) -> None:
        """Tables of attempts that were never recorded, and half-written ones; nothing else."""
        for folder in (self._requests, self._steps):
            half_written = folder.glob("*.parquet.tmp")
            tables = folder.glob("*.parquet")
            unnamed = (file for file in tables if file.stem not in self._history.rows)
            for file in [*half_written, *unnamed]:
                try:
                    file.unlink()
                except OSError as error:
                    raise write_error(file, error) from error

    def _table(self, folder: Path, key: str) -> pd.DataFrame:
        history = self._current()
        attempt_id = key if key in history.rows else history.adopted.get(key)
        if attempt_id is None:
            raise LedgerError(f"{self.path}: no attempt and no accepted cell is called {key!r}")
        file = _table_path(folder, attempt_id)
        reference = history.rows[attempt_id]["provenance"].get("reused_from")
        if reference is not None:
            there = self.path / reference["ledger"] / folder.name
            file = _table_path(there, reference["attempt_id"])
        if not file.exists():
            raise LedgerError(f"{file}: attempt {attempt_id} has no such table")
        return decode_table(file)

    def _row_of(self, cell_id: str, attempt_id: str) -> Row:
        row = self._history.rows.get(attempt_id)
        if row is None or row["cell_id"] != cell_id:
            raise LedgerError(f"{self.path}: cell {cell_id} has no attempt {attempt_id!r}")
        return row

    def _require_header(self) -> Event:
        if self._history.header is None:
            raise LedgerError(f"{self.path}: there is no ledger here; run the campaign first")
        return self._history.header

    def _require_writable(self) -> None:
        if not self._writable:
            raise LedgerError(f"{self.path}: was opened for reading; use Ledger.open to write")


def _setting(row: Row) -> str:
    """What the analysis tells rows apart by."""
    return canonical_json([row["block"], row["axes"]])


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _adopt_event(cell_id: str, attempt_id: str, reason: str) -> Event:
    return {"kind": "adopt", "cell_id": cell_id, "attempt_id": attempt_id, "reason": reason}


def _require_reason(reason: str) -> None:
    if not reason.strip():
        raise LedgerError(f"reason must say why, got {reason!r}")


def _table_path(folder: Path, attempt_id: str) -> Path:
    return folder / f"{attempt_id}.parquet"
