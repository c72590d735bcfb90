"""What the page shows as a table: cells as text, and which columns hold numbers."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analysis.tables.table import ABSENT, Table

_NUMBER = re.compile(r"[-+−±≤≥<~]*\s*[\d.,]+\s*(%|pp|s|x)?")
_MINUS = re.compile(r"(?<![\w.])-(?=[\d.])")

_LONG = 40
"""Rows from which on a table scrolls inside its own box."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Headings and rows of text."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    groups: tuple[str, ...] = ()
    """Heading above each column; equal neighbours share one. Empty where there are none."""
    aligned: tuple[bool, ...] = ()
    """Columns that are known to hold numbers; others are told by their cells."""

    @property
    def columns(self) -> tuple[tuple[str, bool], ...]:
        """Each heading, and whether its column is right aligned."""
        return tuple(zip(self.headings, self._numeric, strict=True))

    @property
    def spans(self) -> tuple[tuple[str, int], ...]:
        """Groups with the number of columns that each spans; empty where no column has one."""
        if not any(self.groups):
            return ()
        spans: list[tuple[str, int]] = []
        for group in self.groups:
            if spans and group and spans[-1][0] == group:
                spans[-1] = (group, spans[-1][1] + 1)
            else:
                spans.append((group, 1))
        return tuple(spans)

    @property
    def cells(self) -> Iterator[tuple[tuple[str, bool], ...]]:
        """Rows of cells, each with the alignment of its column."""
        numeric = self._numeric
        for row in self.rows:
            yield tuple(
                (_MINUS.sub("−", text) if is_number else text, is_number)
                for text, is_number in zip(row, numeric, strict=True)
            )

    @property
    def is_long(self) -> bool:
        return len(self.rows) > _LONG

    @property
    def _numeric(self) -> tuple[bool, ...]:
        known = self.aligned or (False,) * len(self.headings)
        return tuple(
            is_known or _holds_numbers([row[place] for row in self.rows])
            for place, is_known in enumerate(known)
        )


def _holds_numbers(texts: Sequence[str]) -> bool:
    said = [text for text in texts if text not in ("", ABSENT)]
    return bool(said) and all(_NUMBER.fullmatch(text) for text in said)


def grids(table: Table) -> tuple[Grid, ...]:
    """The views of a registered table, as they are printed."""
    return tuple(
        Grid(
            headings=tuple(column.heading for column in view),
            groups=tuple(column.group for column in view),
            rows=tuple(map(tuple, table.cells(view))),
            aligned=tuple(column.numeric for column in view),
        )
        for view in table.views
    )
