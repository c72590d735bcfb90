"""The table of a ledger that no other table covers: its settings, ranked by one metric."""

from typing import Any

import pandas as pd

from analysis.ledgers import Ledgers
from analysis.settings import (
    Comparison,
    Place,
    Ranking,
    Setting,
    compare,
    measure_of,
    ranking_of,
    shown_measures,
)
from analysis.tables.registry import table
from analysis.tables.table import Column, Table
from hsexp.plan.cells import format_seeds

MAX_ANSWERS = 12
"""Sentences below the table; `summary.json` has all of them."""


@table("settings", lacks="campaigns of yours")
def settings(ledgers: Ledgers) -> Table:
    """One row a setting, best first at each place."""
    ranking = ranking_of(ledgers)
    rows = [
        _row(ranking, place, setting, rank)
        for place in ranking.places
        for rank, setting in enumerate(place.settings, start=1)
    ]
    heading = measure_of(ranking.metric).heading
    return Table(
        name="settings",
        title=(
            f"Settings of campaign {ranking.campaign} by {heading}, best first, seeds "
            f"{format_seeds(ranking.seeds)}"
        ),
        rows=pd.DataFrame(rows),
        views=(_columns(ranking, pd.DataFrame(rows)),),
        origin=ranking.origin,
        notes=tuple(_notes(ranking)),
        missing=ranking.missing,
    )


def _row(ranking: Ranking, place: Place, setting: Setting, rank: int) -> dict[str, Any]:
    row: dict[str, Any] = {"rank": rank, **place.axes, **setting.axes, "n": len(setting.rows)}
    for measure in shown_measures(ranking.metric):
        row[f"{measure.metric}_mean"] = setting.mean(measure.metric)
        row[f"{measure.metric}_sd"] = setting.deviation(measure.metric)
    return row | _beside_best(ranking, place, setting)


def _beside_best(ranking: Ranking, place: Place, setting: Setting) -> dict[str, Any]:
    """What the best setting of the place changes; unknown for itself."""
    best = place.settings[0]
    found = (
        Comparison(change_percent=None, interval=None, num_pairs=0)
        if setting is best
        else compare(best, setting, ranking.metric)
    )
    return {
        "best_over_percent": found.change_percent,
        "low_percent": found.interval and found.interval.low,
        "high_percent": found.interval and found.interval.high,
        "num_pairs": found.num_pairs,
    }


def _columns(ranking: Ranking, rows: pd.DataFrame) -> tuple[Column, ...]:
    axes = (*ranking.place_axes, *ranking.setting_axes)
    return (
        Column(heading="rank", templates=("{rank:d}",)),
        *(_axis_column(axis, rows) for axis in axes),
        Column(heading="n", templates=("{n:d}",)),
        *(
            Column(
                heading=measure.heading,
                templates=(
                    f"{{{measure.metric}_mean:{measure.spec}}} ± "
                    f"{{{measure.metric}_sd:{measure.spec}}}",
                    f"{{{measure.metric}_mean:{measure.spec}}}",
                ),
            )
            for measure in shown_measures(ranking.metric)
        ),
        Column(
            heading="best over it, %",
            templates=(
                "{best_over_percent:+.2f} [{low_percent:+.2f}, {high_percent:+.2f}]",
                "{best_over_percent:+.2f}",
            ),
        ),
    )


def _axis_column(axis: str, rows: pd.DataFrame) -> Column:
    is_number = pd.api.types.is_numeric_dtype(rows[axis]) and rows[axis].dtype != bool
    return Column(heading=axis, templates=(f"{{{axis}:g}}" if is_number else f"{{{axis}}}",))


def _notes(ranking: Ranking) -> list[str]:
    answers = ranking.answers()
    notes = answers[:MAX_ANSWERS]
    if len(answers) > MAX_ANSWERS:
        notes.append(f"{len(answers) - MAX_ANSWERS} more places: see summary.json of the ledger")
    notes.append(
        "Means over seeds ± standard deviation. Best over it: geometric mean over shared seeds of "
        "the ratio of the best setting to this one, with a 95 % paired t interval of log ratios "
        "where there are two seeds. The best one is chosen on the same runs, which favours it."
    )
    if len(ranking.seeds) == 1:
        notes.append("There is one seed, so nothing here says how far chance goes.")
    if ranking.num_overloaded:
        notes.append(
            f"{ranking.num_overloaded} settings have overloaded runs: more requests arrive than "
            "are served, so that latencies measure the length of the run."
        )
    if ranking.num_repeated:
        notes.append(
            f"{ranking.num_repeated} older runs of the same setting and seed are left out."
        )
    return notes
