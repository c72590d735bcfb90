"""One try of a cell inside a worker: whatever happens becomes an attempt for the ledger."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from traceback import TracebackException

import pandas as pd

from hsexp.ledger import (
    Attempt,
    EncodedTable,
    EngineFacts,
    Metric,
    Provenance,
    encode_arrow,
    encode_table,
    utc_now,
)
from hsexp.plan.cells import Cell
from hsexp.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of running one cell."""

    metrics: Mapping[str, Metric]
    """Flat names. None or NaN is unknown; an infinite number is refused."""
    requests: pd.DataFrame
    """Columns of `hsexp.measure.records.REQUEST_COLUMNS`."""
    steps: pd.DataFrame | None = None
    """Columns of `hsexp.measure.records.STEP_COLUMNS`; None where they are not kept."""
    trace: Trace | None = None
    """Every event of the run; None where it was not traced."""
    engine: EngineFacts
    workload_digest: str


Execute = Callable[[Cell], Outcome]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a worker sends back. The worker encodes the tables, so a bad table fails the attempt."""

    attempt: Attempt
    requests: EncodedTable | None = None
    steps: EncodedTable | None = None
    trace: EncodedTable | None = None


def try_cell(execute: Execute, provenance: Provenance, cell: Cell) -> Trial:
    """Run a cell. An error in `execute` or in its result is a failed attempt, never raised."""
    started_at, start = utc_now(), time.perf_counter()
    try:
        outcome = execute(cell)
        attempt = Attempt(
            cell=cell,
            status="ok",
            reason=None,
            metrics=outcome.metrics,
            workload_digest=outcome.workload_digest,
            engine=outcome.engine,
            provenance=provenance,
            started_at=started_at,
            wall_s=time.perf_counter() - start,
        )
        return Trial(
            attempt=attempt,
            requests=encode_table(outcome.requests),
            steps=None if outcome.steps is None else encode_table(outcome.steps),
            trace=None if outcome.trace is None else encode_arrow(outcome.trace.table),
        )
    except Exception as error:  # any fault of a cell is a row, and the other cells run
        return Trial(
            attempt=Attempt(
                cell=cell,
                status="failed",
                reason=f"{type(error).__name__}: {error}",
                traceback=portable_traceback(error),
                workload_digest=None,
                engine=None,
                provenance=provenance,
                started_at=started_at,
                wall_s=time.perf_counter() - start,
            )
        )


def portable_traceback(error: Exception) -> str:
    """The traceback with file names as they are imported, without this machine's folders."""
    trace = TracebackException.from_exception(error)
    for part in _chain(trace):
        for frame in part.stack:
            frame.filename = _name_on_import_path(frame.filename)
    return "".join(trace.format())


def _chain(trace: TracebackException) -> Iterator[TracebackException]:
    yield trace
    for before in (trace.__cause__, trace.__context__):
        if before is not None:
            yield from _chain(before)


def _name_on_import_path(filename: str) -> str:
    path = Path(filename)
    inside = [path.relative_to(folder) for folder in sys.path if path.is_relative_to(folder)]
    return min((str(name) for name in inside), key=len, default=path.name)
