"""Tables of cell means or paired changes, each beside the published value."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from analysis.effects import relative_changes
from analysis.ledgers import common_origin, missing_cells
from analysis.published import published_row
from analysis.runs import Runs
from analysis.tables.beside import Number, Quantity, complete_mean
from analysis.tables.table import Column, Table
from hsexp.config.arm import Arm


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A quantity of a table, computed from one metric of the ledger."""

    quantity: Quantity
    metric: str
    """Column of the ledger."""
    printed: tuple[str, ...]
    """Columns of the published table whose sum is the published value."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """One row: the runs of an arm, and where the paper prints its values."""

    keys: Mapping[str, object]
    runs: Runs
    arm: Arm
    base: Arm | None = None
    """Arm that changes are relative to; None shows means."""
    row: str
    """Row of the published table."""


def measure(name: str, heading: str, spec: str, metric: str, *printed: str) -> Measure:
    """A quantity with its ledger metric and published columns."""
    return Measure(
        quantity=Quantity(name=name, heading=heading, spec=spec), metric=metric, printed=printed
    )


def mean_change(runs: Runs, arm: Arm, base: Arm, metric: str) -> float | None:
    """Mean over seeds of the relative change in percent; None if a pair is incomplete."""
    pairs = runs.pairs(arm, base, metric)
    if pairs.undefined or not pairs.num_pairs:
        return None
    return float(relative_changes(pairs).mean())


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Texts, keys and measures of a table of places."""

    name: str
    title: str
    keys: tuple[Column, ...]
    measures: tuple[Measure, ...]
    notes: tuple[str, ...] = ()
    parts: tuple[int, ...] = field(default=())
    """Number of measures in each view; empty puts all in one."""


def cell_table(layout: Layout, places: Sequence[Place]) -> Table:
    """Means over seeds of run-level values, or means of paired changes, place by place."""
    rows = []
    for place in places:
        row: dict[str, object] = dict(place.keys)
        row["n"] = _num_seeds(place)
        known = published_row(layout.name, place.row)
        for each in layout.measures:
            row |= each.quantity.compare(_here(place, each.metric), _sum(known, each.printed))
        rows.append(row)
    needs = [
        (place.runs, [arm], [each.metric for each in layout.measures])
        for place in places
        for arm in (place.arm, place.base)
        if arm is not None
    ]
    return Table(
        name=layout.name,
        title=layout.title,
        rows=pd.DataFrame(rows),
        views=_views(layout),
        origin=common_origin(place.runs for place in places),
        notes=layout.notes,
        missing=missing_cells(needs),
    )


def _here(place: Place, metric: str) -> Number:
    if place.base is not None:
        return mean_change(place.runs, place.arm, place.base, metric)
    return complete_mean(place.runs.values(place.arm, metric))


def _num_seeds(place: Place) -> int:
    arms = [place.arm] if place.base is None else [place.arm, place.base]
    lacking = {seed for arm in arms for seed in place.runs.missing_seeds(arm)}
    return len(place.runs.seeds) - len(lacking)


def _sum(known: Mapping[str, float], columns: tuple[str, ...]) -> float | None:
    if not all(column in known for column in columns):
        return None
    return math.fsum(known[column] for column in columns)


def _views(layout: Layout) -> tuple[tuple[Column, ...], ...]:
    keys = (*layout.keys, Column(heading="n", templates=("{n}",)))
    views, start = [], 0
    for size in layout.parts or (len(layout.measures),):
        part = layout.measures[start : start + size]
        views.append(keys + tuple(column for each in part for column in each.quantity.columns()))
        start += size
    return tuple(views)


def text_column(heading: str, name: str, group: str = "") -> Column:
    """A column that prints a key of the rows unchanged."""
    return Column(heading=heading, templates=(f"{{{name}}}",), group=group)


def quantity_table(
    name: str,
    title: str,
    *,
    runs: Runs,
    arms: Mapping[str, Arm],
    quantities: Mapping[str, tuple[str, str]],
    notes: tuple[str, ...] = (),
) -> Table:
    """A table whose rows are quantities and whose columns are arms, as means over seeds.

    Args:
        arms: arms, by column of the published table.
        quantities: ledger metric and heading, by row of the published table.
    """
    shown = [Quantity(name=arm.lower(), heading=arm, spec=",.3f") for arm in arms]
    rows = []
    for row, (metric, heading) in quantities.items():
        entries: dict[str, object] = {"quantity": heading, "metric": metric}
        for quantity, (column, arm) in zip(shown, arms.items(), strict=True):
            here = complete_mean(runs.values(arm, metric))
            entries |= quantity.compare(here, published_row(name, row).get(column))
        rows.append(entries)
    metrics = [metric for metric, _ in quantities.values()]
    return Table(
        name=name,
        title=title,
        rows=pd.DataFrame(rows),
        views=(
            (
                text_column("quantity", "quantity"),
                *(column for quantity in shown for column in quantity.columns()),
            ),
        ),
        origin=common_origin([runs]),
        notes=(f"Means over {len(runs.seeds)} seeds of run-level values.", *notes),
        missing=missing_cells([(runs, arms.values(), metrics)]),
    )
