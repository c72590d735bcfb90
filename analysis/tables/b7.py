"""Table B-7: the family of seventeen confirmation contrasts, each beside the published decision."""

from dataclasses import asdict, dataclass

import pandas as pd

from analysis.families import AnalysisConfig
from analysis.family_tests import FamilyTest, adjusted_p, family_tests
from analysis.gaps import describe
from analysis.intervals import FEWEST_FOR_BOOTSTRAP, Interval, declared_interval
from analysis.published import published_table, published_value
from analysis.runs import THROUGHPUT, Runs
from analysis.tables.registry import table
from analysis.tables.table import Column, Table

_NULLABLE = {
    "num_extreme": "Int64",
    "num_assignments": "Int64",
    "reject": "boolean",
    "reject_published": "boolean",
    "reject_agrees": "boolean",
}
"""Columns that may be unknown and are not floats."""


def _effects_view(interval: str) -> tuple[Column, ...]:
    here, paper = (
        "[{ci_low:+.2f}, {ci_high:+.2f}]",
        "[{ci_low_published:+.2f}, {ci_high_published:+.2f}]",
    )
    return (
        Column(heading="contrast", templates=("{id}",)),
        Column(heading="n", templates=("{n}",)),
        Column(group="change", heading="here", templates=("{mean_change:+.2f}",)),
        Column(group="change", heading="paper", templates=("{mean_change_published:+.2f}",)),
        Column(group="change", heading="diff", templates=("{mean_change_difference:+.2f}",)),
        Column(group=interval, heading="here", templates=(here,)),
        Column(group=interval, heading="paper", templates=(paper,)),
    )


_DECISIONS_VIEW = (
    Column(heading="contrast", templates=("{id}",)),
    Column(heading="arms", templates=("{arms}",)),
    Column(heading="raw p", templates=("{raw_p:.5f}",)),
    Column(group="Holm p", heading="here", templates=("{holm_p:.5f}",)),
    Column(group="Holm p", heading="paper", templates=("{holm_p_published:.5f}",)),
    Column(group="reject", heading="here", templates=("{reject}",)),
    Column(group="reject", heading="paper", templates=("{reject_published}",)),
)


@table("B-7", analysis="q6")
def from_runs(runs: Runs, config: AnalysisConfig) -> Table:
    """The whole family from a ledger (Appendix B.12, Table B-7)."""
    tests = _tests(runs, config)
    intervals = _intervals(tests, config)
    rows = pd.DataFrame(
        [
            _row(test, p, intervals.get(test.id), config)
            for test, p in zip(tests, adjusted_p(tests), strict=True)
        ]
    ).astype(_NULLABLE)
    return Table(
        name="B-7",
        title=f"Admission confirmation: {config.family.size} contrasts on seeds "
        f"{runs.seeds_text}, beside the published ones",
        rows=rows,
        views=(_effects_view(f"{100 * config.interval.level:.0f} % interval"), _DECISIONS_VIEW),
        origin=runs.origin,
        notes=_notes(tests, runs, config),
        missing=describe(gap for test in tests for gap in test.gaps),
    )


def _tests(runs: Runs, config: AnalysisConfig) -> list[FamilyTest]:
    return family_tests(config.family, lambda _: runs, sign_flip=config.sign_flip)


def _intervals(tests: list[FamilyTest], config: AnalysisConfig) -> dict[str, Interval]:
    """Display intervals of the tests with enough seeds; a cell against itself has none (B.12)."""
    alike = {contrast.id for contrast in config.family.contrasts if contrast.is_self_comparison}
    return {
        test.id: declared_interval(test.changes, config.interval)
        for test in tests
        if test.changes is not None
        and len(test.changes) >= FEWEST_FOR_BOOTSTRAP
        and test.id not in alike
    }


@dataclass(frozen=True, kw_only=True)
class _Published:
    mean_change: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    holm_p: float | None = None
    reject: bool | None = None


def _published(test: FamilyTest, config: AnalysisConfig) -> _Published:
    printed = published_table("B-7").to_dict("index")
    if row := printed.get(test.id):
        return _Published(
            mean_change=row["mean_change"],
            ci_low=row["ci95_low"],
            ci_high=row["ci95_high"],
            holm_p=row["holm_p"],
            reject=row["reject"] == "True",
        )
    for interaction in config.family.interactions:
        if interaction.id == test.id and interaction.published_p is not None:
            p = published_value(*interaction.published_p)
            return _Published(holm_p=p, reject=p <= config.family.alpha)
    return _Published()


def _row(
    test: FamilyTest, holm_p: float, interval: Interval | None, config: AnalysisConfig
) -> dict[str, object]:
    known = test.sign_flip is not None
    here = _Published(
        mean_change=test.mean_change,
        ci_low=None if interval is None else interval.low,
        ci_high=None if interval is None else interval.high,
        holm_p=float(holm_p) if known else None,
        reject=bool(holm_p <= config.family.alpha) if known else None,
    )
    paper = _published(test, config)
    row: dict[str, object] = {
        "id": test.id,
        "arms": test.arms,
        "place": test.place,
        "definition": test.definition,
        "unit": test.unit,
        "n": test.n,
        "raw_p": test.sign_flip.p_value if test.sign_flip else None,
        "num_extreme": test.sign_flip.num_extreme if test.sign_flip else None,
        "num_assignments": test.sign_flip.num_assignments if test.sign_flip else None,
        "sign_flip_method": test.sign_flip.method if test.sign_flip else None,
    }
    for name, value in asdict(here).items():
        printed = getattr(paper, name)
        row |= {name: value, f"{name}_published": printed}
        both = value is not None and printed is not None
        if name == "reject":
            row["reject_agrees"] = value == printed if both else None
        else:
            row[f"{name}_difference"] = value - printed if both else None
    return row


def _notes(tests: list[FamilyTest], runs: Runs, config: AnalysisConfig) -> tuple[str, ...]:
    methods = {test.sign_flip.method for test in tests if test.sign_flip}
    inferred = [test.id for test in tests if test.definition == "inferred"]
    notes = [
        f"Change: mean over seeds of 100 (numerator / denominator − 1), in %, of {THROUGHPUT}; of "
        "interactions the difference of two changes, in percentage points.",
        f"Interval: individual percentile bootstrap over seeds, {config.interval.resamples:,} "
        f"resamples; none for a cell against itself or fewer than {FEWEST_FOR_BOOTSTRAP} seeds. It "
        "is not the Holm decision.",
        f"raw p: two-sided sign-flip test of log ratios ({', '.join(sorted(methods)) or 'none'}); "
        f"Holm over {config.family.size}, reject at {config.family.alpha}.",
    ]
    if inferred:
        notes.append(f"Definition inferred, not printed in the paper: {', '.join(inferred)}.")
    if any(test.sign_flip is None for test in tests):
        notes.append(
            "Tests with missing cells keep their place in the family; the other Holm p are upper "
            "bounds until they are run."
        )
    return (*notes, *runs.notes)
