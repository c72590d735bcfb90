"""Live separation: the effect of steps that never mix prefill and decode (Appendix C.1)."""

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

_CHANGES = {
    THROUGHPUT: ("tok/s", -1),
    "ttft_mean_s": ("TTFT mean", +1),
    "ttft_p99_s": ("TTFT p99", +1),
    "e2e_mean_s": ("E2E mean", +1),
    "e2e_p99_s": ("E2E p99", +1),
}
"""Heading and published sign, by metric. The paper prints only signs, and does not define its
statistics of TTFT and E2E."""


@table("live-separation", lacks="throughput and latencies of its cells")
def from_ledgers(ledgers: Ledgers) -> Table:
    """The table of the campaign's two blocks."""
    return from_runs(
        ledgers.runs("live_separation", "mixed"), ledgers.runs("live_separation", "separated")
    )


def from_runs(mixed: Runs, separated: Runs) -> Table:
    """Mean over seeds of the relative change from mixed to separated steps, by condition.

    Raises:
        NoRunsError: neither block has a run.
    """
    arms = mixed.design.cells()
    rows = pd.DataFrame([_row(mixed, separated, arm) for arm in arms])
    return Table(
        name="live-separation",
        title="Steps that never mix prefill and decode against mixed ones, seeds "
        f"{mixed.seeds_text}",
        rows=rows,
        views=(_COLUMNS,),
        origin=common_origin((mixed, separated)),
        notes=(
            _agreement(rows),
            "The paper does not state budget, load and seeds: those of the isolation pilot are "
            "assumed (conf/campaign/live_separation.yaml).",
            "The paper's separated runs failed its own check (too many steps that only ask for "
            "admission); the simulator takes no such steps.",
        ),
        missing=missing_cells(((mixed, arms, _CHANGES), (separated, arms, _CHANGES))),
    )


def _row(mixed: Runs, separated: Runs, arm: Arm) -> dict[str, Any]:
    row: dict[str, Any] = {
        "organization": printed_name(arm),
        "headroom": arm.headroom,
        "mixed_tok_per_s": complete_mean(mixed.values(arm, THROUGHPUT)),
        "separated_tok_per_s": complete_mean(separated.values(arm, THROUGHPUT)),
    }
    for metric in _CHANGES:
        pairs = pair_up(separated.values(arm, metric), mixed.values(arm, metric))
        known = not pairs.undefined
        row |= {"n": len(pairs.numerator)} if metric == THROUGHPUT else {}
        row[f"{metric}_change_pct"] = float(relative_changes(pairs).mean()) if known else None
    return row


def _agreement(rows: pd.DataFrame) -> str:
    """Note on how many conditions have the published sign, by metric."""
    counts = []
    for metric, (heading, sign) in _CHANGES.items():
        changes = rows[f"{metric}_change_pct"].astype("float64")
        counts.append(f"{heading} {'up' if sign > 0 else 'down'} {(changes * sign > 0).sum()}")
    complete = rows[[f"{metric}_change_pct" for metric in _CHANGES]].notna().all(axis="columns")
    known = "" if complete.all() else f" ({complete.sum()} of them with all runs)"
    return (
        f"As in the paper, of {len(rows)} conditions{known}: {', '.join(counts)} "
        "(published: throughput down and TTFT and E2E up in all)."
    )


_COLUMNS = (
    Column(heading="org.", templates=("{organization}",)),
    Column(heading="f", templates=("{headroom:.2f}",)),
    Column(heading="n", templates=("{n}",)),
    *(
        Column(group="tok/s", heading=name, templates=(f"{{{name}_tok_per_s:.1f}}",))
        for name in ("mixed", "separated")
    ),
    *(
        Column(
            group="change by separation, %",
            heading=heading,
            templates=(f"{{{metric}_change_pct:+.2f}}",),
        )
        for metric, (heading, _) in _CHANGES.items()
    ),
)
