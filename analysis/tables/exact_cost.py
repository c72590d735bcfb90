"""The cost of canonical chunks in the schedule: exact continuation against stock chunks."""

from typing import Any

import pandas as pd

from analysis.effects import pair_up, relative_changes
from analysis.ledgers import Ledgers, common_origin, missing_cells
from analysis.runs import THROUGHPUT, Runs
from analysis.tables.beside import complete_mean
from analysis.tables.c4 import printed_name
from analysis.tables.registry import table
from analysis.tables.table import Column, Table
from hsexp.config.arm import Arm

CAMPAIGN = "exact_cost"

_CAUSES = ("adopted_tokens_mean", "lost_checkpoints", "num_preemptions", "num_steps")
_METRICS = (THROUGHPUT, *_CAUSES)


@table("exact-cost", lacks="any exact run")
def from_ledgers(ledgers: Ledgers) -> Table:
    """The table of the campaign's two blocks."""
    return from_runs(ledgers.runs(CAMPAIGN, "stock"), ledgers.runs(CAMPAIGN, "exact"))


def from_runs(stock: Runs, exact: Runs) -> Table:
    """Mean over seeds of the relative change from stock to exact, and of its causes.

    Raises:
        NoRunsError: neither block has a run.
    """
    arms = stock.design.cells()
    return Table(
        name="exact-cost",
        title=f"Exact continuation against stock chunks, seeds {stock.seeds_text}",
        rows=pd.DataFrame([_row(stock, exact, arm) for arm in arms]),
        views=(_COLUMNS,),
        origin=common_origin((stock, exact)),
        notes=(
            "Only the schedule changes: chunks of one grid interval, history again token by token. "
            "The device cost of one pass per request is not included (docs/continuation.md).",
        ),
        missing=missing_cells(((stock, arms, _METRICS), (exact, arms, _METRICS))),
    )


def _row(stock: Runs, exact: Runs, arm: Arm) -> dict[str, Any]:
    pairs = pair_up(exact.values(arm, THROUGHPUT), stock.values(arm, THROUGHPUT))
    changes = None if pairs.undefined else relative_changes(pairs)
    row: dict[str, Any] = {
        "organization": printed_name(arm),
        "budget": arm.budget,
        "sharing": arm.sharing,
        "n": len(pairs.numerator),
        "change_pct": None if changes is None else float(changes.mean()),
        "least_pct": None if changes is None else float(changes.min()),
        "greatest_pct": None if changes is None else float(changes.max()),
    }
    for name, runs in (("stock", stock), ("exact", exact)):
        row |= {f"{name}_{metric}": complete_mean(runs.values(arm, metric)) for metric in _METRICS}
    return row


def _beside(metric: str, group: str, form: str) -> tuple[Column, ...]:
    return tuple(
        Column(group=group, heading=name, templates=(f"{{{name}_{metric}:{form}}}",))
        for name in ("stock", "exact")
    )


_COLUMNS = (
    Column(heading="org.", templates=("{organization}",)),
    Column(heading="budget", templates=("{budget}",)),
    Column(heading="q", templates=("{sharing:.1f}",)),
    Column(heading="n", templates=("{n:d}",)),
    *_beside(THROUGHPUT, "tok/s", ".1f"),
    Column(heading="change, %", templates=("{change_pct:+.1f}",)),
    Column(heading="of the seeds", templates=("{least_pct:+.1f} to {greatest_pct:+.1f}",)),
    *_beside("adopted_tokens_mean", "adopted tokens", ",.0f"),
    *_beside("lost_checkpoints", "lost checkpoints", ",.0f"),
    *_beside("num_preemptions", "preemptions", ",.1f"),
)
