"""Carry out a plan: run every cell that the ledger has not accepted, on all cores.

A cell goes claim -> worker -> record -> release. Any number of processes may work on one ledger:
a cell that another process has claimed is left to it, and taken over if that process dies. Every
attempt is recorded when it ends, failures too; the next launch reruns cells that were not accepted.
"""

import time
from collections import Counter, deque
from dataclasses import dataclass
from functools import partial

from rich.console import Console

from hsexp.ending import Stopped
from hsexp.ledger import Attempt, Claim, Ledger, LedgerError, Provenance, utc_now
from hsexp.plan.cells import Cell, Plan
from runners.interrupt import deferred_interrupt
from runners.pool import WorkerDeath, WorkerPool
from runners.report import LaunchReport
from runners.trial import Execute, Outcome, Trial, try_cell

__all__ = ["Execute", "Outcome", "Summary", "run_plan"]

_POLL_S = 0.2
"""How often a waiting launch checks for Ctrl-C and for the cells of other processes."""

_PATIENCE_S = 3600.0
"""No cell takes this long. A process that holds one for longer seems stopped; its cells are left.
"""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Result of a launch, as numbers of cells."""

    planned: int
    already_accepted: int
    run_now: int
    """Attempts that ended in this process, failed ones too."""
    failed: int
    """Failed attempts among `run_now`."""
    accepted_elsewhere: int
    """Run by another process during this launch."""
    failed_elsewhere: int
    """Failed in another process during this launch."""
    left_elsewhere: int
    """Still held by a process that seems to be stopped."""
    seconds: float

    @property
    def is_complete(self) -> bool:
        """Every planned cell is accepted."""
        return self.failed + self.failed_elsewhere + self.left_elsewhere == 0

    def __str__(self) -> str:
        parts = [f"{self.run_now} run in {self.seconds:.1f} s", f"{self.failed} failed"]
        if self.accepted_elsewhere or self.failed_elsewhere:
            parts.append(f"{self.accepted_elsewhere} accepted by another process")
            parts.append(f"{self.failed_elsewhere} failed there")
        if self.left_elsewhere:
            parts.append(f"{self.left_elsewhere} left to a process that seems to be stopped")
        return ", ".join(parts)


def run_plan(
    plan: Plan,
    ledger: Ledger,
    execute: Execute,
    *,
    workers: int,
    console: Console,
    needs_steps: bool = False,
) -> Summary:
    """Run the cells that are not accepted yet and record every attempt.

    Args:
        execute: called in spawned processes, so it must be importable there.
        needs_steps: run accepted cells again whose attempts kept no step table. The fuller attempt
            counts from then on, if its metrics are the same.

    Raises:
        LedgerError: the ledger gives the plan's names another meaning, or cannot be written.
        Stopped: Ctrl-C, SIGTERM or SIGHUP; every attempt that had ended is recorded.
        WorkerStartError: a worker process cannot start.
    """
    ledger.agree(plan.contract)
    ledger.require_cells(plan.cells)
    provenance = Provenance.collect()
    function = partial(try_cell, execute, provenance)
    with (
        LaunchReport(plan, console) as report,
        WorkerPool[Cell, Trial](function, num_workers=workers) as pool,
    ):
        launch = _Launch(plan, ledger, provenance, pool, report, needs_steps=needs_steps)
        try:
            summary = launch.run()
        finally:
            launch.release_claims()
    report.end(str(summary))
    try:
        ledger.join_tables()
    except LedgerError as error:  # everything is recorded; the tables stay as they are
        report.end(f"tables were not joined: {error}")
    return summary


@dataclass(frozen=True, kw_only=True)
class _Running:
    """A cell that a worker runs: this process's claim on it, and its start."""

    claim: Claim
    started_at: str
    start: float


class _Launch:
    """The cells of one `run_plan`.

    Invariant: a planned cell is counted in `_count`, waits in `_todo`, is in `_running`, or is
    in `_elsewhere`; exactly one of these.
    """

    def __init__(
        self,
        plan: Plan,
        ledger: Ledger,
        provenance: Provenance,
        pool: WorkerPool[Cell, Trial],
        report: LaunchReport,
        *,
        needs_steps: bool,
    ) -> None:
        self._ledger = ledger
        self._needs_steps = needs_steps
        self._provenance = provenance
        self._pool = pool
        self._report = report
        self._num_planned = len(plan.cells)
        accepted = ledger.accepted()
        self._todo = deque(
            cell
            for cell in plan.cells
            if cell.cell_id not in accepted or self._lacks_steps(cell.cell_id)
        )
        self._num_incomplete = sum(cell.cell_id in accepted for cell in self._todo)
        """Accepted cells whose attempts lack what this launch asks for."""
        self._running: dict[str, _Running] = {}
        self._elsewhere: dict[str, Cell] = {}
        """Cells that another process has claimed."""
        self._count: Counter[str] = Counter(already_accepted=len(plan.cells) - len(self._todo))
        """Cells that need nothing more, by the fields of `Summary`."""
        self._num_attempts = {
            cell.cell_id: ledger.num_attempts(cell.cell_id) for cell in self._todo
        }
        """Attempts at the start; a larger number later shows that another process ran the cell."""
        self._start = self._last_end = time.monotonic()

    def run(self) -> Summary:
        notices = self._ledger.notices
        if self._num_incomplete:
            notices += (
                f"{self._num_incomplete} accepted runs kept no step table and are run again",
            )
        self._report.begin(accepted=self._count["already_accepted"], notices=notices)
        with deferred_interrupt() as check_interrupt:
            try:
                while self._todo or self._running or self._elsewhere:
                    check_interrupt()
                    self._fill_workers()
                    self._wait()
            except KeyboardInterrupt:
                self._record(self._pool.wait(0.0))
                self._report.stop(recorded=self._count["run_now"])
                raise Stopped from None
        return self._summarize()

    def release_claims(self) -> None:
        for running in self._running.values():
            running.claim.release()
        self._running.clear()

    def _lacks_steps(self, cell_id: str) -> bool:
        """Whether the attempt that counts lacks what this launch asks for."""
        return self._needs_steps and not self._ledger.has_steps(cell_id)

    def _fill_workers(self) -> None:
        """Claim cells while a worker is idle; cells of other processes come last."""
        while self._pool.has_room and self._todo:
            self._take(self._todo.popleft())
        for cell in list(self._elsewhere.values()):
            if self._pool.has_room:
                self._take(cell)

    def _take(self, cell: Cell) -> None:
        cell_id = cell.cell_id
        claim = self._ledger.claim(cell_id)
        if claim is None:
            self._elsewhere[cell_id] = cell
            return
        self._elsewhere.pop(cell_id, None)
        if cell_id in self._ledger.accepted() and not self._lacks_steps(cell_id):
            claim.release()
            self._end_one("accepted_elsewhere")
        elif self._ledger.num_attempts(cell_id) > self._num_attempts[cell_id]:
            claim.release()
            self._end_one("failed_elsewhere")
        else:
            self._running[cell_id] = _Running(
                claim=claim, started_at=utc_now(), start=time.monotonic()
            )
            self._pool.submit(cell)

    def _wait(self) -> None:
        """Wait until a cell ends, or until cells of other processes are due for another check."""
        if self._running:
            ended = self._pool.wait(_POLL_S)
            self._fill_workers()  # before the disk, so that no worker waits for it
            self._record(ended)
        elif self._elsewhere:
            self._report.waiting(len(self._elsewhere))
            time.sleep(_POLL_S)
            if time.monotonic() - self._last_end > _PATIENCE_S:
                self._count["left_elsewhere"] = len(self._elsewhere)
                self._elsewhere.clear()

    def _record(self, ended: list[tuple[Cell, Trial | WorkerDeath]]) -> None:
        for cell, result in ended:
            running = self._running[cell.cell_id]
            trial = (
                self._death(cell, running, result) if isinstance(result, WorkerDeath) else result
            )
            self._ledger.record(
                trial.attempt,
                requests=trial.requests,
                steps=trial.steps,
                trace=trial.trace,
                replacing="kept a step table, which the one before had not; metrics are the same",
            )
            running.claim.release()
            del self._running[cell.cell_id]
            reason = trial.attempt.reason
            if reason is None and self._lacks_steps(cell.cell_id):
                reason = (
                    "the run kept no step table"
                    if trial.steps is None
                    else "the run has other metrics than the accepted one, whose steps are missing"
                )
            if reason is not None:
                self._count["failed"] += 1
                self._report.failure(cell, reason)
            self._end_one("run_now")

    def _death(self, cell: Cell, running: _Running, death: WorkerDeath) -> Trial:
        return Trial(
            attempt=Attempt(
                cell=cell,
                status="failed",
                reason=str(death),
                workload_digest=None,
                engine=None,
                provenance=self._provenance,
                started_at=running.started_at,
                wall_s=time.monotonic() - running.start,
            )
        )

    def _end_one(self, how: str) -> None:
        self._count[how] += 1
        self._last_end = time.monotonic()
        self._report.advance(failed=self._count["failed"] + self._count["failed_elsewhere"])

    def _summarize(self) -> Summary:
        return Summary(
            planned=self._num_planned,
            already_accepted=self._count["already_accepted"],
            run_now=self._count["run_now"],
            failed=self._count["failed"],
            accepted_elsewhere=self._count["accepted_elsewhere"],
            failed_elsewhere=self._count["failed_elsewhere"],
            left_elsewhere=self._count["left_elsewhere"],
            seconds=time.monotonic() - self._start,
        )
