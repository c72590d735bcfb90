"""Table C-2: how the joint depth of a request changed between queue entry and first admission."""

import pandas as pd

from analysis.ledgers import missing_cells
from analysis.published import published_value
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

CLASSES = {
    "zero_to_zero": ("depth_stays_zero_fraction", "0 to 0"),
    "positive_equal": ("depth_equal_fraction", "equal"),
    "zero_to_positive": ("depth_from_zero_fraction", "0 to more"),
    "deeper": ("depth_deeper_fraction", "deeper"),
    "shallower": ("depth_shallower_fraction", "shallower"),
}
"""Ledger metric and heading, by the paper's column."""

_QUANTITIES = tuple(
    Quantity(name=f"{name}_fraction", heading=heading, spec=".3f")
    for name, (_, heading) in CLASSES.items()
)
_SEEDS = 3
"""Traced runs behind each row (Table C-3)."""

_KEYS = (
    Column(heading="org.", templates=("{organization}",)),
    Column(heading="f", templates=("{headroom:.2f}",)),
)


@table("C-2", block=("q7", "availability"))
def from_runs(runs: Runs) -> Table:
    """Fractions of a run's requests, averaged over seeds (Section 4.5)."""
    arms = traced_arms(runs)
    metrics = [metric for metric, _ in CLASSES.values()]
    rows = [
        {
            **_key(arm.organization_label, arm.headroom),
            "n": len(runs.seeds) - len(runs.missing_seeds(arm)),
            **compare(
                _QUANTITIES,
                {
                    f"{name}_fraction": complete_mean(runs.values(arm, metric))
                    for name, (metric, _) in CLASSES.items()
                },
                _printed(arm.organization_label, arm.headroom),
            ),
        }
        for arm in arms
    ]
    keys = (*_KEYS, Column(heading="n", templates=("{n}",)))
    return Table(
        name="C-2",
        title=f"Joint depth at first admission against queue entry, seeds {runs.seeds_text}, "
        "beside the published fractions",
        rows=pd.DataFrame(rows),
        views=(
            (*keys, *columns(_QUANTITIES[:3])),
            (*keys, *columns(_QUANTITIES[3:])),
        ),
        origin=runs.origin,
        notes=(
            "Fractions of a run's requests, mean over n seeds. A request counts once, at its first "
            "admission.",
            *runs.notes,
        ),
        missing=missing_cells([(runs, arms, metrics)]),
    )


@derived("C-2")
def from_paper() -> Table:
    """The request counts behind the printed fractions."""
    per_row = _SEEDS * int(published_value("text", "G.2", "INITIAL requests per arm"))
    rows = []
    for printed in printed_rows("C-2"):
        counts = {name: round(printed[name] * per_row) for name in CLASSES}
        rows.append(
            {
                **_key(printed["organization"], printed["headroom"]),
                **{f"{name}_requests": count for name, count in counts.items()},
                "requests": sum(counts.values()),
                **compare(
                    _QUANTITIES,
                    {f"{name}_fraction": count / per_row for name, count in counts.items()},
                    _printed(printed["organization"], printed["headroom"]),
                ),
            }
        )
    counts_view = tuple(
        Column(heading=heading, templates=(f"{{{name}_requests:d}}",))
        for name, (_, heading) in CLASSES.items()
    )
    return Table(
        name="C-2",
        title="Joint depth at first admission against queue entry: requests behind the fractions",
        rows=pd.DataFrame(rows),
        views=(
            (*_KEYS, *counts_view, Column(heading="all", templates=("{requests:d}",))),
            (*_KEYS, *columns(_QUANTITIES[:3], here="count/all")),
            (*_KEYS, *columns(_QUANTITIES[3:], here="count/all")),
        ),
        origin=PAPER,
        notes=(
            f"Reconstructed: the fractions are those of {per_row} first admissions a row, the "
            f"requests of {_SEEDS} traced runs.",
        ),
    )


def traced_arms(runs: Runs) -> list[Arm]:
    """The cells of the traced runs, in the order of the paper."""
    arms = [arm for arm in runs.design.cells() if arm.trace]
    return sorted(arms, key=lambda arm: (str(arm.organization), arm.headroom or 0.0))


def _key(organization: str, headroom: float | None) -> dict[str, object]:
    return {"organization": organization, "headroom": headroom}


def _printed(organization: str, headroom: float | None) -> dict[str, Number]:
    row = printed_row("C-2", organization=organization, headroom=headroom)
    return renamed(row, ((name, f"{name}_fraction") for name in CLASSES))
