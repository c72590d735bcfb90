"""A quantity here, the published one, and their difference: what most tables put side by side."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.published import published_table
from analysis.runs import Origin
from analysis.tables.table import Column

PAPER = Origin(data_kind="recomputed from the published values")
"""Origin of tables that need no run."""

Number = float | int | None


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number that runs and paper both have, and how it is printed."""

    name: str
    """Column of the rows; it ends with the unit."""
    heading: str
    spec: str
    """Format of both sides, as the paper prints it."""

    def compare(self, ours: Number, paper: Number) -> dict[str, Number]:
        """Row entries of both sides; None where a side, or the difference, is unknown."""
        return {
            self.name: ours,
            f"{self.name}_published": paper,
            f"{self.name}_difference": less(ours, paper),
        }

    def columns(self, here: str = "here") -> tuple[Column, ...]:
        """Printed columns: here, paper, difference."""
        signed = "+z" + self.spec.removeprefix("+")
        return (
            Column(group=self.heading, heading=here, templates=(f"{{{self.name}:{self.spec}}}",)),
            Column(
                group=self.heading,
                heading="paper",
                templates=(f"{{{self.name}_published:{self.spec}}}",),
            ),
            Column(
                group=self.heading,
                heading="diff",
                templates=(f"{{{self.name}_difference:{signed}}}",),
            ),
        )


def compare(
    quantities: Sequence[Quantity], here: Mapping[str, Number], paper: Mapping[str, Number]
) -> dict[str, Number]:
    """Row entries of all quantities; both sides are given by quantity name."""
    entries: dict[str, Number] = {}
    for quantity in quantities:
        entries |= quantity.compare(here.get(quantity.name), paper.get(quantity.name))
    return entries


def columns(quantities: Sequence[Quantity], here: str = "here") -> tuple[Column, ...]:
    """The printed columns of all quantities."""
    return tuple(column for quantity in quantities for column in quantity.columns(here))


def complete_mean(values: pd.Series) -> float | None:
    """The mean over all seeds; None if any is missing, since a partial mean would mislead."""
    return None if values.empty or values.isna().any() else float(values.mean())


def less(minuend: Number, subtrahend: Number) -> Number:
    """The difference; None if either number is unknown."""
    return None if minuend is None or subtrahend is None else minuend - subtrahend


def printed_row(table: str, **key: object) -> dict[str, Any]:
    """The row of a published table with these keys; empty if there is none."""
    for row in printed_rows(table):
        if all(row[name] == value for name, value in key.items()):
            return row
    return {}


def printed_rows(table: str) -> list[dict[str, Any]]:
    """The rows of a published table, in order."""
    return [
        {str(name): value for name, value in row.items()}
        for row in published_table(table).to_dict("records")
    ]


def renamed(row: Mapping[str, Any], names: Iterable[tuple[str, str]]) -> dict[str, Number]:
    """Numbers of a published row under our names; pairs are (published, ours)."""
    return {ours: row[published] for published, ours in names} if row else {}
