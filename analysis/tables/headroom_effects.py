"""Headroom effects: the change of each f > 0 from f = 0, beside the same ratio of Table B-8."""

import pandas as pd

from analysis.families import AnalysisConfig
from analysis.ledgers import missing_cells
from analysis.runs import Runs
from analysis.tables.q6 import headroom_effect
from analysis.tables.registry import table
from analysis.tables.table import Column, Table
from hsexp.config.arm import Arm


@table("headroom-effects", analysis="q6", lacks="run-level request rates")
def from_runs(runs: Runs, config: AnalysisConfig) -> Table:
    """Mean requests/s at f over mean requests/s at f = 0, for every cell with f > 0."""
    effects = [headroom_effect(runs, arm) for arm in effect_arms(config)]
    rows = pd.DataFrame(
        {
            "budget": effect.arm.budget,
            "organization": effect.arm.organization_label,
            "headroom": effect.arm.headroom,
            "change_pct": effect.change_percent,
            "change_standard_error_pp": effect.standard_error,
            "change_published_pct": effect.published_percent,
            "error_pp": effect.error_pp,
        }
        for effect in effects
    )
    return Table(
        name="headroom-effects",
        title=f"Headroom effects on requests/s, {len(effects)} cells on seeds {runs.seeds_text}, "
        "beside the ratios of the published means",
        rows=rows,
        views=(
            (
                Column(heading="budget", templates=("{budget}",)),
                Column(heading="org.", templates=("{organization}",)),
                Column(heading="f", templates=("{headroom:.2f}",)),
                Column(
                    group="change, %",
                    heading="here",
                    templates=(
                        "{change_pct:+.2f}±{change_standard_error_pp:.2f}",
                        "{change_pct:+.2f}",
                    ),
                ),
                Column(
                    group="change, %", heading="paper", templates=("{change_published_pct:+.2f}",)
                ),
                Column(group="change, %", heading="diff, pp", templates=("{error_pp:+.2f}",)),
            ),
        ),
        origin=runs.origin,
        notes=(
            "Ratio of two means over the same seeds, ± the ratio estimator's standard error over "
            "seeds; the paper's side divides two printed means of Table B-8.",
            *runs.notes,
        ),
        missing=missing_cells([(runs, config.design.cells(), ["requests_per_s"])]),
    )


def effect_arms(config: AnalysisConfig) -> list[Arm]:
    """The cells with headroom."""
    return [arm for arm in config.design.cells() if arm.headroom]
