"""The page of one campaign: what its ledger, its tables and its figures say, in one document."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from analysis import config as configs
from analysis.__main__ import make_requested
from analysis.command import Request
from analysis.compare.decisions import decisions_table, tests_of
from analysis.errors import AnalysisError, NoInputsError, NoLedgerError
from analysis.ledgers import Ledgers
from analysis.runs import Origin
from analysis.tables.table import Table
from figures import FIGURES, style
from figures.report.facts import Facts
from figures.report.grid import Grid, grids
from figures.report.svg import to_svg
from hsexp.config.catalog import options, read_file
from hsexp.ledger.attempt import is_simulated
from hsexp.ledger.journal import write_durably
from hsexp.ledger.provenance import code_version

NAME = "report.html"
"""The page beside the journal of a ledger."""

Tables = Sequence[tuple[str, Table | NoInputsError]]
Figures = Mapping[str, Figure | AnalysisError]


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """What conf/campaign says of a campaign; a ledger may know one that is not there."""

    name: str
    title: str
    question: str | None = None
    section: str | None = None
    """Section of the paper; None for campaigns of ours and of users."""
    primary: str | None = None
    """Its registered primary contrast, in words."""
    seeds: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Its seeds by block."""

    @classmethod
    def named(cls, name: str) -> "Campaign":
        if name not in options("campaign"):
            return cls(name=name, title=name)
        data: Mapping[str, Any] = read_file("campaign", name).get("campaign", {})
        section = str(data.get("section", ""))
        return cls(
            name=name,
            title=str(data.get("title", name)),
            question=data.get("question"),
            section=section if section[:1].isdigit() or section[1:2] == "." else None,
            primary=(data.get("registered") or {}).get("primary"),
            seeds={
                block: tuple(settings.get("seeds", ()))
                for block, settings in data.get("blocks", {}).items()
            },
        )


@dataclass(frozen=True, kw_only=True)
class ShownTable:
    """A registered table as the page shows it."""

    name: str
    caption: str
    grids: tuple[Grid, ...]
    remarks: tuple[str, ...]
    closing: tuple[str, ...]

    @classmethod
    def of(cls, table: Table) -> "ShownTable":
        return cls(
            name=table.name,
            caption=table.caption,
            grids=grids(table),
            remarks=table.remarks,
            closing=table.closing,
        )

    @property
    def anchor(self) -> str:
        return f"table-{self.name}"


@dataclass(frozen=True, kw_only=True)
class ShownFigure:
    """A registered figure as the page shows it, or why it is not drawn."""

    name: str
    svg: Markup | None
    why_not: str = ""

    @property
    def anchor(self) -> str:
        return f"figure-{self.name}"


@dataclass(frozen=True, kw_only=True)
class Material:
    """Everything that a page is made of."""

    campaign: Campaign
    facts: Facts | None
    """None for a campaign that needs no run."""
    tables: Tables
    figures: Figures
    tests: pd.DataFrame
    """The tests of the families that draw on the campaign; empty where none does."""
    command: str
    """The command that makes the page again."""


# -- gathering -------------------------------------------------------------------------------------


def gather(
    request: Request,
    *,
    tables: Tables | None = None,
    figures: Figures | None = None,
) -> Material:
    """What the page of a request shows.

    Args:
        request: the tables of one campaign (`analysis.command.parse`).
        tables: those that have been made already.
        figures: those that have been drawn already.

    Raises:
        AnalysisError: the ledger is damaged, mixes origins, or there is neither one nor a campaign
            that needs none.
    """
    ledgers = request.ledgers
    name = ledgers.asked
    if name is None:
        raise AnalysisError("a report needs campaign=NAME or ledger=DIR")
    facts = _facts(ledgers, name)
    if tables is None and facts is not None and ledgers.seeds is None:
        ledgers = _on(facts.own_seeds(Campaign.named(name).seeds), ledgers)
    made = _tables(request, ledgers) if tables is None else tables
    drawn = figures
    if facts is not None and all(isinstance(table, NoInputsError) for _, table in made):
        # No table of the campaign covers these runs.
        ledgers = _on(None, ledgers)
        made = _tables(replace(request, names=configs.GENERIC), ledgers)
        drawn = draw_each(configs.GENERIC, ledgers) if figures is None else figures
    elif drawn is None:
        drawn = draw_each(configs.listing(name, is_recorded=facts is not None).figures, ledgers)
    return Material(
        campaign=Campaign.named(name),
        facts=facts,
        tables=made,
        figures=drawn,
        tests=_tests(name, ledgers) if facts is not None else pd.DataFrame(),
        command=_command(name, ledgers, facts),
    )


def draw_each(names: Iterable[str], ledgers: Ledgers) -> dict[str, Figure | AnalysisError]:
    """Each figure, or why it cannot be drawn."""
    style.use()
    drawn: dict[str, Figure | AnalysisError] = {}
    for name in names:
        try:
            drawn[name] = FIGURES[name].from_ledgers(ledgers)
        except AnalysisError as error:
            drawn[name] = error
    return drawn


def _tables(request: Request, ledgers: Ledgers) -> Tables:
    return list(make_requested(replace(request, ledgers=ledgers)))


def _on(seeds: tuple[int, ...] | None, ledgers: Ledgers) -> Ledgers:
    """The same ledgers on other seeds; None uses those of each block."""
    assert ledgers.asked is not None
    if seeds == ledgers.seeds:
        return ledgers
    return Ledgers(
        ledgers.root,
        paths={ledgers.asked: ledgers.path(ledgers.asked)},
        seeds=seeds,
        adoption=ledgers.adoption,
        asked=ledgers.asked,
        metric=ledgers.metric,
    )


def _facts(ledgers: Ledgers, campaign: str) -> Facts | None:
    """The facts of a ledger; None for a campaign that keeps none.

    Raises:
        AnalysisError: a campaign with runs has no ledger, or several.
    """
    try:
        return Facts(ledger=ledgers.ledger(campaign))
    except NoLedgerError:
        if campaign in options("campaign") and _needs_runs(campaign):
            raise
        return None


def _needs_runs(campaign: str) -> bool:
    kind = read_file("campaign", campaign).get("campaign", {}).get("kind")
    return kind in ("serving", "continuation", "engine")


def _tests(campaign: str, ledgers: Ledgers) -> pd.DataFrame:
    try:
        return tests_of(campaign, ledgers)
    except AnalysisError:  # an option of the user's own may have the name of a campaign of ours
        return pd.DataFrame()


def _command(campaign: str, ledgers: Ledgers, facts: Facts | None) -> str:
    seeds = "" if ledgers.seeds is None else f" seeds={','.join(map(str, ledgers.seeds))}"
    if facts is None:
        return f"python -m hsexp report campaign={campaign}"
    return f"python -m hsexp report campaign={campaign} ledger={facts.ledger.path}{seeds}"


# -- rendering -------------------------------------------------------------------------------------


def render(material: Material) -> str:
    """The page as one HTML document."""
    tables = [ShownTable.of(table) for _, table in material.tables if isinstance(table, Table)]
    lacking = [(name, str(why)) for name, why in material.tables if not isinstance(why, Table)]
    made = [table for _, table in material.tables if isinstance(table, Table)]
    origin = made[0].origin if made else None
    return template("report.html").render(
        campaign=material.campaign,
        facts=material.facts,
        tables=tables,
        lacking=lacking,
        figures=list(_shown(material.figures)),
        decisions=_decisions(material, origin),
        agreement=agreement(material.tests),
        origin=origin,
        is_simulated=_is_simulated(material.facts, origin),
        missing=list(dict.fromkeys(line for table in made for line in table.missing)),
        code_version=code_version() if material.facts is None else None,
        command=material.command,
    )


def _is_simulated(facts: Facts | None, origin: Origin | None) -> bool:
    if facts is not None:
        return facts.is_simulated
    return origin is None or is_simulated(origin.data_kind)


def _shown(figures: Figures) -> Iterator[ShownFigure]:
    for name, figure in figures.items():
        if isinstance(figure, Figure):
            label = f"Figure {name}. Arrow keys step through its values."
            svg = to_svg(figure, name=f"f{name}", label=label)
            plt.close(figure)
            yield ShownFigure(name=name, svg=Markup(svg))  # text in it is escaped there
        else:
            yield ShownFigure(name=name, svg=None, why_not=str(figure))


def _decisions(material: Material, origin: Origin | None) -> ShownTable | None:
    if material.tests.empty or origin is None:
        return None
    return ShownTable.of(decisions_table(material.tests, origin))


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How many decisions of a family are those of the paper."""

    family: str
    num_agreeing: int
    num_known: int
    num_tests: int
    differing: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"{self.num_agreeing} of {self.num_known}"


def agreement(tests: pd.DataFrame) -> list[Agreement]:
    """Agreement by family, in the order of the tests."""
    if tests.empty:
        return []
    found = []
    for family, of_family in tests.groupby("family", sort=False):
        known = of_family[of_family["reject_agrees"].notna()]
        agrees = known["reject_agrees"].astype(bool)
        found.append(
            Agreement(
                family=str(family),
                num_agreeing=int(agrees.sum()),
                num_known=len(known),
                num_tests=len(of_family),
                differing=tuple(known.loc[~agrees, "test"].astype(str)),
            )
        )
    return found


def template(name: str) -> jinja2.Template:
    """A template of the folder `page`, with the style and the script of every page."""
    loader = jinja2.PackageLoader("figures.report", "page")
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for part in ("report.css", "report.js"):
        source, _, _ = loader.get_source(environment, part)
        environment.globals[part.replace(".", "_")] = Markup(source)
    return environment.get_template(name)


def write(page: str, path: Path) -> Path:
    """Write a page; it appears whole or not at all.

    Raises:
        LedgerError: the disk refused.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, page.encode())
    return path


def report(
    request: Request,
    *,
    tables: Tables | None = None,
    figures: Figures | None = None,
    out: Path | None = None,
) -> Path:
    """Write the page of one campaign. Returns its path.

    Args:
        tables, figures: those that have been made already (`gather`).
        out: where to write; None writes beside the ledger.

    Raises:
        AnalysisError, LedgerError: the page cannot be made, or not be written.
    """
    material = gather(request, tables=tables, figures=figures)
    return write(render(material), out or _place(request))


def _place(request: Request) -> Path:
    """Beside the journal, or below the root for a campaign without one."""
    name = request.ledgers.asked
    assert name is not None
    try:
        return request.ledgers.path(name) / NAME
    except NoLedgerError:
        return request.ledgers.root / f"report-{name}.html"
