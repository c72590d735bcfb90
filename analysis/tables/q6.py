"""Shared by the tables of Q6: cell means beside Table B-8."""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pandas as pd

from analysis.intervals import standard_error
from analysis.published import published_table
from analysis.runs import Runs
from hsexp.config.arm import Arm

PRINTED = {
    "requests_per_s": "requests_per_s",
    "ttft_p99_s": "ttft_p99",
    "e2e_p99_s": "e2e_p99",
    "tpot_p99_s": "tpot_p99",
}
"""Column of Table B-8, by ledger metric."""


@dataclass(frozen=True, kw_only=True)
class CellMean:
    """A metric of one cell over its seeds, beside the published mean."""

    mean: float | None
    """None if a seed is missing: a partial mean is not the mean of the cell."""
    standard_error: float | None
    published: float | None

    @property
    def error_percent(self) -> float | None:
        """Deviation from the published mean."""
        if self.mean is None or self.published is None:
            return None
        return 100.0 * (self.mean / self.published - 1.0)


def cell_mean(runs: Runs, arm: Arm, metric: str) -> CellMean:
    """Mean over seeds of run-level values, never of pooled requests (Section 4.1)."""
    values = runs.values(arm, metric)
    complete = not values.isna().any()
    return CellMean(
        mean=float(values.mean()) if complete else None,
        standard_error=standard_error(values) if complete else None,
        published=published_cell(arm, metric),
    )


def published_cell(arm: Arm, metric: str) -> float | None:
    """Table B-8's value; None if it has no such cell."""
    row = _printed_cells().get((arm.budget, arm.organization_label, arm.headroom))
    return None if row is None else float(row[PRINTED[metric]])


@cache
def _printed_cells() -> dict[Hashable, dict[Hashable, Any]]:
    keyed = published_table("B-8").set_index(["budget", "organization", "headroom"])
    return keyed.to_dict("index")


@dataclass(frozen=True, kw_only=True)
class HeadroomEffect:
    """Mean requests/s at f over the mean at f = 0, as a change in percent."""

    arm: Arm
    change_percent: float | None
    standard_error: float | None
    published_percent: float | None

    @property
    def error_pp(self) -> float | None:
        if self.change_percent is None or self.published_percent is None:
            return None
        return self.change_percent - self.published_percent


def headroom_effect(runs: Runs, arm: Arm) -> HeadroomEffect:
    """Ratio of two cell means over the same seeds, with the ratio estimator's standard error.

    With means x and y over n seeds and R = x / y, the error is that of the mean of
    (x_s - R y_s) / y.
    """
    base = arm.model_copy(update={"headroom": 0.0})
    top, bottom = (runs.values(each, "requests_per_s") for each in (arm, base))
    published = _change(*(published_cell(each, "requests_per_s") for each in (arm, base)))
    if pd.concat([top, bottom]).isna().any():
        return HeadroomEffect(
            arm=arm, change_percent=None, standard_error=None, published_percent=published
        )
    ratio = float(top.mean() / bottom.mean())
    error = standard_error((top - ratio * bottom) / bottom.mean())
    return HeadroomEffect(
        arm=arm,
        change_percent=100.0 * (ratio - 1.0),
        standard_error=None if error is None else 100.0 * error,
        published_percent=published,
    )


def mean_absolute(errors: list[float | None]) -> float | None:
    """Mean of the absolute errors; None if any error is unknown."""
    known = [abs(error) for error in errors if error is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(errors) else None


def _change(value: float | None, base: float | None) -> float | None:
    return None if value is None or base is None else 100.0 * (value / base - 1.0)
