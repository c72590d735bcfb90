"""State histories of traced runs: each trace is read once, whatever tables and figures need it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from analysis.errors import AnalysisError
from hsexp.ledger import NoTableError
from hsexp.trace import Trace, TraceError
from hsexp.trace.episodes import Episode
from hsexp.trace.integrity import Integrity
from hsexp.trace.lineage import Lineage, Publications, lineages, publications
from hsexp.trace.ownership import Ownership, ownership


@dataclass(frozen=True, kw_only=True)
class History:
    """What the trace of one run says."""

    integrity: Integrity
    lineages: tuple[Lineage, ...] = ()
    """Empty if the trace is not whole."""
    publications: Publications | None = None
    """None if the trace is not whole, as below."""
    ownership: Ownership | None = None
    trace: Trace | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, table: pa.Table) -> "History":
        """
        Raises:
            TraceError: the trace is whole, and its events contradict each other.
        """
        integrity = Integrity.of(table)
        if integrity.fault is not None:
            return cls(integrity=integrity)
        trace = Trace(table)
        return cls(
            integrity=integrity,
            lineages=tuple(lineages(trace)),
            publications=publications(trace),
            ownership=ownership(trace),
            trace=trace,
        )

    @cached_property
    def episodes(self) -> tuple[Episode, ...]:
        return tuple(lineage.episode for lineage in self.lineages)

    @cached_property
    def initial(self) -> tuple[Episode, ...]:
        """Episodes that no preemption came before."""
        return tuple(episode for episode in self.episodes if episode.is_initial)

    def mean(self, depth: Callable[[Episode], int]) -> float | None:
        """Mean of a depth over the first admissions; None if there is none."""
        values = [depth(episode) for episode in self.initial]
        return sum(values) / len(values) if values else None


class Histories:
    """The histories of one ledger's runs, read when first needed."""

    def __init__(self, read: Callable[[str], pa.Table]) -> None:
        """
        Args:
            read: the trace table of a cell (`Ledger.trace_table`).
        """
        self._read = read
        self._known: dict[str, History | None] = {}

    def of(self, cell_id: str) -> History | None:
        """The history of a run; None if it has no trace.

        Raises:
            AnalysisError: the events of a trace contradict each other.
        """
        if cell_id not in self._known:
            self._known[cell_id] = self._history(cell_id)
        return self._known[cell_id]

    def _history(self, cell_id: str) -> History | None:
        try:
            table = self._read(cell_id)
        except NoTableError:
            return None
        try:
            return History.of(table)
        except TraceError as error:
            raise AnalysisError(f"run {cell_id}: {error}") from None


def whole(histories: Iterable[History]) -> list[History]:
    """Those with a whole trace."""
    return [history for history in histories if history.integrity.fault is None]
