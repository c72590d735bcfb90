"""The page: every target, the families test by test, and a summary with the goals."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis import config as configs
from analysis.compare.estimates import Comparison, measure
from analysis.compare.sources import Sources
from analysis.compare.targets import Goal, Tag, Targets
from analysis.families import Contrast, Interaction
from analysis.family_tests import adjusted_p, family_tests
from analysis.gaps import Gap, describe
from analysis.ledgers import common_origin
from analysis.published import published_value
from analysis.runs import Origin, Runs
from analysis.tables import b7
from analysis.tables.table import Column, Table

TAGS: tuple[Tag, ...] = ("tuned", "held-out")


def page(targets: Targets, sources: Sources) -> list[Table]:
    """The numbers, the tests, the errors by group, and the goals of one comparison.

    Raises:
        NoRunsError: no campaign has a run.
        AnalysisError: a ledger is damaged, or the runs differ in engine, device or time model.
    """
    comparisons = compare(targets, sources)
    tests = _tests(targets, sources)
    origin = common_origin(sources.every)
    missing = tuple(dict.fromkeys([*_missing(targets, sources), *sources.narrowed]))
    return [
        _numbers(targets, comparisons, origin),
        _decisions(tests, origin),
        _errors(targets, comparisons, origin),
        _summary(targets, comparisons, tests, origin, missing),
    ]


def compare(targets: Targets, sources: Sources) -> list[Comparison]:
    """Every target in the order of the groups, measured or not."""
    comparisons = []
    for each, line in targets.lines:
        runs = sources.runs(*each.place(line))
        comparisons.append(
            Comparison(
                targets=each,
                line=line,
                group=targets.groups[each.group],
                estimate=measure(each, line, runs),
                published=each.published(line),
                num_published_seeds=len(runs.design.seeds),
            )
        )
    return comparisons


# -- numbers -------------------------------------------------------------------------------------


def _numbers(targets: Targets, comparisons: Sequence[Comparison], origin: Origin) -> Table:
    notes = dict.fromkeys(f"{each.table}: {each.note}." for each in targets.sets if each.note)
    return Table(
        name="compare-numbers",
        title=f"{targets.title}: {len(comparisons)} published numbers beside ours",
        rows=pd.DataFrame([_row(each) for each in comparisons]),
        views=(
            (
                Column(heading="quantity", templates=("{quantity}",)),
                Column(heading="where", templates=("{table} {target}",)),
                Column(heading="rules", templates=("{tag}",)),
                Column(heading="n", templates=("{n:d}",)),
                Column(heading="ours", templates=("{ours:{format}}",)),
                Column(heading="se", templates=("{standard_error:{format}}",)),
                Column(heading="paper", templates=("{paper:{format}}",)),
                Column(heading="unit", templates=("{unit}",)),
                Column(heading="error", templates=("{error:+.2f} {error_unit}",)),
                Column(heading="noise", templates=("{noise:.2f}",)),
            ),
        ),
        origin=origin,
        notes=(
            "ours: over n seeds, se its standard error. noise: standard error of the error if the "
            "paper's runs scattered over seeds as ours do; its requests are others than ours.",
            "rules: tuned where rules that the paper does not document were chosen with the number "
            "in sight, else held-out.",
            *notes,
        ),
    )


def _row(each: Comparison) -> dict[str, object]:
    campaign, block = each.targets.place(each.line)
    return {
        "group": each.group.title,
        "tag": each.targets.tag,
        "quantity": each.targets.quantity,
        "table": each.targets.table,
        "target": each.line.name,
        "campaign": campaign,
        "block": block,
        "measure": each.targets.measure,
        "metric": each.targets.metric,
        "unit": each.group.unit,
        "format": each.group.spec,
        "n": each.estimate.n,
        "ours": each.estimate.value,
        "standard_error": each.estimate.standard_error,
        "paper": each.published,
        "error": each.error,
        "error_unit": each.group.error_unit,
        "noise": each.noise,
    }


# -- tests ---------------------------------------------------------------------------------------


_TEST_COLUMNS = (
    "family",
    "test",
    "arms",
    "n",
    "unit",
    "change",
    "change_paper",
    "holm_p",
    "holm_p_paper",
    "reject",
    "reject_paper",
)


def _tests(targets: Targets, sources: Sources) -> pd.DataFrame:
    """All families' tests: change and decision, here and in the paper."""
    rows: list[dict[str, object]] = []
    for name in targets.families:
        rows += _family_rows(name, sources)
    for campaign, block in targets.confirmations.items():
        rows += _confirmation_rows(campaign, sources.runs(campaign, block))
    tests = pd.DataFrame(rows, columns=list(_TEST_COLUMNS)).astype(
        {"reject": "boolean", "reject_paper": "boolean"}
    )
    tests["sign_agrees"] = _agree(_signs(tests["change"]), _signs(tests["change_paper"]))
    tests["reject_agrees"] = _agree(tests["reject"], tests["reject_paper"])
    return tests


def _family_rows(name: str, sources: Sources) -> list[dict[str, object]]:
    family = configs.family(name)
    tests = family_tests(family, sources.of)
    declared: dict[str, Contrast | Interaction] = {each.id: each for each in family.contrasts}
    declared |= {each.id: each for each in family.interactions}
    rows = []
    for test, p in zip(tests, adjusted_p(tests), strict=True):
        change, printed_p = (
            None if cell is None else published_value(*cell)
            for cell in (declared[test.id].published_change, declared[test.id].published_p)
        )
        known = test.p_value is not None
        rows.append(
            {
                "family": family.name,
                "test": test.id,
                "arms": test.arms,
                "n": test.n,
                "unit": test.unit,
                "change": test.mean_change,
                "change_paper": change,
                "holm_p": float(p) if known else None,
                "holm_p_paper": printed_p,
                "reject": bool(p <= family.alpha) if known else None,
                "reject_paper": None if printed_p is None else printed_p <= family.alpha,
            }
        )
    return rows


def _confirmation_rows(campaign: str, runs: Runs) -> list[dict[str, object]]:
    """Q6's tests as Table B-7 shows them; none without a run."""
    config = configs.load(campaign)
    if runs.known_origin is None:
        return []
    return [
        {
            "family": config.family.name,
            "test": row["id"],
            "arms": row["arms"],
            "n": row["n"],
            "unit": row["unit"],
            "change": row["mean_change"],
            "change_paper": row["mean_change_published"],
            "holm_p": row["holm_p"],
            "holm_p_paper": row["holm_p_published"],
            "reject": row["reject"],
            "reject_paper": row["reject_published"],
        }
        for row in b7.from_runs(runs, config).rows.to_dict("records")
    ]


def _signs(values: pd.Series) -> pd.Series:
    return pd.Series(np.sign(values.astype("float64")), index=values.index)


def _agree(here: pd.Series, paper: pd.Series) -> pd.Series:
    """Whether both are alike; unknown where one is."""
    return (here == paper).astype("boolean").mask(here.isna() | paper.isna())


def _decisions(tests: pd.DataFrame, origin: Origin) -> Table:
    return Table(
        name="compare-decisions",
        title="Signs and Holm decisions, test by test",
        rows=tests,
        views=(
            (
                Column(heading="family", templates=("{family}",)),
                Column(heading="test", templates=("{test}",)),
                Column(heading="n", templates=("{n:d}",)),
                Column(group="change", heading="ours", templates=("{change:+.2f} {unit}",)),
                Column(group="change", heading="paper", templates=("{change_paper:+.2f}",)),
                Column(group="Holm p", heading="ours", templates=("{holm_p:.4f}",)),
                Column(group="Holm p", heading="paper", templates=("{holm_p_paper:.4f}",)),
                Column(group="same", heading="sign", templates=("{sign_agrees}",)),
                Column(group="same", heading="decision", templates=("{reject_agrees}",)),
            ),
        ),
        origin=origin,
        notes=("A decision that the paper does not print is not compared.",),
    )


# -- summary -------------------------------------------------------------------------------------


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
    def expected(self) -> float | None:
        """The mean absolute error that seeds alone would give: that of a normal error."""
        noises = [each.noise for each in self.known if each.noise is not None]
        mean = _mean(noises)
        return None if mean is None else math.sqrt(2.0 / math.pi) * mean


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _errors(targets: Targets, comparisons: Sequence[Comparison], origin: Origin) -> Table:
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
                Column(heading="largest", templates=("{largest:+.2f}",)),
                Column(heading="where", templates=("{where}",)),
            ),
        ),
        origin=origin,
        notes=(
            "seeds alone: the mean |error| that seed noise would give if both means were equal.",
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


def _summary(
    targets: Targets,
    comparisons: Sequence[Comparison],
    tests: pd.DataFrame,
    origin: Origin,
    missing: tuple[str, ...],
) -> Table:
    rows: list[dict[str, object]] = []
    for goal in targets.goals:
        of_goal = [each for each in comparisons if each.targets.group in goal.groups]
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
        "largest": None if worst is None else worst.error,
        "where": None if worst is None else f"{worst.targets.table} {worst.line.name}",
        "unit": unit,
    }


def _goal_rows(goal: Goal, of_goal: list[Comparison]) -> list[dict[str, object]]:
    """The goal over all its targets, and its value over tuned and held-out ones apart."""
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


def _missing(targets: Targets, sources: Sources) -> Iterable[str]:
    """Every campaign, cell and metric that a target lacks; cells of one reason in one line."""
    cells: dict[str, dict[str, None]] = {}
    unrun: list[Gap] = []
    for each, line in targets.lines:
        campaign, block = each.place(line)
        runs = sources.runs(campaign, block)
        for gap in runs.gaps(each.arms(line), each.metrics):
            if gap.unrun:
                unrun.append(gap)
                continue
            named = gap.reason if runs.why_absent else f"campaign {campaign}: {gap.reason}"
            cells.setdefault(named, {})[gap.cells] = None
    yield from describe(unrun)
    for reason, of_reason in cells.items():
        yield f"{reason} ({', '.join(of_reason)})"
