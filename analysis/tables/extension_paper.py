"""The extension's family from its printed adjusted p alone, on the 1/4096 grid.

Tables B-5, B-6, E-12 and E-17 with `source=paper`. Raw p values are reconstructed, not printed:
some are forced, the others bounded (`analysis.reconstruction`). Three adjusted p are not printed.
The two rejected ones are given the smallest printed p and the one that is not rejected is given
the largest; neither choice moves the forced values, whose products 5 x 30 and 3 x 54 fit no other
rank.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import permutations, product

import pandas as pd

from analysis import config as configs
from analysis.errors import AnalysisError
from analysis.families import Adoption
from analysis.published import PrintedNumber, printed_number
from analysis.reconstruction import STEP, RankGroup, holm_exact, on_grid, rank_groups
from analysis.runs import Origin
from analysis.tables.extension import SCENARIOS, affected_ids
from analysis.tables.registry import derived
from analysis.tables.relations import Relation, Verdict, relations_table
from analysis.tables.table import Column, Table

RECONSTRUCTED = Origin(data_kind="reconstructed from the published adjusted p values")

NOT_REJECTED = ("D0-S2-b83",)
"""Tests without a printed adjusted p that are not rejected: Section 5.3 calls this one
inconclusive, and 20 of 22 are rejected."""


@dataclass(frozen=True, kw_only=True)
class Raw:
    """Raw p of one test: the smallest and the largest that fit."""

    low: Fraction
    high: Fraction


@cache
def raw_p(adoption: Adoption) -> Mapping[str, Raw]:
    """Raw p of all 22 tests under a scenario, in the order of the family.

    Raises:
        AnalysisError: no raw p give the printed values.
    """
    fits = list(_fitting())
    raw = {
        name: Raw(low=min(fit[name] for fit in fits), high=max(fit[name] for fit in fits))
        for name in fits[0]
    }
    first = _groups()[0]
    raw |= {name: Raw(low=raw[name].low, high=first.last) for name in first.names}
    last = _groups()[-1]
    raw |= {name: Raw(low=last.first, high=last.last) for name in last.names}
    if adoption == "invalid":
        raw |= {name: Raw(low=Fraction(1), high=Fraction(1)) for name in affected_ids()}
    if adoption == "complete_case":
        raw |= _without_seed({name: each.low for name, each in raw.items()})
    return raw


def rejections(raw: Mapping[str, Fraction]) -> int:
    """Tests of the family with an adjusted p of at most alpha."""
    return sum(p <= _alpha() for p in holm_exact(raw).values())


@derived("extension-22")
def extension22(adoption: Adoption) -> Table:
    """Every test: raw p, and its adjustment beside the printed one."""
    return _table("extension-22", adoption, None)


@derived("B-5")
def b5(adoption: Adoption) -> Table:
    """The stepwise contrasts."""
    return _table("B-5", adoption, "B-5")


@derived("E-12")
def e12(adoption: Adoption) -> Table:
    """D0 with other pool splits."""
    return _table("E-12", adoption, "E-12")


@derived("B-6")
def b6() -> Table:
    """The adjusted p of the affected contrasts, with and without the seed in doubt."""
    relations = []
    both: tuple[Adoption, ...] = ("current", "complete_case")
    for adoption in both:
        adjusted = holm_exact(_lows(adoption))
        relations += [
            Relation(
                row=_b6_row(name, adoption),
                column="holm_p",
                computed=float(adjusted[name]),
                formula="Holm over 22 of reconstructed raw p",
            )
            for name in affected_ids()
        ]
    return relations_table(
        "B-6",
        "The contrasts of the rerun cell, with and without its seed",
        sorted(relations, key=lambda relation: relation.row),
        origin=RECONSTRUCTED,
        notes=_raw_notes(),
    )


@derived("E-17")
def e17() -> Table:
    """Rejections under the three scenarios."""
    size = configs.family("extension22").size
    relations = [
        relation
        for scenario, adoption in SCENARIOS.items()
        for relation in (
            Relation(
                row=scenario,
                column="rejections",
                computed=rejections(_lows(adoption)),
                formula=f"adopted: {adoption}; Holm over {size} of reconstructed raw p",
            ),
            Relation(
                row=scenario, column="family_size", computed=size, formula="tests of the family"
            ),
        )
    ]
    return relations_table(
        "E-17",
        f"Rejections of the family of {size} under three adoption scenarios",
        relations,
        origin=RECONSTRUCTED,
        notes=_raw_notes(),
    )


# -- reconstruction ------------------------------------------------------------------------------


def _alpha() -> Fraction:
    return Fraction(str(configs.family("extension22").alpha))


def _assignments() -> int:
    return int(printed_number("text", "B.5", "sign assignments enumerated").value)


def _printed_p() -> dict[str, PrintedNumber | None]:
    family = configs.family("extension22")
    return {
        test.id: None if test.published_p is None else printed_number(*test.published_p)
        for test in family.tests
    }


def _groups() -> list[RankGroup]:
    """The 22 adjusted p, with the three that are not printed at the ends of the ranking."""
    on = {
        name: on_grid(printed, _assignments())
        for name, printed in _printed_p().items()
        if printed is not None
    }
    smallest, largest = min(on.values()), max(on.values())
    adjusted = {
        name: on.get(name, largest if name in NOT_REJECTED else smallest) for name in _printed_p()
    }
    return rank_groups(adjusted, _assignments())


def _fitting() -> Iterator[dict[str, Fraction]]:
    """Raw p in the middle of the ranking that also give scenario C's printed rejections. Tests of
    the first and the last rank group have their smallest raw p."""
    order = list(_printed_p())
    first, *middle, last = _groups()
    ends = {name: group.first for group in (first, last) for name in group.names}
    printed = printed_number("E-17", "C", "rejections").value
    found = False
    for parts in product(*map(_assigned, middle)):
        raw = ends | {name: p for part in parts for name, p in part.items()}
        invalid = raw | dict.fromkeys(affected_ids(), Fraction(1))
        if rejections(invalid) == printed:
            found = True
            yield {name: raw[name] for name in order}
    if not found:
        raise AnalysisError(f"no raw p of the family give {printed:.0f} rejections in scenario C")


def _assigned(group: RankGroup) -> Iterator[dict[str, Fraction]]:
    """Every assignment of a rank group's counts to its tests: one test has the first count, the
    others have at least that."""
    unit = Fraction(STEP, _assignments())
    steps = int((group.last - group.first) / unit) + 1
    values = [group.first + step * unit for step in range(steps)]
    for leader, *others in permutations(group.names):
        for rest in product(values, repeat=len(others)):
            if list(rest) == sorted(rest):
                yield {leader: group.first, **dict(zip(others, rest, strict=True))}


def _without_seed(raw: Mapping[str, Fraction]) -> dict[str, Raw]:
    """Raw p of the affected contrasts on one seed fewer, from Table B-6."""
    assignments = _assignments() // 2
    names = affected_ids()
    printed = {
        name: printed_number("B-6", _b6_row(name, "complete_case"), "holm_p") for name in names
    }
    grid = [Fraction(count, assignments) for count in range(STEP, assignments, STEP)]
    candidates = [p for p in grid if p <= max(Fraction(each.text) for each in printed.values())]
    fits = []
    for values in product(candidates, repeat=len(names)):
        given = dict(zip(names, values, strict=True))
        adjusted = holm_exact({**raw, **given})
        if all(printed[name].shows(float(adjusted[name])) for name in names):
            fits.append(given)
    if not fits:
        raise AnalysisError("no raw p without the seed give the adjusted p of Table B-6")
    return {
        name: Raw(low=min(fit[name] for fit in fits), high=max(fit[name] for fit in fits))
        for name in names
    }


# -- tables --------------------------------------------------------------------------------------


def _lows(adoption: Adoption) -> dict[str, Fraction]:
    return {name: each.low for name, each in raw_p(adoption).items()}


def _b6_row(name: str, adoption: str) -> str:
    family = configs.family("extension22")
    (contrast,) = (each for each in family.contrasts if each.id == name)
    seed = family.affected[0].seed
    scenario = "current adoption" if adoption == "current" else f"exclude {seed}"
    return f"{contrast.label}/{scenario}"


def _table(name: str, adoption: Adoption, printed_in: str | None) -> Table:
    family = configs.family("extension22")
    raw = raw_p(adoption)
    adjusted = holm_exact({each: bounds.low for each, bounds in raw.items()})
    rows = []
    for test in family.tests:
        place = test.published_change
        if printed_in is not None and (place is None or place[0] != printed_in):
            continue
        bounds, p = raw[test.id], adjusted[test.id]
        printed = _printed_under(test.id, adoption)
        rows.append(
            {
                "id": test.id,
                "raw_count_low": float(bounds.low * _assignments()),
                "raw_count_high": float(bounds.high * _assignments()),
                "assignments": _assignments(),
                "raw_p_low": float(bounds.low),
                "holm_p": float(p),
                "holm_p_published": None if printed is None else printed.value,
                "holm_p_published_text": None if printed is None else printed.text,
                "reject": bool(p <= _alpha()),
                "verdict": "not printed"
                if printed is None
                else (Verdict.EQUAL if printed.shows(float(p)) else Verdict.DIFFERS).value,
            }
        )
    return Table(
        name=name,
        title=f"Reconstructed p of {len(rows)} tests in the family of {family.size}, "
        f"adoption: {adoption}",
        rows=pd.DataFrame(rows),
        views=(
            (
                Column(heading="test", templates=("{id}",)),
                Column(group="raw count", heading="least", templates=("{raw_count_low:.0f}",)),
                Column(group="raw count", heading="most", templates=("{raw_count_high:.0f}",)),
                Column(group="", heading="of", templates=("{assignments}",)),
                Column(group="Holm p", heading="computed", templates=("{holm_p:.8f}",)),
                Column(group="Holm p", heading="paper", templates=("{holm_p_published_text:}",)),
                Column(heading="reject", templates=("{reject}",)),
                Column(heading="verdict", templates=("{verdict}",)),
            ),
        ),
        origin=RECONSTRUCTED,
        notes=(
            "Effects and their ranges need seedwise throughput, which the paper does not print.",
            *_raw_notes(),
        ),
    )


def _printed_under(name: str, adoption: Adoption) -> PrintedNumber | None:
    """The printed adjusted p under a scenario; the paper prints those of B for two contrasts."""
    if adoption == "current":
        return _printed_p()[name]
    if adoption == "complete_case" and name in affected_ids():
        return printed_number("B-6", _b6_row(name, adoption), "holm_p")
    return None


def _raw_notes() -> tuple[str, ...]:
    unprinted = [name for name, printed in _printed_p().items() if printed is None]
    return (
        "Reconstructed: raw p are the even counts over "
        f"{_assignments()} that give the printed adjusted p and scenario C's "
        f"{printed_number('E-17', 'C', 'rejections').text} rejections; where several fit, the "
        "smallest is adjusted.",
        f"Adjusted p not printed: {', '.join(unprinted)}; {', '.join(NOT_REJECTED)} is taken with "
        "the largest printed one, the others with the smallest.",
    )
