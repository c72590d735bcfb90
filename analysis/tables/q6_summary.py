"""Q6 in a few numbers: how far the runs are from the paper, and how many decisions agree."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.families import AnalysisConfig
from analysis.ledgers import missing_cells
from analysis.runs import Runs
from analysis.tables import b7
from analysis.tables.headroom_effects import effect_arms
from analysis.tables.q6 import PRINTED, cell_mean, headroom_effect, mean_absolute
from analysis.tables.registry import table
from analysis.tables.table import Column, Table


@table("q6-summary", analysis="q6", lacks="runs to compare with")
def from_runs(runs: Runs, config: AnalysisConfig) -> Table:
    """Errors against Table B-8, and agreement of signs and Holm decisions with Table B-7."""
    arms = config.design.cells()
    effects = [headroom_effect(runs, arm) for arm in effect_arms(config)]
    bases = [arm for arm in arms if arm.headroom == 0.0]
    levels = [cell_mean(runs, arm, "requests_per_s").error_percent for arm in bases]
    rows = [
        _errors(
            f"headroom effects ({len(effects)})",
            [effect.error_pp for effect in effects],
            [f"{effect.arm.label} {effect.arm.budget}" for effect in effects],
            "pp",
        ),
        _errors(
            f"requests/s at f = 0 ({len(bases)})",
            levels,
            [f"{arm.label} {arm.budget}" for arm in bases],
            "%",
        ),
    ]
    rows += [
        _errors(
            f"{metric} ({len(arms)})",
            [cell_mean(runs, arm, metric).error_percent for arm in arms],
            [f"{arm.label} {arm.budget}" for arm in arms],
            "%",
        )
        for metric in PRINTED
    ]
    rows += _agreement(b7.from_runs(runs, config).rows)
    return Table(
        name="q6-summary",
        title=f"Q6 against the paper, seeds {runs.seeds_text}",
        rows=pd.DataFrame(rows).astype({"agreeing": "Int64", "of": "Int64"}),
        views=(
            (
                Column(heading="what", templates=("{quantity}",)),
                Column(heading="measure", templates=("{measure}",)),
                Column(heading="value", templates=("{value:.2f} {unit}", "{agreeing} of {of}")),
                Column(heading="farthest", templates=("{detail}",)),
            ),
        ),
        origin=runs.origin,
        notes=(
            "The paper's seeds stand for other requests: part of every difference is seed noise "
            "(standard errors in B-8 and headroom-effects).",
            *runs.notes,
        ),
        missing=missing_cells([(runs, arms, PRINTED)]),
    )


def _errors(
    quantity: str, errors: list[float | None], labels: Sequence[str], unit: str
) -> dict[str, object]:
    mean = mean_absolute(errors)
    row: dict[str, object] = {
        "quantity": quantity,
        "measure": "mean |error|",
        "value": mean,
        "unit": unit,
        "agreeing": None,
        "of": None,
        "detail": None,
    }
    if mean is not None:
        known = np.array(errors, dtype=np.float64)
        worst = int(np.abs(known).argmax())
        row["detail"] = f"{labels[worst]}: {known[worst]:+.2f} {unit}"
    return row


def _agreement(tests: pd.DataFrame) -> list[dict[str, object]]:
    signs = tests.dropna(subset=["mean_change", "mean_change_published"])
    same_sign = np.sign(signs["mean_change"]) == np.sign(signs["mean_change_published"])
    decisions = tests.dropna(subset=["reject_agrees"])
    return [
        _count("signs of mean changes", signs["id"], same_sign),
        _count("Holm decisions", decisions["id"], decisions["reject_agrees"].astype(bool)),
    ]


def _count(quantity: str, ids: pd.Series, agrees: pd.Series) -> dict[str, object]:
    """Number of agreeing tests; unknown if there is nothing to compare."""
    differing = ", ".join(ids[~agrees])
    return {
        "quantity": quantity,
        "measure": "same as B-7",
        "value": None,
        "unit": None,
        "agreeing": None if agrees.empty else int(agrees.sum()),
        "of": len(agrees),
        "detail": None if agrees.empty else f"differ: {differing}" if differing else "none differs",
    }
