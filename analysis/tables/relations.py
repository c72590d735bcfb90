"""Tables of relations between published values: whether a printed number follows from others.

Each row of a `source=paper` table has this form: a printed number, the formula that
gives it from other printed numbers, the computed value, and the verdict.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import pandas as pd

from analysis.published import printed_number
from analysis.runs import Origin
from analysis.tables.beside import PAPER
from analysis.tables.table import Column, Table


class Verdict(StrEnum):
    """Result of checking a relation."""

    EQUAL = "equal to print"
    KNOWN = "known"
    """The values differ for a documented reason."""
    NO_INPUTS = "inputs not printed"
    """The computed value can only be close."""
    DIFFERS = "differs"


@dataclass(frozen=True, kw_only=True)
class Relation:
    """One printed number beside its value computed from other printed numbers."""

    row: str
    column: str
    """Column of the published table."""
    computed: float
    formula: str
    table: str | None = None
    """Table that prints the number; None is the table being built."""
    known: str | None = None
    """Reason for a known difference: rounding the paper mentions, or an inconsistency in it."""
    approximate: str | None = None
    """Why the value cannot be exact: inputs that the paper does not print."""


def relations_table(
    name: str,
    title: str,
    relations: Sequence[Relation],
    *,
    notes: tuple[str, ...] = (),
    origin: Origin = PAPER,
) -> Table:
    """The relations of one published table."""
    return Table(
        name=name,
        title=title,
        rows=pd.DataFrame([_row(relation, name) for relation in relations]),
        views=(
            (
                Column(heading="row", templates=("{row}",)),
                Column(heading="quantity", templates=("{column}",)),
                Column(heading="from", templates=("{formula}",)),
                Column(heading="computed", templates=("{computed_text:}",)),
                Column(heading="paper", templates=("{published_text:}",)),
                Column(heading="verdict", templates=("{verdict}",)),
            ),
        ),
        origin=origin,
        notes=(*_remarks(relations, name), *notes),
    )


def verdict(relation: Relation, table: str) -> Verdict:
    """Whether the computed value rounds to the printed one, or why not."""
    printed = printed_number(relation.table or table, relation.row, relation.column)
    if printed.shows(relation.computed):
        return Verdict.EQUAL
    if relation.known is not None:
        return Verdict.KNOWN
    return Verdict.NO_INPUTS if relation.approximate is not None else Verdict.DIFFERS


def _row(relation: Relation, table: str) -> dict[str, object]:
    printed = printed_number(relation.table or table, relation.row, relation.column)
    return {
        "row": relation.row,
        "column": relation.column,
        "formula": relation.formula,
        "computed": relation.computed,
        "computed_text": f"{relation.computed:.{printed.decimals}f}",
        "published": printed.value,
        "published_text": printed.text,
        "difference": relation.computed - printed.value,
        "verdict": verdict(relation, table).value,
    }


def _remarks(relations: Sequence[Relation], table: str) -> tuple[str, ...]:
    """Reasons why relations are not equal to print, each reason once."""
    remarks = []
    for relation in relations:
        match verdict(relation, table):
            case Verdict.KNOWN:
                remarks.append(f"Known: {relation.known}.")
            case Verdict.NO_INPUTS:
                remarks.append(f"Inputs not printed: {relation.approximate}.")
    return tuple(dict.fromkeys(remarks))
