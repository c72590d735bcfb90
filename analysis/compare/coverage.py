"""What becomes of every numeric cell of analysis/paper, and whether the declarations are true."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Literal

import pandas as pd

from analysis import config as configs
from analysis.compare import facts
from analysis.compare.printed import Cell, Cells, Derived, Input
from analysis.compare.targets import Targets
from analysis.config import block_design
from analysis.errors import AnalysisError
from analysis.families import Contrast, Design, Interaction
from analysis.published import (
    PrintedNumber,
    names,
    published,
    published_table,
    published_value,
)
from analysis.runs import Origin
from analysis.tables import derive
from analysis.tables.relations import Verdict
from analysis.tables.table import Column, Table

Fate = Literal["compared", "derived", "input", "omitted"]


@dataclass(frozen=True, kw_only=True)
class Numeral:
    """A cell of analysis/paper whose value is a number. Some are printed in two units."""

    table: str
    row: str
    column: str
    unit: str
    printed: PrintedNumber

    @property
    def cell(self) -> Cell:
        return self.table, self.row, self.column

    def __str__(self) -> str:
        return f"{self.table} {self.row}, {self.column}"


@dataclass(frozen=True, kw_only=True)
class Fates:
    """The fate of every numeric cell, and what is wrong with the declarations."""

    of: Mapping[Numeral, tuple[Fate, str]]
    """Fate and reason, by cell."""
    faults: tuple[str, ...]


def numerals(tables: Mapping[str, pd.DataFrame] | None = None) -> list[Numeral]:
    """Every numeric cell of analysis/paper, or of the given tables."""
    every = tables if tables is not None else {name: published(name) for name in names()}
    return [
        Numeral(
            table=name,
            row=row["row"],
            column=row["column"],
            unit=row["unit"],
            printed=PrintedNumber(text=row["value"]),
        )
        for name, tidy in every.items()
        for row in tidy[pd.to_numeric(tidy["value"], errors="coerce").notna()].to_dict("records")
    ]


def fates(targets: Targets, tables: Mapping[str, pd.DataFrame] | None = None) -> Fates:
    """The fate of every numeric cell.

    Args:
        tables: the published tables by name; None reads analysis/paper.
    """
    cells = numerals(tables)
    by_table = _by_table(cells)
    compared = _compared(targets)
    faults = [
        f"{' '.join(cell)} is compared, but is not a printed number"
        for cell in compared.keys() - {each.cell for each in cells}
    ]
    of: dict[Numeral, tuple[Fate, str]] = {
        each: ("compared", "") for each in cells if each.cell in compared
    }
    for fate, reason, declared in _declarations(targets):
        matching = [each for each in by_table[declared.table] if matches(declared, each)]
        if len(matching) != declared.cells:
            faults.append(
                f"{_described(declared)}: {declared.cells} {fate} cells are declared, "
                f"{len(matching)} match"
            )
        for each in matching:
            if each in of:
                faults.append(f"{each} is {fate} and {of[each][0]}")
            of.setdefault(each, (fate, reason))
    faults += [f"{each} is neither compared nor declared" for each in cells if each not in of]
    return Fates(of={each: of[each] for each in cells if each in of}, faults=tuple(sorted(faults)))


def _by_table(cells: list[Numeral]) -> dict[str, list[Numeral]]:
    by_table: dict[str, list[Numeral]] = {name: [] for name in names()}
    for each in cells:
        by_table[each.table].append(each)
    return by_table


def _declarations(targets: Targets) -> Iterator[tuple[Fate, str, Cells]]:
    declared = targets.printed
    for derived in declared.derived:
        yield "derived", _rule(derived), derived
    for given in declared.inputs:
        yield "input", given.why or "checked against conf/", given
    for omitted in declared.omitted:
        yield "omitted", declared.reasons[omitted.why], omitted


def _rule(derived: Derived) -> str:
    if derived.from_table is not None:
        return "recomputed by a table (source=paper)"
    return {
        "same": "another cell, printed again",
        "sum": "a sum of cells",
        "mean": "a mean of cells",
        "product": "a product of cells",
        "difference": "a difference of cells",
        "ratio": "a ratio of cells",
        "change": "a change between cells",
    }[str(derived.rule)]


def matches(declared: Cells, cell: Numeral) -> bool:
    """Whether a declaration covers a cell."""
    return (
        cell.table == declared.table
        and declared.unit in (None, cell.unit)
        and any(fnmatchcase(cell.row, each) for each in declared.rows)
        and any(fnmatchcase(cell.column, each) for each in declared.columns)
    )


def _compared(targets: Targets) -> dict[Cell, None]:
    """Cells that a target or a test of a family uses."""
    cells = {cell: None for each, line in targets.lines for cell in each.cells(line)}
    for name in targets.families:
        family = configs.family(name)
        declared: list[Contrast | Interaction] = [
            *family.contrasts,
            *family.components,
            *family.interactions,
        ]
        for test in declared:
            places = (test.published_change, test.published_p)
            cells |= {place: None for place in places if place is not None}
        if place := targets.raw_p.get(name):
            cells |= {(place[0], test.id, place[1]): None for test in family.tests}
    for campaign in targets.confirmations:
        config = configs.load(campaign)
        for row in published_table("B-7").index:
            cells |= {("B-7", row, column): None for column in ("mean_change", "holm_p")}
        cells |= {each.published_p: None for each in config.family.interactions if each.published_p}
    return cells


def _described(declared: Cells) -> str:
    return f"{declared.table} {', '.join(declared.rows)}: {', '.join(declared.columns)}"


# -- whether declarations are true ---------------------------------------------------------------


def broken_rules(targets: Targets) -> list[str]:
    """Derived cells and inputs that are not what their declaration says."""
    broken = []
    by_table = _by_table(numerals())
    checked: list[Derived | Input] = [*targets.printed.derived, *targets.printed.inputs]
    for declared in checked:
        for cell in by_table[declared.table]:
            if not matches(declared, cell):
                continue
            why = (
                _broken_derivation(declared, cell)
                if isinstance(declared, Derived)
                else _broken_input(declared, cell, targets)
            )
            if why is not None:
                broken.append(f"{cell}: {why}")
    return broken


def _broken_derivation(declared: Derived, cell: Numeral) -> str | None:
    if declared.from_table is not None:
        return _broken_table(declared.from_table, cell)
    parts = [
        published_value(
            table, cell.row if row == "*" else row, cell.column if column == "*" else column
        )
        for table, row, column in declared.of
    ]
    value = declared.factor * _applied(str(declared.rule), parts)
    return _differs(cell, value, declared.within)


def _applied(rule: str, parts: list[float]) -> float:
    match rule, parts:
        case "same", [value]:
            return value
        case "sum", _:
            return math.fsum(parts)
        case "mean", _:
            return math.fsum(parts) / len(parts)
        case "product", _:
            return math.prod(parts)
        case "difference", [first, second]:
            return first - second
        case "ratio", [first, second]:
            return first / second
        case "change", [first, second]:
            return 100.0 * (first / second - 1.0)
    raise AnalysisError(f"rule {rule} does not take {len(parts)} cells")


def _differs(cell: Numeral, value: float, within: float | None = None) -> str | None:
    if within is None:
        agrees = cell.printed.shows(value)
    else:
        agrees = abs(value - cell.printed.value) <= within * (1.0 + 1e-9)
    return None if agrees else f"{cell.printed.text} is printed, the rule gives {value:.8g}"


@cache
def _table_rows(name: str) -> pd.DataFrame:
    return derive(name).rows


def _broken_table(name: str, cell: Numeral) -> str | None:
    """Whether a `source=paper` table recomputes the cell.

    Its rows are relations with a verdict, or quantities beside the printed ones.
    """
    rows = _table_rows(name)
    if "verdict" in rows:
        if "column" in rows:
            found = rows[(rows["row"] == cell.row) & (rows["column"] == cell.column)]
        else:
            found = rows[rows["holm_p_published"] == cell.printed.value]
        verdicts = set(found["verdict"])
        agrees = bool(verdicts) and verdicts <= {Verdict.EQUAL.value, Verdict.KNOWN.value}
        return None if agrees else f"table {name} says: {', '.join(sorted(verdicts)) or 'nothing'}"
    recomputed = [
        row[printed.removesuffix("_published")]
        for row in rows.to_dict("records")
        for printed in map(str, rows)
        if printed.endswith("_published") and row[printed] == cell.printed.value
    ]
    agrees = any(_differs(cell, float(value)) is None for value in recomputed)
    return None if agrees else f"table {name} gives {', '.join(map(str, recomputed)) or 'nothing'}"


def _broken_input(declared: Input, cell: Numeral, targets: Targets) -> str | None:
    if declared.why is not None:
        return None
    if declared.fact is not None:
        return _differs(cell, facts.fact(declared.fact, cell.unit), declared.within)
    axis = str(declared.axis)
    for allowed in _allowed(declared, cell, targets, axis):
        if not any(abs(cell.printed.value - each) < 1e-9 for each in allowed):
            return f"{axis} in conf/ is {', '.join(map(str, allowed))}"
    return None


def _allowed(
    declared: Input, cell: Numeral, targets: Targets, axis: str
) -> Iterator[tuple[float, ...]]:
    """Values that the number may have, for each place that it describes."""
    if declared.campaign is not None and declared.block is not None:
        yield _of_design(block_design(declared.campaign, declared.block), axis)
        return
    found = False
    for each, line in targets.lines:
        if each.table != cell.table or cell.row not in line.rows:
            continue
        found = True
        design = block_design(*each.place(line))
        arm = each.arms(line)[1 if declared.denominator else 0]
        whole = design.whole(arm).axes
        yield (float(whole[axis]),) if axis in whole else _of_design(design, axis)
    if not found:
        raise AnalysisError(f"{cell}: no target uses this row; name campaign and block")


def _of_design(design: Design, axis: str) -> tuple[float, ...]:
    match axis:
        case "seed_first":
            return (float(design.seeds[0]),)
        case "seed_last":
            return (float(design.seeds[-1]),)
        case "seeds":
            return tuple(map(float, design.seeds))
        case "num_seeds":
            return (float(len(design.seeds)),)
        case "num_runs":
            return (float(len(design.cells()) * len(design.seeds)),)
        case "num_arms":
            return (float(len(design.cells())),)
    return tuple(float(each) for each in design.axes[axis] if each is not None)


# -- printed ---------------------------------------------------------------------------------------


def coverage_table(targets: Targets) -> Table:
    """How many cells have which fate, and why."""
    found = fates(targets)
    counts: dict[tuple[Fate, str], list[Numeral]] = {}
    for cell, fate_and_reason in found.of.items():
        counts.setdefault(fate_and_reason, []).append(cell)
    order: tuple[Fate, ...] = ("compared", "derived", "input", "omitted")
    rows: list[dict[str, object]] = []
    for fate in order:
        of_fate = {why: cells for (each, why), cells in counts.items() if each == fate}
        total = sum(map(len, of_fate.values()))
        rows.append({"fate": fate, "cells": total, "why": None, "tables": None})
        rows += [
            {"fate": None, "cells": len(cells), "why": why, "tables": _tables(cells)}
            for why, cells in of_fate.items()
            if why
        ]
    num_cells = len(numerals())
    return Table(
        name="compare-coverage",
        title=f"What becomes of the {num_cells:,} numbers of analysis/paper",
        rows=pd.DataFrame(rows),
        views=(
            (
                Column(heading="fate", templates=("{fate}",)),
                Column(heading="numbers", templates=("{cells:,d}",)),
                Column(heading="why", templates=("{why}",)),
                Column(heading="tables", templates=("{tables}",)),
            ),
        ),
        origin=Origin(data_kind="declared in conf/analysis/compare"),
        notes=(
            "compared: beside ours, in the numbers or in the tests. derived: follows from other "
            "printed numbers. input: describes the paper's design. Every number has one of the "
            "four; tests recompute the derived ones and check the inputs.",
        ),
        missing=found.faults,
    )


def _tables(cells: list[Numeral]) -> str:
    return ", ".join(dict.fromkeys(cell.table for cell in cells))
