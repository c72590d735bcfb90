"""Reading a ledger: its rows as frames, its tables by attempt, its contract and registration."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import pandas as pd
import pyarrow as pa

from hsexp.ledger.agreement import Agreement
from hsexp.ledger.claims import is_held
from hsexp.ledger.frame import attempt_frame, require_comparable
from hsexp.ledger.history import TABLE_KINDS, History
from hsexp.ledger.journal import LedgerError, NoTableError
from hsexp.ledger.log import Log
from hsexp.ledger.tables import TableFiles
from hsexp.plan.cells import Cell
from hsexp.trace import Trace


class LedgerReader:
    """A folder of runs, read-only.

    Two groups of short methods make it long: frames and notes for an analysis, and the tables.
    """

    def __init__(self, path: Path, *, writable: bool) -> None:
        self.path = path
        self._log = Log(path, writable=writable)
        self._agreement = Agreement(self._log)
        self._files = {kind: TableFiles(path, kind) for kind in TABLE_KINDS}
        self._set_aside: list[Path] = []
        """Tables that no event names, moved on opening."""
        self._sources: dict[str, LedgerReader] = {}
        """Other ledgers that hold runs of this one, by folder."""

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """A snapshot for analysis; writes nothing.

        Raises:
            LedgerError: there is no ledger, or it is damaged.
        """
        ledger = cls(Path(path), writable=False)
        ledger._log.refresh()
        ledger._log.require_header()
        return ledger

    @property
    def digest(self) -> str:
        """SHA-256 of the journal without the events that only locate tables."""
        return self._log.journal.digest(without="join")

    # -- what holds for all runs -----------------------------------------------------------------

    @property
    def contract(self) -> dict[str, Any]:
        """What the runs share and what their names mean; see `hsexp.ledger.contract`."""
        self._log.require_header()
        return self._log.current().contract.to_data()

    def require_contract(self, contract: Mapping[str, Any]) -> None:
        """Check that the ledger accepts runs of a contract; changes nothing.

        Raises:
            LedgerError: the contract differs in what all runs share or in a name that has runs;
                each differing field is named.
        """
        self._agreement.require(contract)

    def require_cells(self, cells: Iterable[Cell]) -> None:
        """Check that every setting with a run is the same cell as in a plan.

        A contract with all names implies it; those of older ledgers lack some.

        Raises:
            LedgerError: names the first setting that has become another cell.
        """
        self._agreement.require_cells(cells)

    @property
    def notices(self) -> tuple[str, ...]:
        """Repairs made on opening, one sentence each."""
        torn = [
            f"the journal ended in a torn line; its bytes are in {path}"
            for path in self._log.journal.set_aside
        ]
        aside = [f"no attempt names a table that was here; it is in {p}" for p in self._set_aside]
        return (*torn, *aside)

    @property
    def registration(self) -> dict[str, Any] | None:
        """The registered fields after all amendments; None in a ledger without a registration."""
        return self._log.current().registration

    @property
    def plan_digests(self) -> tuple[str, ...]:
        """Digests of the plans that registered the fields and amended them, in order."""
        history = self._log.current()
        events = [] if history.registered is None else [history.registered, *history.amendments]
        return tuple(dict.fromkeys(str(event["digest"]) for event in events if "digest" in event))

    @property
    def registration_notes(self) -> tuple[str, ...]:
        """Late registrations and amendments, one line each; an analysis prints them."""
        history = self._log.current()
        notes = []
        if history.registered is not None and history.registered["num_attempts"]:
            notes.append(f"registered only after {history.registered['num_attempts']} attempts")
        notes += [
            f"registration amended at {event['recorded_at']} after {event['num_attempts']} "
            f"attempts, because {event['reason']}; {'; '.join(event['changes'])}"
            for event in history.amendments
        ]
        return tuple(notes)

    # -- runs ------------------------------------------------------------------------------------

    def accepted(self) -> dict[str, str]:
        """The adopted attempt of each cell that has one."""
        return dict(self._log.current().adopted)

    def running(self) -> set[str]:
        """Cells that a process runs at this moment: their claims are locked.

        Asking takes each lock for an instant, shared. A launch that wants the cell just then asks
        again.
        """
        return {lock.stem for lock in self.path.glob("locks/*.lock") if is_held(lock)}

    def num_attempts(self, cell_id: str) -> int:
        return len(self._log.current().attempts_of.get(cell_id, []))

    def launches(self) -> pd.DataFrame:
        """One row a launch: overrides, notes, note, code_version, versions, started_at."""
        launches = self._log.current().launches
        return pd.DataFrame(launches).drop(columns="kind", errors="ignore")

    def amendments(self) -> pd.DataFrame:
        """One row a change of the registration: reason, changes, before, after, digest, when."""
        amendments = self._log.current().amendments
        return pd.DataFrame(amendments).drop(columns="kind", errors="ignore")

    def attempts(self) -> pd.DataFrame:
        """Every attempt in order of recording: identity, axes, outcome, metrics, provenance.

        Unknown metrics are NaN, unknown texts NA.
        """
        history = self._log.current()
        return attempt_frame(history, list(history.rows))

    def frame(self) -> pd.DataFrame:
        """The rows an analysis uses: one adopted ok row a cell, whatever order they ran in.

        Raises:
            LedgerError: the rows come from more than one engine, device or time model.
        """
        history = self._log.current()
        frame = attempt_frame(history, [history.adopted[key] for key in sorted(history.adopted)])
        require_comparable(frame, source=str(self.path))
        return frame

    def request_table(self, key: str) -> pd.DataFrame:
        """One row a request. `key` is an attempt id, or a cell id for its adopted attempt.

        Raises:
            NoTableError: the run has none.
            LedgerError: there is no such run, or its table is damaged.
        """
        return self._table("requests", key)

    def step_table(self, key: str) -> pd.DataFrame:
        """One row a stretch of steps. `key` is an attempt id, or a cell id for its adopted attempt.

        Raises:
            NoTableError, LedgerError: as `request_table`.
        """
        return self._table("steps", key)

    def trace(self, key: str) -> Trace:
        """The trace of a run. `key` is an attempt id, or a cell id for its adopted attempt.

        Raises:
            NoTableError, LedgerError: as `request_table`.
            TraceError: the trace is not whole.
        """
        return Trace(self.trace_table(key))

    def trace_table(self, key: str) -> pa.Table:
        """The events of a run's trace, unverified (`hsexp.trace.integrity`).

        Raises:
            NoTableError, LedgerError: as `request_table`.
        """
        return self._arrow("traces", key)

    def has_steps(self, cell_id: str) -> bool:
        """Whether a cell's adopted attempt has a step table, in this ledger or the one reused."""
        history = self._log.current()
        try:
            reader, attempt_id = self._where(history.adopted[cell_id], history)
        except LedgerError:  # the other ledger is gone
            return False
        return reader._files["steps"].has(attempt_id, reader._log.latest())

    def has_trace(self, attempt_id: str) -> bool:
        """Whether an attempt has a trace, in this ledger or the one reused."""
        try:
            reader, stands_as = self._where(attempt_id, self._log.current())
        except LedgerError:  # the other ledger is gone
            return False
        return reader._files["traces"].has(stands_as, reader._log.latest())

    def requests(self, cell_ids: Iterable[str] | None = None) -> pd.DataFrame:
        """The concatenated request tables of cells (default: all accepted ones).

        Columns `cell_id` and `attempt_id` come first.
        """
        adopted = self._log.current().adopted
        tables = []
        for cell_id in sorted(adopted) if cell_ids is None else cell_ids:
            table = self.request_table(cell_id)
            table.insert(0, "cell_id", cell_id)
            table.insert(1, "attempt_id", adopted[cell_id])
            tables.append(table)
        if not tables:
            raise LedgerError(f"{self.path}: no accepted run has a request table yet")
        return pd.concat(tables, ignore_index=True)

    # -- copies ----------------------------------------------------------------------------------

    @property
    def sources(self) -> list[str]:
        """Folders of the other ledgers that hold runs of this one, relative to it."""
        rows = self._log.current().rows.values()
        found = (row["provenance"].get("reused_from") for row in rows)
        return sorted({reference["ledger"] for reference in found if reference is not None})

    @classmethod
    def copy(cls, path: str | Path, target: Path) -> Self:
        """Copy a ledger as it is at this moment to a new folder; others may go on writing to it.

        The copy has the whole lines of the journal and the tables that they name. What was set
        aside, torn ends, logs and files that are made from the ledger stay behind.

        Raises:
            LedgerError: there is no ledger, it is damaged, or it lacks a table.
        """
        target.mkdir(parents=True)
        for is_last in (False, True):
            ledger = cls.read(path)
            try:
                for files in ledger._files.values():
                    files.copy_to(target, ledger._log.history)
                break
            except FileNotFoundError as error:  # joined since the journal was read
                if is_last:
                    raise LedgerError(f"{error.filename}: the table is missing") from None
                shutil.rmtree(target)
                target.mkdir()
        journal = ledger._log.journal
        with journal.path.open("rb") as file:
            (target / journal.path.name).write_bytes(file.read(journal.offset))
        copied = cls.read(target)
        copied.check_tables()
        return copied

    def check_tables(self) -> None:
        """Check that every table that the journal names is there and has its digest.

        Raises:
            LedgerError: names the first one that is missing or damaged.
        """
        history = self._log.current()
        for kind, files in self._files.items():
            for attempt_id in files.named(history):
                if not files.is_intact(attempt_id, history):
                    raise LedgerError(
                        f"{self.path}: the table of {kind} of attempt {attempt_id} is missing or "
                        "damaged"
                    )

    # -- inside ----------------------------------------------------------------------------------

    def _table(self, kind: str, key: str) -> pd.DataFrame:
        frame: pd.DataFrame = self._arrow(kind, key).to_pandas()
        return frame

    def _arrow(self, kind: str, key: str) -> pa.Table:
        history = self._log.current()
        counts = history.adopted.get(key)
        attempt_id = key if key in history.rows else counts
        if attempt_id is None:
            raise LedgerError(f"{self.path}: no attempt and no accepted cell is called {key!r}")
        reader, stands_as = self._where(attempt_id, history)
        files = reader._files[kind]
        # A table moves when it is joined. A snapshot misses that, so look it up again.
        for known in (reader._log.current(), reader._log.latest()):
            try:
                return files.read_arrow(stands_as, known)
            except FileNotFoundError:
                continue
        raise NoTableError(f"{files.folder}: attempt {attempt_id} has no such table")

    def _where(self, attempt_id: str, history: History) -> "tuple[LedgerReader, str]":
        """The ledger that holds an attempt's tables, and the attempt's id in it."""
        reference = history.rows[attempt_id]["provenance"].get("reused_from")
        if reference is None:
            return self, attempt_id
        folder = reference["ledger"]
        if folder not in self._sources:
            self._sources[folder] = LedgerReader.read(self.path / folder)
        return self._sources[folder], reference["attempt_id"]
