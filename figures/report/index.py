"""The page of the whole paper: one line a question, and what does not agree."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import config as configs
from analysis.command import LEDGERS, parse
from analysis.compare.command import compare
from analysis.compare.decisions import campaigns_by_test
from analysis.compare.targets import load_targets
from analysis.errors import AnalysisError
from analysis.runs import THROUGHPUT
from analysis.tables import TABLES
from analysis.tables.table import ABSENT, Table
from figures.report.page import NAME, Campaign, ShownTable, agreement, report, template, write
from hsexp.config.catalog import read_file
from hsexp.ledger.attempt import is_simulated
from hsexp.runs import is_ledger

COLLECTION_KIND = "collection"

_NEAR = 2.0
"""Standard errors within which a number agrees with the paper's."""

_MOST_NAMED = 2
"""Numbers that a line names as those farthest from the paper."""

_EFFECTS = ("%", "pp")
"""Units of effects, which answer a question better than a level does."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One question of the paper, beside what our runs say."""

    campaign: Campaign
    page: str | None
    """Address of the campaign's own page, relative to the index; None where there is none."""
    headline: str
    """The number that stands for the question."""
    published: str
    ours: str
    num_near: int
    num_judged: int
    """Numbers with a standard error, and how many of them are near the paper's."""
    num_numbers: int
    num_agreeing: int
    num_decisions: int
    differing: tuple[str, ...]
    farthest: tuple[str, ...]

    @property
    def is_known(self) -> bool:
        return self.num_numbers > 0


def report_members(
    collection: str, root: Path, *, engine: str
) -> Iterator[tuple[str, Callable[[], Path]]]:
    """Each campaign of a collection that has a ledger below a root, and what writes its page."""
    for name in _campaigns(collection):
        path = root / name / engine
        if is_ledger(path):
            arguments = [f"campaign={name}", f"ledger={path}"]
            yield name, partial(_report, arguments, root)


def _report(arguments: Sequence[str], root: Path) -> Path:
    request = parse([*arguments, f"ledgers={root}"], kind="table", known=tuple(TABLES))
    return report(request)


def index(
    collection: str, arguments: Sequence[str], *, tables: Sequence[Table] | None = None
) -> Path:
    """Write the index page of a collection that ends in a comparison. Returns its path.

    Args:
        arguments: those of `python -m analysis compare=NAME`, without `compare=`.
        tables: those of the comparison, if it has been made already.

    Raises:
        AnalysisError, LedgerError: the comparison, or the page, cannot be made.
    """
    settings = _settings(collection)
    if settings.get("compare") is None:
        raise AnalysisError(f"campaign {collection} ends in no comparison, so it has no report")
    given = dict(item.partition("=")[::2] for item in arguments)
    out = Path(given.pop("out")) if "out" in given else None
    if tables is None:
        passed_on = [f"{key}={value}" for key, value in given.items()]
        tables, _ = compare([f"compare={settings['compare']}", *passed_on])
    root = Path(given.get("ledgers", LEDGERS))
    path = out or root / NAME
    page = render_index(
        collection,
        tables,
        root=root,
        folder=path.parent,
        engine=given.get("engine", "sim"),
        command=" ".join([f"python -m hsexp report campaign={collection}", *arguments]),
    )
    return write(page, path)


def render_index(
    collection: str,
    tables: Sequence[Table],
    *,
    root: Path,
    folder: Path,
    engine: str,
    command: str,
) -> str:
    """The index as one HTML document.

    Args:
        tables: those of the comparison.
        root: folder of the ledgers, whose pages are linked where they exist.
        folder: where the index will be.
    """
    by_name = {table.name: table for table in tables}
    numbers = by_name["compare-numbers"].rows
    tests = by_name["compare-decisions"].rows
    origin = by_name["compare-numbers"].origin
    targets = load_targets(str(_settings(collection)["compare"]))
    of_tests = _campaigns_of_tests(targets.families, targets.confirmations)
    lines = []
    for name in _campaigns(collection):
        own = [of_tests.get((row["family"], row["test"])) == name for row in _records(tests)]
        page = root / name / engine / NAME
        lines.append(
            _line(
                Campaign.named(name),
                numbers[numbers["campaign"] == name],
                tests[own],
                page=_relative(page, folder) if page.is_file() else None,
            )
        )
    return template("index.html").render(
        campaign=Campaign.named(collection),
        lines=lines,
        agreement=agreement(tests),
        num_near=sum(line.num_near for line in lines),
        num_judged=sum(line.num_judged for line in lines),
        num_numbers=len(numbers),
        num_known=int(numbers["ours"].notna().sum()),
        tables=[ShownTable.of(table) for table in _ordered(tables)],
        origin=origin,
        is_simulated=is_simulated(origin.data_kind),
        commands=[f"python -m hsexp campaign={collection}", command],
    )


def _ordered(tables: Sequence[Table]) -> list[Table]:
    """What sums up comes first, the long list of numbers last."""
    last_first = list(tables)[::-1]
    return sorted(last_first, key=lambda table: len(table.rows) > 100)


def _line(
    campaign: Campaign, numbers: pd.DataFrame, tests: pd.DataFrame, *, page: str | None
) -> Line:
    known = numbers[numbers["ours"].notna()]
    judged = known[known["noise"].notna() & (known["noise"] > 0)]
    ratio = (judged["error"] / judged["noise"]).abs()
    far = judged[ratio > _NEAR].assign(ratio=ratio).sort_values("ratio", ascending=False)
    head = _headline(known)
    found = agreement(tests)
    return Line(
        campaign=campaign,
        page=page,
        headline="" if head is None else _name_of(head),
        published=ABSENT if head is None else _number(head, "paper"),
        ours=ABSENT if head is None else _number(head, "ours"),
        num_near=int((ratio <= _NEAR).sum()),
        num_judged=len(judged),
        num_numbers=len(known),
        num_agreeing=sum(each.num_agreeing for each in found),
        num_decisions=sum(each.num_known for each in found),
        differing=tuple(
            f"{each.family} {test}" if test.isdigit() else test
            for each in found
            for test in each.differing
        ),
        farthest=tuple(
            f"{_name_of(row)}: {_signed(row['error'])} {row['error_unit']}"
            for row in _records(far.head(_MOST_NAMED))
        ),
    )


def _headline(known: pd.DataFrame) -> Mapping[str, Any] | None:
    """The largest effect on throughput that the paper prints of a campaign, else the largest of any
    effect, else its first number."""
    effects = known[known["unit"].isin(_EFFECTS) & (known["statistic"] == "mean")]
    for found in (effects[effects["metric"] == THROUGHPUT], effects):
        if not found.empty:
            return _records(found.loc[[found["paper"].abs().idxmax()]])[0]
    return None if known.empty else _records(known.head(1))[0]


def _name_of(row: Mapping[str, Any]) -> str:
    return f"{row['quantity']}, {row['table']} {row['target']}"


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def _number(row: Mapping[str, Any], column: str) -> str:
    sign = "+" if row["unit"] in _EFFECTS and "+" not in row["format"] else ""
    return f"{row[column]:{sign}{row['format']}} {row['unit']}".replace("-", "−")


def _campaigns_of_tests(
    families: Sequence[str], confirmations: Mapping[str, str]
) -> dict[tuple[str, str], str | None]:
    """The campaign of each test, by family and test."""
    found: dict[tuple[str, str], str | None] = {}
    for each in map(configs.family, families):
        own = campaigns_by_test(each)
        found |= {(each.name, test.id): own[test.id] for test in each.tests}
    for campaign in confirmations:
        family = configs.load(campaign).family
        found |= {(family.name, test.id): campaign for test in family.tests}
    return found


def _settings(collection: str) -> Mapping[str, Any]:
    settings: Mapping[str, Any] = read_file("campaign", collection)["campaign"]
    return settings


def _campaigns(collection: str) -> list[str]:
    return [str(name) for name in _settings(collection)["campaigns"]]


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
