"""The page: every target, the families test by test, and a summary with the goals."""

from collections.abc import Iterable, Sequence

import pandas as pd

from analysis.compare.coverage import coverage_table
from analysis.compare.decisions import compared_tests, decisions_table
from analysis.compare.estimates import Comparison, measure
from analysis.compare.goals import errors_table, goals_table
from analysis.compare.sensitivity import sensitivity_table
from analysis.compare.sources import Sources
from analysis.compare.targets import Line, Targets, TargetSet
from analysis.compare.widths import widths_table
from analysis.gaps import Gap, describe
from analysis.ledgers import common_origin
from analysis.runs import Origin, Runs
from analysis.tables.table import Column, Table


def page(
    targets: Targets,
    sources: Sources,
    *,
    like_paper: Sources | None = None,
    beneath: Sources | None = None,
) -> list[Table]:
    """The numbers, the tests, the errors by group, and the goals of one comparison.

    Args:
        like_paper: runs for the tests, of as many seeds as the paper has; None uses `sources`.
        beneath: runs of the published seeds, shown beside those of `sources`.

    Raises:
        NoRunsError: no campaign has a run.
        AnalysisError: a ledger is damaged, or the runs differ in engine, device or time model.
    """
    comparisons = compare(targets, sources)
    tests = compared_tests(targets, like_paper or sources)
    origin = common_origin(sources.every)
    below = [] if beneath is None else compare(targets, beneath)
    tests_below = None if beneath is None else compared_tests(targets, beneath)
    missing = tuple(dict.fromkeys([*_missing(targets, sources), *sources.narrowed]))
    return [
        _numbers(targets, comparisons, origin, below),
        decisions_table(tests, origin, tests_below),
        *widths_table(comparisons, origin),
        *(sensitivity_table(sources) if "q6" in targets.confirmations else []),
        *([coverage_table(targets)] if targets.printed.omitted else []),
        errors_table(targets, comparisons, origin, below),
        goals_table(
            targets, comparisons, tests, origin, missing, beneath=below, tests_beneath=tests_below
        ),
    ]


def compare(targets: Targets, sources: Sources) -> list[Comparison]:
    """Every target in the order of the groups, measured or not."""
    comparisons = []
    for each, line in targets.lines:
        runs = sources.with_metrics(*each.place(line), each.metrics)
        second = sources.runs(*each.second_place(line)) if line.less_arm else None
        comparisons.append(
            Comparison(
                targets=each,
                line=line,
                group=targets.groups[each.group],
                estimate=measure(each, line, runs, second),
                published=each.published(line),
                num_published_seeds=len(runs.design.seeds),
                runs_compared=_runs_compared(each, line, runs, second),
            )
        )
    return comparisons


def _runs_compared(
    targets: TargetSet, line: Line, runs: Runs, second: Runs | None
) -> tuple[object, ...]:
    """What the value was measured on; empty if a run is missing."""
    arms = [runs.cell_ids(arm) for arm in targets.arms(line)]
    if second is not None:
        arms += [second.cell_ids(arm) for arm in targets.second_pair(line)]
    if not all(arms):
        return ()
    cells = tuple(tuple(of_arm.items()) for of_arm in arms)
    return (cells, targets.measure, targets.statistic, targets.metric)


def _numbers(
    targets: Targets,
    comparisons: Sequence[Comparison],
    origin: Origin,
    beneath: Sequence[Comparison],
) -> Table:
    rows = [_row(each) for each in comparisons]
    for row, below in zip(rows, beneath, strict=False):
        row |= {
            "published_seeds_n": below.estimate.n,
            "published_seeds": below.estimate.value,
            "published_seeds_error": below.error,
        }
    notes = dict.fromkeys(f"{each.table}: {each.note}." for each in targets.sets if each.note)
    return Table(
        name="compare-numbers",
        title=f"{targets.title}: {len(comparisons)} published numbers beside ours",
        rows=pd.DataFrame(rows),
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
                *(_PUBLISHED_SEEDS if beneath else ()),
            ),
        ),
        origin=origin,
        notes=(
            "ours: over n seeds, se its standard error. noise: standard error of the error if the "
            "paper's runs scattered over seeds as ours do; its requests differ from ours.",
            "rules: tuned where rules that the paper does not document were chosen with the number "
            "in sight, else held-out.",
            *notes,
        ),
    )


_PUBLISHED_SEEDS = (
    Column(
        group="published seeds",
        heading="ours",
        templates=("{published_seeds:{format}}",),
    ),
    Column(group="published seeds", heading="error", templates=("{published_seeds_error:+.2f}",)),
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
        "statistic": each.targets.statistic,
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


def _missing(targets: Targets, sources: Sources) -> Iterable[str]:
    """Campaigns, cells and metrics that targets lack; cells with the same reason share a line."""
    cells: dict[str, dict[str, None]] = {}
    unrun: list[Gap] = []
    for each, line in targets.lines:
        campaign, block = each.place(line)
        runs = sources.runs(campaign, block)
        gaps = runs.gaps(each.arms(line), each.metrics)
        if line.less_arm is not None:
            gaps += sources.runs(*each.second_place(line)).gaps(each.second_pair(line))
        for gap in gaps:
            if gap.unrun:
                unrun.append(gap)
                continue
            named = gap.reason if runs.why_absent else f"campaign {campaign}: {gap.reason}"
            cells.setdefault(named, {})[gap.cells] = None
    yield from describe(unrun)
    for reason, of_reason in cells.items():
        yield f"{reason} ({', '.join(of_reason)})"
