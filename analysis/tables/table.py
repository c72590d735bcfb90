"""A table: rows with machine-readable names, and the views that are printed."""

import json
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.errors import AnalysisError
from analysis.runs import Origin

ABSENT = "—"
"""Printed for an unknown value, never 0."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A printed column. A template names row keys; the first whose keys are all known is used."""

    heading: str
    templates: tuple[str, ...]
    group: str = ""
    """Heading above neighbouring columns of the same group."""

    @property
    def numeric(self) -> bool:
        """Whether the column holds numbers, which are right aligned."""
        return ":" in self.templates[0]

    def text(self, row: dict[str, Any]) -> str:
        for template in self.templates:
            keys = [key for _, key, _, _ in string.Formatter().parse(template) if key]
            if not any(pd.isna(row[key]) for key in keys):
                return template.format(**row)
        return ABSENT


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table of the paper, or of the comparison with it."""

    name: str
    title: str
    rows: pd.DataFrame
    """Full precision; column names end with the unit. Unknown values are missing."""
    views: tuple[tuple[Column, ...], ...]
    """Columns of each printed part; a wide table has several, each no wider than a page."""
    origin: Origin
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Cells that the table lacks."""
    closing: tuple[str, ...] = ()
    """Lines that follow everything else: what the table says in words."""
    summary: Mapping[str, Any] | None = None
    """All of it as plain data, for a JSON file beside the others; None writes none."""

    def cells(self, view: tuple[Column, ...]) -> list[list[str]]:
        """The printed text of a view, row by row."""
        records = self.rows.to_dict("records")
        return [[column.text(row) for column in view] for row in records]  # type: ignore[arg-type]

    @property
    def caption(self) -> str:
        return f"{self.title}. Data: {self.origin}."

    @property
    def remarks(self) -> tuple[str, ...]:
        """Notes and missing cells, each a sentence."""
        if not self.missing:
            return self.notes
        return (*self.notes, f"Missing: {'; '.join(self.missing)}.")


def write(table: Table, folder: Path) -> list[Path]:
    """Write a table as CSV (full precision), LaTeX (booktabs) and Markdown, and a summary as JSON.

    Returns the files.

    Raises:
        AnalysisError: the folder cannot be written to.
    """
    forms: dict[str, Callable[[Table], str]] = {"csv": to_csv, "tex": to_latex, "md": to_markdown}
    if table.summary is not None:
        forms["json"] = to_json
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, render in forms.items():
            path = folder / f"{table.name}.{suffix}"
            path.write_text(render(table), encoding="utf-8")
            paths.append(path)
    except OSError as error:
        raise AnalysisError(f"{folder}: cannot be written: {error.strerror}") from None
    return paths


def to_csv(table: Table) -> str:
    """The rows as CSV; each row also has the origin of its numbers."""
    origin = {name: [value] * len(table.rows) for name, value in vars(table.origin).items()}
    return table.rows.assign(**origin).to_csv(index=False, lineterminator="\n")


def to_json(table: Table) -> str:
    return json.dumps(table.summary, indent=1, ensure_ascii=False) + "\n"


def to_markdown(table: Table) -> str:
    parts = [f"**{table.name}.** {table.caption}"]
    for view in table.views:
        head = [f"{column.group} {column.heading}".strip() for column in view]
        cells = [[text.replace("|", r"\|") for text in line] for line in table.cells(view)]
        lines = [head, ["---:" if column.numeric else "---" for column in view], *cells]
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    parts += [f"- {remark}" for remark in table.remarks]
    parts += table.closing
    return "\n\n".join(parts) + "\n"


def to_latex(table: Table) -> str:
    r"""One `table` float a view, each with its caption and label; needs only booktabs.

    The first is labelled `tab:NAME`, the next ones `tab:NAME-2`, ... Remarks follow the last one.
    """
    floats = []
    for number, view in enumerate(table.views, start=1):
        part = f" (part {number} of {len(table.views)})" if len(table.views) > 1 else ""
        suffix = f"-{number}" if number > 1 else ""
        remarks = table.remarks if number == len(table.views) else ()
        floats += [
            r"\begin{table}[t]",
            r"\centering\small",
            rf"\caption{{{_tex(table.caption)}{part}}}",
            rf"\label{{tab:{table.name}{suffix}}}",
            _tabular(table, view),
            *(rf"\par\footnotesize {_tex(remark)}" for remark in remarks),
            r"\end{table}",
            "",
        ]
    return "\n".join(floats)


def _tabular(table: Table, view: tuple[Column, ...]) -> str:
    levels = [[_tex(column.group), _tex(column.heading)] for column in view]
    grouped = any(column.group for column in view)
    frame = pd.DataFrame(
        [[_tex(text) for text in line] for line in table.cells(view)],
        columns=pd.MultiIndex.from_tuples(map(tuple, levels))
        if grouped
        else pd.Index([heading for _, heading in levels]),
    )
    text: str = frame.style.hide(axis="index").to_latex(
        column_format="".join("r" if column.numeric else "l" for column in view),
        hrules=True,
        multicol_align="c",
    )
    return text


_TEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{character: rf"\{character}" for character in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        # A row that starts with a bracket would be the option of the line break before it.
        "[": "{[}",
        "]": "{]}",
        **{character: f"${character}$" for character in "<>|"},
        "±": r"$\pm$",
        "−": "$-$",
        "×": r"$\times$",
        "≤": r"$\leq$",
        "≥": r"$\geq$",
        "≈": r"$\approx$",
        "→": r"$\rightarrow$",
        "Δ": r"$\Delta$",
        "δ": r"$\delta$",
        "·": r"$\cdot$",
        "—": "---",
        "–": "--",
        "’": "'",
        "…": r"\dots{}",
        "é": r"\'e",
    }
)
_MINUS = re.compile(r"(?<!\w)-(?=\d)")


def _tex(text: str) -> str:
    return _MINUS.sub("−", text).translate(_TEX)
