"""Table G-1: recorded work and throughput without common contexts (Q2, Experiment 2c)."""

import pandas as pd

from analysis.ledgers import missing_cells
from analysis.runs import Runs
from analysis.tables.beside import (
    PAPER,
    Number,
    Quantity,
    columns,
    compare,
    complete_mean,
    printed_row,
    printed_rows,
    renamed,
)
from analysis.tables.registry import derived, table
from analysis.tables.table import Column, Table
from hsexp.config.arm import Arm

_METRICS = {
    "initial_input": "c_once_tokens",
    "recorded_total": "h_tokens",
    "preemptions_per_run": "num_preemptions",
    "throughput": "throughput_tok_per_s",
}
"""Ledger metric, by the paper's column."""

_INPUT = Quantity(name="c_once_tokens", heading="initial input, tok/run", spec=",.3f")
_TOTAL = Quantity(name="h_tokens", heading="recorded total, tok/run", spec=",.3f")
_PREEMPTIONS = Quantity(name="num_preemptions", heading="preemptions/run", spec=".2f")
_THROUGHPUT = Quantity(name="throughput_tok_per_s", heading="tok/s", spec=".3f")
_QUANTITIES = (_INPUT, _TOTAL, _PREEMPTIONS, _THROUGHPUT)
_KEY = Column(heading="org.", templates=("{organization}",))


@table("G-1", block=("q2", "no_sharing"))
def from_runs(runs: Runs) -> Table:
    """Arithmetic means over seeds."""
    arms = [Arm(organization=organization) for organization in runs.design.organization]
    rows = [
        {
            "organization": arm.organization_label,
            "n": len(runs.seeds) - len(runs.missing_seeds(arm)),
            **compare(
                _QUANTITIES,
                {metric: complete_mean(runs.values(arm, metric)) for metric in _METRICS.values()},
                _paper(arm.organization_label),
            ),
        }
        for arm in arms
    ]
    keys = (_KEY, Column(heading="n", templates=("{n}",)))
    return Table(
        name="G-1",
        title=f"Recorded work and throughput at q = 0, seeds {runs.seeds_text}, beside the "
        "published means",
        rows=pd.DataFrame(rows),
        views=((*keys, *columns(_QUANTITIES[:2])), (*keys, *columns(_QUANTITIES[2:]))),
        origin=runs.origin,
        notes=(
            "Initial input is C_once = H − O_ctr, recorded total is H (Appendix B.4).",
            *runs.notes,
        ),
        missing=missing_cells([(runs, arms, _METRICS.values())]),
    )


@derived("G-1")
def from_paper() -> Table:
    """O_ctr = H − C_once of the printed counters, in total and per request."""
    rows = []
    for printed in printed_rows("G-1"):
        outputs = printed["recorded_total"] - printed["initial_input"]
        rows.append(
            {
                "organization": printed["organization"],
                **{metric: printed[column] for column, metric in _METRICS.items()},
                "o_ctr_tokens": outputs,
                "output_share_pct": 100.0 * outputs / printed["recorded_total"],
            }
        )
    return Table(
        name="G-1",
        title="Recorded work and throughput at q = 0: what the printed counters imply",
        rows=pd.DataFrame(rows),
        views=(
            (
                _KEY,
                Column(heading="C_once, tok/run", templates=("{c_once_tokens:,.3f}",)),
                Column(heading="H, tok/run", templates=("{h_tokens:,.3f}",)),
                Column(heading="O_ctr = H − C_once", templates=("{o_ctr_tokens:,.3f}",)),
                Column(heading="tok/s", templates=("{throughput_tok_per_s:.3f}",)),
            ),
        ),
        origin=PAPER,
    )


def _paper(organization: str) -> dict[str, Number]:
    return renamed(printed_row("G-1", organization=organization), _METRICS.items())
