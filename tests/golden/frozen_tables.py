"""Every table that the project prints, as digests: from the paper, from short runs, from real ones.

`csv` is what a table says; `markdown` is how it looks, with title, notes and missing cells.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args

from frozen_form import FOLDER, digest_of_text
from frozen_ledgers import CAMPAIGNS, Runner, plan_of, write_short_ledgers
from frozen_project import (
    BY_ADOPTION,
    TABLE_NAMES,
    Adoption,
    Ledgers,
    NoInputsError,
    Table,
    calibrate,
    compare,
    compare_ledgers,
    derive,
    listing,
    make,
    to_csv,
    to_markdown,
)

MEASURED = Path(__file__).parents[2] / "ledgers" / "cpu_falcon_h1_mini"
"""The committed ledgers of real vLLM."""

MEASURED_SEEDS: dict[str, tuple[int, ...] | None] = {
    "q1": (42000, 42001, 42002),
    "q6": (76400, 76401, 76402),
    "q9": (88001, 88002, 88003),
    "continuation": None,
}
"""Seeds of each of them; None takes what the ledger has."""

FILE = "tables.json"

KEPT = ("A-1 from paper", "B-7 from runs", "E-5 from runs", "G-2 from runs", "q6-summary from runs")
"""Tables that are kept whole, as tables/NAME.csv, so that a difference can be read."""

NOT_FROZEN = {
    "B-1": "names the processor and the packages of whoever runs the tests",
    "C-1": "counts what is in all ledgers that there are",
    "advise": "ranks the arms of a launch of its own (tests/runners/test_advise.py)",
    "advise-sensitivity": "goes with advise",
}
"""Tables that differ from one machine or folder to the other, or are of no campaign below."""

SMALL = (
    "q2",
    "q7",
    "q8",
    "q9",
    "submitted_work",
    "matched_boundary",
    "isolation_pilot",
    "live_separation",
)
"""Campaigns with few cells, whose tables draw on no other campaign."""

ASKED = "q2"
"""The campaign whose settings are frozen; any campaign has such a table."""

COUNTED = ("branching", "speculation", "cachelab", "capacity", "fixed_work")
"""Campaigns whose tables need no run."""

_CALIBRATED = (
    "device=cpu_falcon_h1_mini_q9",
    "model=falcon_h1_mini",
    "scale=cpu_falcon_h1_mini",
)


class Freezer:
    """Tables of one source under their names."""

    def __init__(self, root: Path | None = None) -> None:
        """
        Args:
            root: a folder that notes of the tables may name; no golden value does.
        """
        self.entries: dict[str, dict[str, Any]] = {}
        self.kept: dict[str, str] = {}
        """The CSV of each table of `KEPT`."""
        self._root = root

    def add(self, name: str, table: Table, *, fitted: bool = False) -> None:
        """
        Args:
            fitted: whether the table comes from least squares, whose last bits are the processor's.
        """
        assert name not in self.entries, f"two tables are named {name}"
        csv, markdown = to_csv(table), to_markdown(table)
        if fitted:
            csv = _rounded(csv)
        if self._root is not None:
            markdown = markdown.replace(str(self._root), "ROOT")
        self.entries[name] = {
            "rows": len(table.rows),
            "csv": digest_of_text(csv),
            "markdown": digest_of_text(markdown),
        }
        if name in KEPT:
            self.kept[name] = csv

    def add_each(self, source: str, tables: Iterable[Table], *, fitted: bool = False) -> None:
        for table in tables:
            self.add(f"{table.name} {source}", table, fitted=fitted)

    def add_all(
        self,
        source: str,
        table_of: Callable[[str, Adoption], Table],
        names: Iterable[str] = TABLE_NAMES,
    ) -> None:
        """Each table that has its inputs, under every adoption that concerns it."""
        for name in (each for each in names if each not in NOT_FROZEN):
            adoptions: tuple[Adoption, ...] = get_args(Adoption)
            for adoption in adoptions if name in BY_ADOPTION else ("current",):
                suffix = "" if adoption == "current" else f", {adoption}"
                try:
                    table = table_of(name, adoption)
                except NoInputsError:
                    continue
                self.add(f"{name} {source}{suffix}", table)


def paper() -> Freezer:
    """Tables from the published values alone."""
    freezer = Freezer()
    freezer.add_all("from paper", derive)
    tables, _, _ = calibrate(["source=paper"])
    freezer.add_each("from paper", tables, fitted=True)
    return freezer


def short_runs(root: Path) -> Freezer:
    """Every table of short simulated runs, and the page of all campaigns.

    Args:
        root: an empty folder for their ledgers.
    """
    write_short_ledgers(root)
    by_adoption = {adoption: Ledgers(root, adoption=adoption) for adoption in get_args(Adoption)}
    narrowed = {
        name: Ledgers(root, seeds=sorted(set(Ledgers(root).attempts(campaign)["seed"])))
        for campaign, overrides in CAMPAIGNS.items()
        if overrides
        for name in listing(campaign).tables
    }
    freezer = Freezer(root)
    freezer.add_all(
        "from runs", lambda name, adoption: make(name, narrowed.get(name, by_adoption[adoption]))
    )
    freezer.add_each("from runs", [make("settings", Ledgers(root, asked=ASKED))])
    tables, _ = compare(["compare=paper", f"ledgers={root}"])
    freezer.add_each("from runs", tables)
    return freezer


def few_short_runs(root: Path) -> Freezer:
    """Those tables of `short_runs` that take seconds: of small campaigns, or of no run at all.

    Args:
        root: an empty folder for their ledgers.
    """
    write_short_ledgers(root, SMALL)
    ledgers = Ledgers(root)
    names = [name for campaign in (*SMALL, *COUNTED) for name in listing(campaign).tables]
    freezer = Freezer(root)
    freezer.add_all("from runs", lambda name, adoption: make(name, ledgers), names)
    freezer.add_each("from runs", [make("settings", Ledgers(root, asked=ASKED))])
    return freezer


def measured(root: Path) -> Freezer:
    """Tables of the committed ledgers of real vLLM.

    Args:
        root: an empty folder for simulated runs of the same requests.
    """
    freezer = Freezer(MEASURED)
    for campaign, seeds in MEASURED_SEEDS.items():
        ledgers = Ledgers(MEASURED, seeds=seeds)
        for name in listing(campaign).tables:
            try:
                table = make(name, ledgers)
            except NoInputsError:
                continue  # the measured campaign is smaller than the paper's
            freezer.add(f"{name} of measured {campaign}", table)
    ledger = MEASURED / "q9" / "vllm"
    tables, _, _ = calibrate([f"ledger={ledger}"])
    freezer.add_each("of measured q9", tables, fitted=True)
    plan = plan_of("q9", *_CALIBRATED)
    Runner().write(root, plan, plan.cells)
    tables, _ = compare_ledgers([f"measured={ledger}", f"simulated={root}"])
    freezer.add_each("of measured q9", tables)
    return freezer


def kept_path(name: str) -> Path:
    """Where the CSV of a table of `KEPT` is."""
    return FOLDER / "tables" / f"{name.replace(' ', '_')}.csv"


_NUMBER = re.compile(r"-?\d+\.\d+(e[-+]\d+)?")


def _rounded(csv: str) -> str:
    """The text with its fractional numbers at nine significant digits."""
    return _NUMBER.sub(lambda number: f"{float(number[0]):.9g}", csv)
