"""Table C-3: whether recording a state trace leaves throughput within 3 % (Section 4.5)."""

import math
from collections.abc import Sequence

import pandas as pd

from analysis.effects import log_ratios
from analysis.intervals import Interval, paired_t
from analysis.ledgers import missing_cells
from analysis.runs import THROUGHPUT, Runs
from analysis.tables.beside import (
    PAPER,
    Quantity,
    columns,
    compare,
    printed_row,
    printed_rows,
    renamed,
)
from analysis.tables.c2 import traced_arms
from analysis.tables.registry import derived, table
from analysis.tables.table import Column, Table

LEVEL = 0.90
"""Level of the two-sided paired t interval (Section 4.5)."""

MARGIN = tuple(float(printed_rows("C-3")[0][end]) for end in ("margin_low", "margin_high"))
"""Smallest and largest tolerated 100 ln of the throughput ratio."""

NOT_MEASURABLE = "not measurable"
"""Decision on pairs that are all equal, because a trace costs no time in them."""

_QUANTITIES = (
    Quantity(name="mean_100_ln", heading="mean 100 ln(ON/OFF)", spec="+.3f"),
    Quantity(name="ci90_low_100_ln", heading="90 % low", spec="+.3f"),
    Quantity(name="ci90_high_100_ln", heading="90 % high", spec="+.3f"),
)
_DECISION = (
    Column(group="containment", heading="here", templates=("{containment}",)),
    Column(group="containment", heading="paper", templates=("{containment_published}",)),
)


@table("C-3", block=("q7", "availability"))
def from_runs(runs: Runs) -> Table:
    """Traced over untraced runs, paired by seed."""
    traced = traced_arms(runs)
    arms = [arm.model_copy(update={"trace": False}) for arm in traced] + traced
    rows = []
    for arm in traced:
        pairs = runs.pairs(arm, arm.model_copy(update={"trace": False}), THROUGHPUT)
        complete = not pairs.undefined and pairs.num_pairs > 1
        logs = 100.0 * log_ratios(pairs) if complete else None
        rows.append(
            _row(
                arm.organization_label,
                arm.headroom,
                n=len(pairs.numerator),
                mean=None if logs is None else float(logs.mean()),
                interval=None if logs is None else paired_t(logs, level=LEVEL),
            )
        )
    notes = [
        "100 ln of the throughput ratio, two-sided 90 % paired t interval over n seeds; PASS where "
        "it lies inside the margin.",
    ]
    if any(row["degenerate"] for row in rows):
        notes.append(
            "Simulated tracing costs no simulated time: equal pairs have no spread, and their "
            "containment cannot fail."
        )
    return Table(
        name="C-3",
        title=f"Throughput with and without a state trace, seeds {runs.seeds_text}",
        rows=pd.DataFrame(rows),
        views=(_view("here", n=True),),
        origin=runs.origin,
        notes=(*notes, *runs.notes),
        missing=missing_cells([(runs, arms, [THROUGHPUT])]),
    )


@derived("C-3")
def from_paper() -> Table:
    """The decision that follows from the printed interval, and the mean at its middle."""
    rows = []
    for printed in printed_rows("C-3"):
        low, high = printed["ci90_low"], printed["ci90_high"]
        interval = Interval(low=low, high=high, level=LEVEL, kind="paired t", n=3)
        rows.append(
            _row(
                printed["organization"],
                printed["headroom"],
                n=3,
                mean=math.fsum((low, high)) / 2.0,
                interval=interval,
            )
        )
    return Table(
        name="C-3",
        title="Throughput with and without a state trace: decisions of the printed intervals",
        rows=pd.DataFrame(rows),
        views=(_view("recomputed", n=False),),
        origin=PAPER,
        notes=("A t interval is symmetric, so its middle is the mean.",),
    )


def _view(here: str, *, n: bool) -> tuple[Column, ...]:
    keys = (
        Column(heading="org.", templates=("{organization}",)),
        Column(heading="f", templates=("{headroom:.2f}",)),
    )
    count = (Column(heading="n", templates=("{n}",)),) if n else ()
    return (*keys, *count, *columns(_QUANTITIES, here), *_DECISION)


def _row(
    organization: str,
    headroom: float | None,
    *,
    n: int,
    mean: float | None,
    interval: Interval | None,
) -> dict[str, object]:
    printed = printed_row("C-3", organization=organization, headroom=headroom)
    here = {
        "mean_100_ln": mean,
        "ci90_low_100_ln": None if interval is None else interval.low,
        "ci90_high_100_ln": None if interval is None else interval.high,
    }
    ours = (quantity.name for quantity in _QUANTITIES)
    paper = renamed(
        printed, zip(("mean_100_ln_on_off", "ci90_low", "ci90_high"), ours, strict=True)
    )
    return {
        "organization": organization,
        "headroom": headroom,
        "n": n,
        **compare(_QUANTITIES, here, paper),
        "margin_low_100_ln": MARGIN[0],
        "margin_high_100_ln": MARGIN[1],
        "degenerate": interval is not None and interval.degenerate,
        "containment": decision(interval, MARGIN),
        "containment_published": printed.get("containment"),
    }


def decision(interval: Interval | None, margin: Sequence[float]) -> str | None:
    """Whether an interval lies inside the margin; equal pairs cannot tell."""
    if interval is None:
        return None
    if interval.degenerate and interval.low == 0.0:
        return NOT_MEASURABLE
    return "PASS" if interval.inside(*margin) else "FAIL"
