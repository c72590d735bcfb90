"""Figure 3(b) in numbers: throughput at q = 0 as an index of S0, seed by seed (Appendix G.1)."""

import pandas as pd

from analysis.effects import pair_up
from analysis.ledgers import missing_cells
from analysis.published import published_value
from analysis.runs import Runs
from analysis.tables.beside import (
    PAPER,
    Number,
    Quantity,
    columns,
    compare,
    complete_mean,
    printed_row,
)
from analysis.tables.registry import derived, table
from analysis.tables.table import Column, Table
from hsexp.config.arm import Arm

_INDEX = Quantity(name="throughput_index", heading="index", spec=".5f")
_WORK = Quantity(name="c_once_index", heading="C_once index", spec=".3f")
_KEY = Column(heading="org.", templates=("{organization}",))
_NAME = "no-sharing-index"


@table("no-sharing-index", block=("q2", "no_sharing"))
def from_runs(runs: Runs) -> Table:
    """Means over seeds of within-seed ratios over S0, not ratios of means."""
    organizations = runs.design.organization
    arms = [Arm(organization=name) for name in organizations]
    rows = [
        {
            "organization": arm.organization_label,
            "n": len(runs.seeds) - len(runs.missing_seeds(arm)),
            **compare(
                (_INDEX, _WORK),
                {
                    "throughput_index": complete_mean(index_by_seed(runs, arm)),
                    "c_once_index": complete_mean(index_by_seed(runs, arm, "c_once_tokens")),
                },
                _paper(arm.organization_label),
            ),
        }
        for arm in arms
    ]
    return Table(
        name=_NAME,
        title=f"Throughput at q = 0 over S0 of the same seed, seeds {runs.seeds_text}",
        rows=pd.DataFrame(rows),
        views=((_KEY, Column(heading="n", templates=("{n}",)), *columns((_INDEX, _WORK))),),
        origin=runs.origin,
        notes=runs.notes,
        missing=missing_cells([(runs, arms, ["throughput_tok_per_s", "c_once_tokens"])]),
    )


@derived("no-sharing-index")
def from_paper() -> Table:
    """The indices that follow from the rounded means of Table G-2."""
    first = 1.0 + printed_row("G-2", sharing=0.0)["mean_s1_s0_minus1"] / 100.0
    recomputed = {"S0": 1.0, "S1": first, "S2": None}
    rows = [
        {
            "organization": organization,
            **compare((_INDEX,), {"throughput_index": value}, _paper(organization)),
        }
        for organization, value in recomputed.items()
    ]
    return Table(
        name=_NAME,
        title="Throughput at q = 0 over S0 of the same seed: indices from the printed means",
        rows=pd.DataFrame(rows),
        views=((_KEY, *columns((_INDEX,), here="from G-2")),),
        origin=PAPER,
        notes=(
            "The index of S2 is a mean of products within a seed and needs seedwise values, which "
            "the paper does not print. The product of its two printed mean ratios would be "
            f"{published_value('text', 'G.1', _PRODUCT):.9f}, another number.",
        ),
    )


_PRODUCT = "product of separately averaged step ratios (not the index)"


def index_by_seed(runs: Runs, arm: Arm, metric: str = "throughput_tok_per_s") -> pd.Series:
    """A metric over that of S0 in the same seed; NaN where either is missing."""
    pairs = pair_up(runs.values(arm, metric), runs.values(Arm(organization="s0"), metric))
    return (pairs.numerator / pairs.denominator).reindex(runs.seeds)


def _paper(organization: str) -> dict[str, Number]:
    row = f"b/{organization}/b83"
    return {
        "throughput_index": published_value("figure-3", row, "throughput_index"),
        "c_once_index": published_value("figure-3", row, "norm_c_once"),
    }
