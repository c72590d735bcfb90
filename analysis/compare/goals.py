"""How far a comparison is from the paper: errors by group beside chance, and the goals for them."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.compare.estimates import Comparison, Floats
from analysis.compare.targets import Goal, NoiseGoal, Tag, Targets
from analysis.runs import Origin
from analysis.tables.table import Column, Table

TAGS: tuple[Tag, ...] = ("tuned", "held-out")

_SEVERE_PERCENT = 95.0
"""Percentile of what chance gives that is printed beside its mean."""


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Absolute errors of some targets. Numbers that were measured on the same runs count once."""

    known: tuple[Comparison, ...]
    num_targets: int

    @classmethod
    def of(cls, comparisons: Iterable[Comparison]) -> "Errors":
        every = tuple(comparisons)
        known = tuple(each for each in every if each.error is not None)
        return cls(known=known, num_targets=len(every))

    @property
    def apart(self) -> list[list[Comparison]]:
        """The targets, those of the same runs together."""
        by_runs: dict[object, list[Comparison]] = {}
        for index, each in enumerate(self.known):
            by_runs.setdefault(each.runs_compared or index, []).append(each)
        return list(by_runs.values())

    @property
    def mean(self) -> float | None:
        return _mean([_mean([abs(each.error or 0.0) for each in same]) for same in self.apart])

    @property
    def bias(self) -> float | None:
        return _mean([_mean([each.error or 0.0 for each in same]) for same in self.apart])

    @property
    def worst(self) -> Comparison | None:
        return max(self.known, key=lambda each: abs(each.error or 0.0), default=None)

    @property
    def chance(self) -> Floats | None:
        """Mean |error| of each draw of seeds; None if a target has a single seed."""
        means = []
        for same in self.apart:
            draws = [each.chance for each in same]
            if any(each is None for each in draws):
                return None
            means.append(np.mean([np.abs(each) for each in draws if each is not None], axis=0))
        return np.asarray(np.mean(means, axis=0)) if means else None

    @property
    def expected(self) -> float | None:
        """The mean |error| that seed noise alone would give."""
        return None if self.chance is None else float(self.chance.mean())

    @property
    def severe(self) -> float | None:
        """What seed noise alone exceeds in one of twenty draws."""
        chance = self.chance
        return None if chance is None else float(np.percentile(chance, _SEVERE_PERCENT))

    @property
    def over_chance(self) -> float | None:
        """Mean |error| over what seed noise alone would give; None where noise gives none."""
        mean, expected = self.mean, self.expected
        if mean is None or expected is None:
            return None
        return 0.0 if mean == 0.0 else (mean / expected if expected else None)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def errors_table(
    targets: Targets,
    comparisons: Sequence[Comparison],
    origin: Origin,
    beneath: Sequence[Comparison] = (),
) -> Table:
    """
    Args:
        beneath: the same targets on the published seeds; empty if there is one set of seeds.
    """
    rows = []
    for name, group in targets.groups.items():
        for tag in TAGS:
            chosen = [
                each.targets.group == name and each.targets.tag == tag for each in comparisons
            ]
            if not any(chosen):
                continue
            of_tag = Errors.of(_only(comparisons, chosen))
            row = _errors_row(group.title, tag, group.error_unit, of_tag)
            if beneath:
                row["published_seeds"] = Errors.of(_only(beneath, chosen)).mean
            rows.append(row)
    return Table(
        name="compare-errors",
        title=f"Errors by group{_seeds_named(beneath)}, tuned and held-out targets apart",
        rows=pd.DataFrame(rows),
        views=(
            (
                Column(heading="group", templates=("{what}",)),
                Column(heading="rules", templates=("{tag}",)),
                Column(heading="known", templates=("{known:d} of {targets:d}",)),
                Column(heading="apart", templates=("{apart:d}",)),
                Column(heading="mean |error|", templates=("{mean:.2f} {unit}",)),
                Column(heading="by chance", templates=("{expected:.2f}",)),
                Column(heading="95 %", templates=("{severe:.2f}",)),
                Column(heading="over chance", templates=("{over_chance:.1f}",)),
                Column(heading="bias", templates=("{bias:+.2f}",)),
                Column(heading="largest", templates=("{largest:+.2f}",)),
                Column(heading="where", templates=("{where}",)),
                *_published_column(beneath, "{published_seeds:.2f}"),
            ),
        ),
        origin=origin,
        notes=(
            "by chance: the mean |error| if the paper's seeds were drawn from ours, as many as it "
            "has; 95 %: what one of twenty such draws exceeds. over chance: mean |error| over it.",
            "apart: numbers of different runs. Two tables that print the same runs count once.",
        ),
    )


def _only(comparisons: Sequence[Comparison], chosen: Sequence[bool]) -> list[Comparison]:
    return [each for each, is_chosen in zip(comparisons, chosen, strict=True) if is_chosen]


def _seeds_named(beneath: Sequence[Comparison]) -> str:
    return " on fresh seeds" if beneath else ""


def _published_column(beneath: Sequence[Comparison], template: str) -> tuple[Column, ...]:
    return (Column(heading="published seeds", templates=(template,)),) if beneath else ()


_SUMMARY_COLUMNS = (
    "what",
    "tag",
    "value",
    "unit",
    "agreeing",
    "known",
    "targets",
    "apart",
    "measure",
    "expected",
    "over_chance",
    "at_most",
    "reached",
    "published_seeds",
    "where",
)


def goals_table(
    targets: Targets,
    comparisons: Sequence[Comparison],
    tests: pd.DataFrame,
    origin: Origin,
    missing: tuple[str, ...],
    *,
    beneath: Sequence[Comparison] = (),
    tests_beneath: pd.DataFrame | None = None,
) -> Table:
    """
    Args:
        beneath, tests_beneath: the same on the published seeds, if there are two sets of seeds.
    """
    rows: list[dict[str, object]] = []
    for goal in targets.goals:
        rows += _goal_rows(goal, comparisons, beneath)
    if targets.noise is not None:
        rows += _noise_rows(targets, targets.noise, comparisons, beneath)
    others = None if tests_beneath is None else dict(list(tests_beneath.groupby("family")))
    for family, of_family in tests.groupby("family", sort=False):
        for what, column in (("signs", "sign_agrees"), ("decisions", "reject_agrees")):
            row = _agreement_row(f"{family}, {what}", of_family[column], of_family["test"])
            if others is not None and family in others:
                row["published_seeds"] = int(others[family][column].dropna().sum())
            rows.append(row)
    return Table(
        name="compare-goals",
        title=f"{targets.title}: goals{_seeds_named(beneath)}, and agreement of tests",
        rows=pd.DataFrame(rows, columns=list(_SUMMARY_COLUMNS)).astype(
            dict.fromkeys(("known", "targets", "apart", "agreeing"), "Int64")
        ),
        views=(
            (
                Column(heading="what", templates=("{what}",)),
                Column(heading="rules", templates=("{tag}",)),
                Column(heading="ours", templates=("{value:.3f} {unit}", "{agreeing:d} agree")),
                Column(heading="by chance", templates=("{expected:.2f}",)),
                Column(heading="over chance", templates=("{over_chance:.1f}",)),
                Column(heading="of", templates=("{known:d} of {targets:d}",)),
                Column(heading="apart", templates=("{apart:d}",)),
                Column(heading="goal", templates=("≤ {at_most:g}",)),
                Column(heading="", templates=("{reached}",)),
                *_published_column(beneath, "{published_seeds:.3g}"),
                Column(heading="largest, or differing", templates=("{where}",)),
            ),
        ),
        origin=origin,
        notes=(
            "by chance: the mean |error| that seed noise alone would give (compare-errors). apart: "
            "numbers of different runs; those of the same runs count once.",
            *_seeds_notes(comparisons, beneath),
            *_tries_notes(targets, rows),
        ),
        missing=missing,
    )


def _seeds_notes(
    comparisons: Sequence[Comparison], beneath: Sequence[Comparison]
) -> tuple[str, ...]:
    if not beneath:
        return ()
    counts = sorted({each.estimate.n for each in comparisons if each.estimate.n})
    named = "-".join(dict.fromkeys(map(str, (counts[0], counts[-1])))) if counts else "no"
    return (
        f"Ours is over {named} fresh seeds. The paper's seed numbers draw other requests here than "
        "in the paper, so they deserve no preference. Tests use as many fresh seeds as the paper.",
    )


def _tries_notes(targets: Targets, rows: Sequence[Mapping[str, object]]) -> tuple[str, ...]:
    """Where the tries at the goals that are not reached are written down."""
    if targets.tries is None or all(row.get("reached") != "not reached" for row in rows):
        return ()
    return (f"Not reached: {targets.tries} has what was tried, with the best value.",)


def _noise_rows(
    targets: Targets,
    goal: NoiseGoal,
    comparisons: Sequence[Comparison],
    beneath: Sequence[Comparison],
) -> list[dict[str, object]]:
    """Mean |error| over chance: the largest group's, and the median one's."""
    ratios = _ratios(targets, comparisons)
    if not ratios:
        return []
    before = _ratios(targets, beneath)
    largest = max(ratios, key=lambda name: ratios[name])
    above = [name for name in ratios if ratios[name] > goal.largest]
    named = ", ".join(f"{targets.groups[name].title} ({ratios[name]:.1f})" for name in above)
    values = (
        ("largest", goal.largest, ratios[largest], max(before.values(), default=None), named),
        (
            "median",
            goal.median,
            statistics.median(ratios.values()),
            statistics.median(before.values()) if before else None,
            None,
        ),
    )
    return [
        {
            "what": f"mean |error| over chance, {what} group",
            "tag": "all",
            "value": value,
            "unit": "times",
            "known": len(ratios),
            "targets": len(targets.groups),
            "measure": what,
            "at_most": at_most,
            "reached": "not reached"
            if value > at_most
            else ("reached" if len(ratios) == len(targets.groups) else "reached so far"),
            "published_seeds": published,
            "where": where or None,
        }
        for what, at_most, value, published, where in values
    ]


def _ratios(targets: Targets, comparisons: Sequence[Comparison]) -> dict[str, float]:
    """Mean |error| over chance, by group; groups without a known ratio are absent."""
    ratios = {}
    for name in targets.groups:
        errors = Errors.of(each for each in comparisons if each.targets.group == name)
        if errors.over_chance is not None:
            ratios[name] = errors.over_chance
    return ratios


def _errors_row(what: str, tag: str, unit: str, errors: Errors) -> dict[str, object]:
    worst = errors.worst
    return {
        "what": what,
        "tag": tag,
        "known": len(errors.known),
        "targets": errors.num_targets,
        "apart": len(errors.apart),
        "mean": errors.mean,
        "bias": errors.bias,
        "expected": errors.expected,
        "severe": errors.severe,
        "over_chance": errors.over_chance,
        "largest": None if worst is None else worst.error,
        "where": None if worst is None else f"{worst.targets.table} {worst.line.name}",
        "unit": unit,
    }


def _goal_rows(
    goal: Goal, comparisons: Sequence[Comparison], beneath: Sequence[Comparison]
) -> list[dict[str, object]]:
    """The goal over all its targets, then its value over tuned and over held-out targets."""
    tags: tuple[str, ...] = ("all", *TAGS) if goal.tag is None else (goal.tag,)
    rows: list[dict[str, object]] = []
    num_all = 0
    for tag in tags:
        chosen = [
            each.targets.group in goal.groups and tag in ("all", each.targets.tag)
            for each in comparisons
        ]
        of_tag = _only(comparisons, chosen)
        num_all = num_all or len(of_tag)
        if not of_tag or (tag != "all" and goal.tag is None and len(of_tag) == num_all):
            continue
        errors = Errors.of(of_tag)
        row = _errors_row(goal.title, tag, of_tag[0].group.error_unit, errors)
        value = _value(goal, errors)
        if goal.measure == "largest":
            row |= {"expected": None, "over_chance": None}
        if beneath:
            row["published_seeds"] = _value(goal, Errors.of(_only(beneath, chosen)))
        rows.append(
            row
            | {
                "measure": goal.measure,
                "value": value,
                "at_most": goal.at_most,
                "reached": _reached(goal, value, errors),
            }
        )
    return rows


def _value(goal: Goal, errors: Errors) -> float | None:
    if goal.measure == "mean":
        return errors.mean
    return None if errors.worst is None else abs(errors.worst.error or 0.0)


def _reached(goal: Goal, value: float | None, errors: Errors) -> str:
    if value is None:
        return "unknown"
    if value > goal.at_most:
        return "not reached"
    return "reached" if len(errors.known) == errors.num_targets else "reached so far"


def _agreement_row(what: str, agrees: pd.Series, names: pd.Series) -> dict[str, object]:
    known = agrees.dropna()
    differing = ", ".join(names[known.index][~known.astype(bool)])
    return {
        "what": what,
        "known": len(known),
        "targets": len(agrees),
        "agreeing": int(known.sum()),
        "where": differing or None,
    }
