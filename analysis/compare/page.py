"""The page: every target, the families test by test, and a summary with the goals."""

from collections.abc import Iterable, Sequence

import pandas as pd

from analysis.compare.decisions import compared_tests, decisions_table
from analysis.compare.estimates import Comparison, measure
from analysis.compare.goals import errors_table, goals_table
from analysis.compare.sources import Sources
from analysis.compare.targets import Targets
from analysis.gaps import Gap, describe
from analysis.ledgers import common_origin
from analysis.runs import Origin
from analysis.tables.table import Column, Table


def page(targets: Targets, sources: Sources) -> list[Table]:
    """The numbers, the tests, the errors by group, and the goals of one comparison.

    Raises:
        NoRunsError: no campaign has a run.
        AnalysisError: a ledger is damaged, or the runs differ in engine, device or time model.
    """
    comparisons = compare(targets, sources)
    tests = compared_tests(targets, sources)
    origin = common_origin(sources.every)
    missing = tuple(dict.fromkeys([*_missing(targets, sources), *sources.narrowed]))
    return [
        _numbers(targets, comparisons, origin),
        decisions_table(tests, origin),
        errors_table(targets, comparisons, origin),
        goals_table(targets, comparisons, tests, origin, missing),
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
            "paper's runs scattered over seeds as ours do; its requests differ from ours.",
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


def _missing(targets: Targets, sources: Sources) -> Iterable[str]:
    """Campaigns, cells and metrics that targets lack; cells with the same reason share a line."""
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
