"""Table E-11: the D0/S2 gap under concurrency caps, and D0's checks per completion (E.3)."""

import pandas as pd

from analysis.ledgers import Ledgers, common_origin, missing_cells
from analysis.published import published_row
from analysis.runs import Runs
from analysis.tables.beside import Quantity, complete_mean
from analysis.tables.cells import mean_change, text_column
from analysis.tables.registry import table
from analysis.tables.table import Column, Table
from hsexp.config.arm import Arm

CAMPAIGN = "cap_ladder"
BLOCKS = ("b63", "b108")

_GAP = Quantity(name="mean_d0_s2_gap", heading="mean D0/S2 gap, %", spec="+.2f")
_EVENTS = {
    "rejections": (Quantity(name="rejections", heading="rejections", spec=".3f"), "refusals"),
    "victims": (Quantity(name="victims", heading="victims", spec=".3f"), "num_preemptions"),
    "preemptions": (
        Quantity(name="preemptions", heading="preemptions", spec=".3f"),
        "num_preemptions",
    ),
}
"""Quantity and ledger counter, by column of the published table."""


@table("E-11", lacks="throughput and events of each run")
def e11(ledgers: Ledgers) -> Table:
    """Every cap in the order of the paper: the reference first, then the ladder."""
    rows, needs = [], []
    for block in BLOCKS:
        runs = ledgers.runs(CAMPAIGN, block)
        for cap in (runs.design.cap[-1], *runs.design.cap[:-1]):
            d0, s2 = (Arm(organization=name, cap=cap) for name in ("d0", "s2"))
            known = published_row("E-11", f"{block}/{cap}")
            entries: dict[str, object] = {"budget": block, "cap": cap}
            gap = mean_change(runs, d0, s2, "throughput_tok_per_s")
            entries |= _GAP.compare(gap, known.get("mean_d0_s2_gap"))
            for column, (quantity, metric) in _EVENTS.items():
                here = _per_completion(runs, d0, metric)
                entries |= quantity.compare(here, known.get(column))
            rows.append(entries)
            metrics = ["throughput_tok_per_s", "refusals", "num_preemptions", "num_finished"]
            needs += [(runs, [d0], metrics), (runs, [s2], metrics[:1])]
    keys = (text_column("budget", "budget"), Column(heading="cap", templates=("{cap:d}",)))
    return Table(
        name="E-11",
        title="The D0/S2 gap by cap at 1.7 requests/s, and D0's events per completion",
        rows=pd.DataFrame(rows),
        views=(
            (*keys, *_GAP.columns()),
            (*keys, *(column for quantity, _ in _EVENTS.values() for column in quantity.columns())),
        ),
        origin=common_origin(ledgers.runs(CAMPAIGN, block) for block in BLOCKS),
        notes=(
            "Rejections: refused admissions. Every preemption has one victim here. Both are means "
            "over seeds of a run's events over its finished requests.",
        ),
        missing=missing_cells(needs),
    )


def _per_completion(runs: Runs, arm: Arm, metric: str) -> float | None:
    return complete_mean(runs.values(arm, metric) / runs.values(arm, "num_finished"))
