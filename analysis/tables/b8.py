"""Table B-8: request rate and tail latency of thirty cells, each beside the published value."""

import pandas as pd

from analysis.families import AnalysisConfig
from analysis.ledgers import missing_cells
from analysis.runs import Runs
from analysis.tables.q6 import PRINTED, cell_mean
from analysis.tables.registry import table
from analysis.tables.table import Column, Table

_HEADINGS = {
    "requests_per_s": ("requests/s", ".3f"),
    "ttft_p99_s": ("TTFT p99, s", ".2f"),
    "e2e_p99_s": ("E2E p99, s", ".2f"),
    "tpot_p99_s": ("TPOT p99, s", ".4f"),
}


@table("B-8", analysis="q6", lacks="run-level values of each cell")
def from_runs(runs: Runs, config: AnalysisConfig) -> Table:
    """Means over seeds of run-level values, with standard errors over seeds (Appendix B.12)."""
    arms = config.design.cells()
    rows = []
    for arm in arms:
        row: dict[str, object] = {
            "budget": arm.budget,
            "organization": arm.organization_label,
            "headroom": arm.headroom,
            "n": int(runs.values(arm, "requests_per_s").notna().sum()),
        }
        for metric in PRINTED:
            cell = cell_mean(runs, arm, metric)
            row[metric] = cell.mean
            row[f"{metric}_standard_error"] = cell.standard_error
            row[f"{metric}_published"] = cell.published
            row[f"{metric}_error_pct"] = cell.error_percent
        rows.append(row)
    return Table(
        name="B-8",
        title=f"Admission confirmation, {len(arms)} cells on seeds {runs.seeds_text}: request "
        "rate and latency beside the published values",
        rows=pd.DataFrame(rows),
        views=(
            _view("requests_per_s", "ttft_p99_s"),
            _view("e2e_p99_s", "tpot_p99_s"),
        ),
        origin=runs.origin,
        notes=(
            "Each latency is the mean over seeds of a run's own p99 (linear rule), ± its standard "
            "error over seeds. TPOT is a request's mean output-token interval.",
            *runs.notes,
        ),
        missing=missing_cells([(runs, arms, PRINTED)]),
    )


def _view(*metrics: str) -> tuple[Column, ...]:
    columns = [
        Column(heading="budget", templates=("{budget}",)),
        Column(heading="org.", templates=("{organization}",)),
        Column(heading="f", templates=("{headroom:.2f}",)),
        Column(heading="n", templates=("{n}",)),
    ]
    for metric in metrics:
        group, spec = _HEADINGS[metric]
        mean, error = f"{{{metric}:{spec}}}", f"{{{metric}_standard_error:{spec}}}"
        printed, deviation = f"{{{metric}_published:{spec}}}", f"{{{metric}_error_pct:+.1f}}"
        columns += [
            Column(group=group, heading="here", templates=(f"{mean}±{error}", mean)),
            Column(group=group, heading="paper", templates=(printed,)),
            Column(group=group, heading="err %", templates=(deviation,)),
        ]
    return tuple(columns)
