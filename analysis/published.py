"""The published values (analysis/paper): their only place in the project."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.errors import AnalysisError

FOLDER = Path(__file__).with_name("paper")


def published(table: str) -> pd.DataFrame:
    """One table or figure in tidy form: table, row, column, value, unit, source[, note].

    `value` is text as printed. Names as in the paper: "B-8", "1", "figure-6"; "text" holds the
    running text.

    Raises:
        AnalysisError: there is no such table.
    """
    return _tidy(table).copy()


def names() -> list[str]:
    """All tables, in the order of the paper."""
    stems = [path.stem for path in FOLDER.glob("*.csv")]
    return sorted(stems, key=lambda stem: (len(stem.partition("-")[0]), _by_number(stem)))


def published_table(table: str) -> pd.DataFrame:
    """The printed table, row by row, numeric columns as numbers; absent cells are NaN."""
    return _wide(table).copy()


def published_row(table: str, row: str) -> dict[str, Any]:
    """One row of the printed table by column, numbers as numbers. Cells that the paper omits have
    no entry; an unknown row is empty."""
    wide = _wide(table)
    if row not in wide.index:
        return {}
    return {str(name): value for name, value in wide.loc[row].items() if not pd.isna(value)}


@cache
def _tidy(table: str) -> pd.DataFrame:
    path = FOLDER / f"{table}.csv"
    if not path.is_file():
        raise AnalysisError(
            f"published table {table} does not exist; choose from {', '.join(names())}"
        )
    return pd.read_csv(path, dtype=str, keep_default_na=False)


@cache
def _wide(table: str) -> pd.DataFrame:
    tidy = _tidy(table)
    wide = tidy.set_index(["row", "column"])["value"].unstack()  # noqa: PD010 - no aggregation
    wide = wide.loc[tidy["row"].drop_duplicates(), tidy["column"].drop_duplicates()]
    for column in wide:
        numbers = pd.to_numeric(wide[column], errors="coerce")
        if (numbers.isna() == wide[column].isna()).all():
            wide[column] = numbers
    return wide.rename_axis(index=None, columns=None)


def published_value(table: str, row: str, column: str) -> float:
    """One number.

    Raises:
        AnalysisError: the paper does not give it, or gives it in two units.
    """
    return printed_number(table, row, column).value


@dataclass(frozen=True, kw_only=True)
class PrintedNumber:
    """A number with the digits that the paper prints."""

    text: str

    @property
    def value(self) -> float:
        return float(self.text)

    @property
    def decimals(self) -> int:
        return len(self.text.partition(".")[2])

    def shows(self, value: float) -> bool:
        """Whether the value, rounded to the printed digits, is this number. A value on the border
        may be rounded either way."""
        return abs(value - self.value) <= 0.5 * 10.0**-self.decimals * (1.0 + _BORDER)


_BORDER = 1e-6
"""Share of half a unit that floating point may take from a value on the border."""


def printed_number(table: str, row: str, column: str) -> PrintedNumber:
    """One number with its digits.

    Raises:
        AnalysisError: the paper does not give it, or gives it in two units.
    """
    tidy = _tidy(table)
    found = tidy.loc[(tidy["row"] == row) & (tidy["column"] == column), "value"]
    if len(found) != 1:
        raise AnalysisError(f"table {table} has {len(found)} values for {row}, {column}")
    return PrintedNumber(text=found.iloc[0])


def _by_number(stem: str) -> tuple[str, int]:
    letter, _, number = stem.rpartition("-")
    return (letter, int(number)) if number.isdigit() else (stem, 0)
