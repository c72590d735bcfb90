"""Table D-2: whether the traces of our own runs are whole, and bind every episode (D.4)."""

from collections.abc import Callable, Sequence

import pandas as pd

from analysis.effects import log_ratios
from analysis.histories import History, whole
from analysis.intervals import paired_t
from analysis.ledgers import missing_cells
from analysis.published import printed_number
from analysis.runs import THROUGHPUT, Runs
from analysis.tables.beside import Number, less
from analysis.tables.c2 import traced_arms
from analysis.tables.c3 import LEVEL, MARGIN, NOT_MEASURABLE, decision
from analysis.tables.registry import table
from analysis.tables.table import Column, Table
from hsexp.config.arm import Arm

_COLLECTION = "Final 24-run collection"
_RECORDS = "Final trace records"
_PROBE = "Throughput probe effect"
_BINDING = "Admission endpoint binding"


@table("D-2", block=("q7", "availability"), lacks="the records behind its counts")
def from_runs(runs: Runs) -> Table:
    """Counts over all runs of the block, beside those of the paper's final collection."""
    traced = traced_arms(runs)
    plain = [arm.model_copy(update={"trace": False}) for arm in traced]
    histories = [history for arm in traced for history in runs.histories(arm).values()]
    passed, measurable = _probes(runs, traced)
    collection, records = _collection(runs, traced, plain), _records(histories)
    episodes = [
        (lineage.episode.is_replayed and lineage.is_replayed)
        for history in histories
        for lineage in history.lineages
    ]
    rows = [
        *(_row("collection", _COLLECTION, *entry) for entry in collection),
        *(_row("traces", _RECORDS, *entry) for entry in records),
        _row(
            "throughput probe",
            _PROBE,
            "containment checks passed",
            "interval_containment_checks_passed",
            passed,
            len(traced),
        ),
        _row(
            "admission endpoints",
            _BINDING,
            "episodes bound",
            "episodes_bound",
            sum(episodes) if histories else None,
            len(episodes) if histories else None,
        ),
    ]
    notes = [
        "Bound: the events lead to the depth that the scheduler recorded, for the request and its "
        "number of preemptions, both by depth and along the lineage.",
        "The paper's two diagnostic boots have no counterpart here.",
    ]
    if not measurable:
        notes.append(f"Containment is {NOT_MEASURABLE} where a trace costs no time (Table C-3).")
    faults = [history.integrity.fault for history in histories if history.integrity.fault]
    notes += [f"A refused trace: {fault}." for fault in faults]
    return Table(
        name="D-2",
        title=f"Integrity of the traces, seeds {runs.seeds_text}, beside the published collection",
        rows=pd.DataFrame(rows),
        views=(
            (
                Column(heading="evidence", templates=("{evidence}",)),
                Column(heading="count", templates=("{count}",)),
                Column(group="here", heading="count", templates=("{here:,.0f}",)),
                Column(group="here", heading="of", templates=("{here_of:,.0f}",)),
                Column(group="paper", heading="count", templates=("{published:,.0f}",)),
                Column(group="paper", heading="of", templates=("{published_of:,.0f}",)),
                Column(heading="diff", templates=("{difference:+,.0f}",)),
            ),
        ),
        origin=runs.origin,
        notes=(*notes, *runs.notes),
        missing=missing_cells([(runs, [*plain, *traced], ())]),
    )


Entry = tuple[str, str | None, Number, Number]
"""Heading, the paper's column, our count, and what it is out of."""


def _collection(runs: Runs, traced: Sequence[Arm], plain: Sequence[Arm]) -> list[Entry]:
    """Runs, and attempts that did not count at first."""
    arms = (*plain, *traced)
    num_runs = [len(runs.cell_ids(arm)) for arm in arms]
    attempts = runs.attempts
    failed = int((attempts["status"] != "ok").sum())
    retries = len(attempts) - int(attempts["cell_id"].nunique())
    wanted = len(arms) * len(runs.seeds)
    return [
        ("runs accepted", "runs_accepted", sum(num_runs), wanted),
        ("failed attempts", "halts", failed, None),
        ("further attempts of a cell", "retries", retries, None),
        ("runs without a trace", "performance_runs", sum(num_runs[: len(plain)]), None),
        ("traced runs", "trace_runs", sum(num_runs[len(plain) :]), None),
    ]


def _records(histories: Sequence[History]) -> list[Entry]:
    """What the traces say of themselves; None where there are none."""
    integrity = [history.integrity for history in histories]

    def total(count: Callable[[History], int | None]) -> int | None:
        counts = [count(history) for history in histories]
        known = [each for each in counts if each is not None]
        return sum(known) if known else None

    ends = sum(each.has_end for each in integrity)
    return [
        ("whole traces", None, len(whole(histories)) if histories else None, _of(histories)),
        ("end records", None, ends if histories else None, _of(histories)),
        ("events", None, total(lambda history: history.integrity.num_events), None),
        (
            "gaps in sequence numbers",
            "sequence_gaps",
            total(lambda history: len(history.integrity.gaps)),
            None,
        ),
        ("dropped events", "dropped", total(lambda history: history.integrity.dropped), None),
        (
            "write errors",
            "write_errors",
            total(lambda history: history.integrity.write_errors),
            None,
        ),
    ]


def _of(histories: Sequence[History]) -> int | None:
    return len(histories) if histories else None


def _probes(runs: Runs, traced: Sequence[Arm]) -> tuple[int | None, bool]:
    """Containment checks that pass, and whether all can be measured; None if not."""
    decisions = []
    for arm in traced:
        pairs = runs.pairs(arm, arm.model_copy(update={"trace": False}), THROUGHPUT)
        if pairs.undefined or pairs.num_pairs < 2:
            return None, True
        decisions.append(decision(paired_t(100.0 * log_ratios(pairs), level=LEVEL), MARGIN))
    if NOT_MEASURABLE in decisions:
        return None, False
    return decisions.count("PASS"), True


def _row(
    evidence: str,
    row: str,
    heading: str,
    column: str | None,
    here: Number,
    out_of: Number,
) -> dict[str, str | Number]:
    paper = None if column is None else printed_number("D-2", row, column).value
    is_fraction = column is not None and out_of is not None
    paper_of = printed_number("D-2", row, f"{column}_of").value if is_fraction else None
    return {
        "evidence": evidence,
        "count": heading,
        "here": here,
        "here_of": out_of,
        "published": paper,
        "published_of": paper_of,
        "difference": less(here, paper),
    }
