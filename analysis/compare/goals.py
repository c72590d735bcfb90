"""How far a comparison is from the paper: errors by group, and the goals for them."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.compare.estimates import Comparison
from analysis.compare.targets import Goal, Tag, Targets
from analysis.runs import Origin
from analysis.tables.table import Column, Table

TAGS: tuple[Tag, ...] = ("tuned", "held-out")


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Absolute errors of some targets."""

    known: tuple[Comparison, ...]
    num_targets: int

    @classmethod
    def of(cls, comparisons: Iterable[Comparison]) -> "Errors":
        every = tuple(comparisons)
        known = tuple(each for each in every if each.error is not None)
        return cls(known=known, num_targets=len(every))

    @property
    def mean(self) -> float | None:
        return _mean([abs(each.error or 0.0) for each in self.known])

    @property
    def bias(self) -> float | None:
        return _mean([each.error or 0.0 for each in self.known])

    @property
    def worst(self) -> Comparison | None:
        return max(self.known, key=lambda each: abs(each.error or 0.0), default=None)

    @property
    def ratio(self) -> float | None:
        """Mean absolute error over what seed noise alone would give; None without noise."""
        mean, expected = self.mean, self.expected
        return mean / expected if mean is not None and expected else None

    @property
    def expected(self) -> float | None:
        """The mean absolute error that seed noise alone would give, if errors are normal."""
        noises = [each.noise for each in self.known if each.noise is not None]
        mean = _mean(noises)
        return None if mean is None else math.sqrt(2.0 / math.pi) * mean


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def errors_table(targets: Targets, comparisons: Sequence[Comparison], origin: Origin) -> Table:
    rows = []
    for name, group in targets.groups.items():
        for tag in TAGS:
            of_tag = [
                each
                for each in comparisons
                if each.targets.group == name and each.targets.tag == tag
            ]
            if of_tag:
                rows.append(_errors_row(group.title, tag, group.error_unit, Errors.of(of_tag)))
    return Table(
        name="compare-errors",
        title="Errors by group, tuned and held-out targets apart",
        rows=pd.DataFrame(rows),
        views=(
            (
                Column(heading="group", templates=("{what}",)),
                Column(heading="rules", templates=("{tag}",)),
                Column(heading="known", templates=("{known:d} of {targets:d}",)),
                Column(heading="mean |error|", templates=("{mean:.2f} {unit}",)),
                Column(heading="bias", templates=("{bias:+.2f}",)),
                Column(heading="seeds alone", templates=("{expected:.2f}",)),
                Column(heading="ratio", templates=("{ratio:.1f}",)),
                Column(heading="largest", templates=("{largest:+.2f}",)),
                Column(heading="where", templates=("{where}",)),
            ),
        ),
        origin=origin,
        notes=(
            "seeds alone: the mean |error| that seed noise would give if both means were equal. "
            "ratio: the mean |error| over it.",
        ),
    )


_SUMMARY_COLUMNS = (
    "what",
    "tag",
    "value",
    "unit",
    "agreeing",
    "known",
    "targets",
    "measure",
    "at_most",
    "reached",
    "where",
)


def goals_table(
    targets: Targets,
    comparisons: Sequence[Comparison],
    tests: pd.DataFrame,
    origin: Origin,
    missing: tuple[str, ...],
) -> Table:
    rows: list[dict[str, object]] = []
    for goal in targets.goals:
        names = goal.groups or tuple(targets.groups)
        of_goal = [each for each in comparisons if each.targets.group in names]
        if goal.measure in ("largest ratio", "median ratio"):
            rows.append(_ratio_row(goal, targets, of_goal))
        else:
            rows += _goal_rows(goal, of_goal)
    for family, of_family in tests.groupby("family", sort=False):
        rows += [
            _agreement_row(f"{family}, {what}", of_family[column], of_family["test"])
            for what, column in (("signs", "sign_agrees"), ("decisions", "reject_agrees"))
        ]
    return Table(
        name="compare-goals",
        title=f"{targets.title}: goals, and agreement of tests",
        rows=pd.DataFrame(rows, columns=list(_SUMMARY_COLUMNS)).astype(
            dict.fromkeys(("known", "targets", "agreeing"), "Int64")
        ),
        views=(
            (
                Column(heading="what", templates=("{what}",)),
                Column(heading="rules", templates=("{tag}",)),
                Column(heading="ours", templates=("{value:.3f} {unit}", "{agreeing:d} agree")),
                Column(heading="of", templates=("{known:d} of {targets:d}",)),
                Column(heading="goal", templates=("≤ {at_most:g}",)),
                Column(heading="", templates=("{reached}",)),
                Column(heading="largest, or differing", templates=("{where}",)),
            ),
        ),
        origin=origin,
        notes=tuple(f"Not compared: {each.what} ({each.why})." for each in targets.omitted),
        missing=missing,
    )


def _errors_row(what: str, tag: str, unit: str, errors: Errors) -> dict[str, object]:
    worst = errors.worst
    return {
        "what": what,
        "tag": tag,
        "known": len(errors.known),
        "targets": errors.num_targets,
        "mean": errors.mean,
        "bias": errors.bias,
        "expected": errors.expected,
        "ratio": errors.ratio,
        "largest": None if worst is None else worst.error,
        "where": None if worst is None else f"{worst.targets.table} {worst.line.name}",
        "unit": unit,
    }


def _goal_rows(goal: Goal, of_goal: list[Comparison]) -> list[dict[str, object]]:
    """The goal over all its targets, then its value over tuned and over held-out targets."""
    rows = []
    for tag in ("all", *TAGS):
        errors = Errors.of(each for each in of_goal if tag in ("all", each.targets.tag))
        if not errors.num_targets or (tag != "all" and errors.num_targets == len(of_goal)):
            continue
        row = _errors_row(goal.title, tag, of_goal[0].group.error_unit, errors)
        largest = None if errors.worst is None else abs(errors.worst.error or 0.0)
        value = errors.mean if goal.measure == "mean" else largest
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


def _ratio_row(goal: Goal, targets: Targets, of_goal: list[Comparison]) -> dict[str, object]:
    """A goal for the groups' errors in units of seed noise; each group counts once."""
    by_group = {
        name: Errors.of(each for each in of_goal if each.targets.group == name)
        for name in dict.fromkeys(each.targets.group for each in of_goal)
    }
    ratios = {name: errors.ratio for name, errors in by_group.items() if errors.ratio is not None}
    largest = max(ratios, key=lambda name: ratios[name], default=None)
    value = None
    if largest is not None:
        middle = statistics.median(ratios.values())
        value = middle if goal.measure == "median ratio" else ratios[largest]
    every = Errors.of(of_goal)
    return {
        "what": goal.title,
        "tag": "all",
        "known": len(ratios),
        "targets": len(by_group),
        "unit": "x noise",
        "measure": goal.measure,
        "value": value,
        "at_most": goal.at_most,
        "reached": _reached(goal, value, every),
        "where": None if largest is None else targets.groups[largest].title,
    }


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
