"""Bounds that hold for the whole family of Q6 at once, beside each contrast's mean change."""

import pandas as pd

from analysis.families import AnalysisConfig
from analysis.family_tests import family_tests
from analysis.gaps import describe
from analysis.runs import Runs
from analysis.simultaneous import simultaneous_bounds
from analysis.tables.registry import table
from analysis.tables.table import Column, Table


@table("simultaneous-bounds", analysis="q6", lacks="runs of every contrast")
def from_runs(runs: Runs, config: AnalysisConfig) -> Table:
    """One row per contrast of two different cells; empty unless all contrasts have every seed."""
    alike = {contrast.id for contrast in config.family.contrasts if contrast.is_self_comparison}
    tests = [
        test
        for test in family_tests(config.family, lambda _: runs, sign_flip=config.sign_flip)
        if test.id not in alike
    ]
    missing = describe(gap for test in tests for gap in test.gaps)
    changes = pd.DataFrame({test.id: test.changes for test in tests if test.changes is not None})
    rows = pd.DataFrame(columns=["contrast", "arms", "place", "mean", "low", "high"])
    notes: tuple[str, ...] = ()
    if not missing and len(changes) > 1:
        bounds = simultaneous_bounds(changes, config.interval)
        rows = bounds.table.rename_axis("contrast").reset_index()
        rows["arms"] = [test.arms for test in tests]
        rows["place"] = [test.place for test in tests]
        notes = (
            f"{bounds.level:.0%} for the {len(rows)} of {config.family.size} tests that compare "
            f"two cells, together: mean ± {bounds.quantile:.2f} standard errors, from the largest "
            f"studentized deviation in {config.interval.resamples:,} joint resamples of "
            f"{bounds.n} seeds. The paper's own family of 36 bounds is not spelled out.",
        )
    return Table(
        name="simultaneous-bounds",
        title=f"Simultaneous bounds of the admission confirmation on seeds {runs.seeds_text}",
        rows=rows,
        views=(
            (
                Column(heading="contrast", templates=("{contrast}",)),
                Column(heading="arms", templates=("{arms}",)),
                Column(heading="where", templates=("{place}",)),
                Column(heading="change", templates=("{mean:+.3f}",)),
                Column(heading="low", templates=("{low:+.3f}",)),
                Column(heading="high", templates=("{high:+.3f}",)),
            ),
        ),
        origin=runs.origin,
        notes=(*notes, *runs.notes),
        missing=missing,
    )
