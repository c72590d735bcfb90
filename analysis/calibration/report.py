"""Report of a calibration: coefficients, residuals, and how well the terms are identified."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from analysis.calibration.fit import Fit
from analysis.calibration.steps import Steps
from analysis.runs import Origin
from analysis.tables.table import Column, Table

QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)

NO_CONTEXT_TERM = (
    "A term for context length is not identifiable here: the data holds no context lengths; its "
    "effect is part of the other terms."
)


def coefficients_table(fit: Fit, *, title: str, origin: Origin, notes: tuple[str, ...]) -> Table:
    rows = pd.DataFrame(
        {
            "term": fit.coefficients.index,
            "value_s": fit.coefficients.to_numpy(),
            "standard_error_s": fit.standard_errors.to_numpy(),
        }
    ).assign(value_ms=lambda row: 1e3 * row["value_s"])
    rows["standard_error_ms"] = 1e3 * rows["standard_error_s"]
    pairs = [
        f"{one} and {other} {fit.correlation.loc[one, other]:+.2f}"
        for index, one in enumerate(fit.correlation.index)
        for other in fit.correlation.index[index + 1 :]
    ]
    return Table(
        name="calibration",
        title=title,
        rows=rows,
        views=(
            (
                Column(heading="term", templates=("{term}",)),
                Column(heading="ms", templates=("{value_ms:.6f}",)),
                Column(heading="standard error, ms", templates=("{standard_error_ms:.2g}",)),
            ),
        ),
        origin=origin,
        notes=(
            f"R² {fit.r_squared:.6f}; scaled condition number {fit.condition_number:.1f}; "
            f"correlation of {', '.join(pairs)}.",
            *(f"Warning: {warning}." for warning in fit.warnings),
            *notes,
        ),
    )


def residuals_table(fit: Fit, steps: Steps) -> Table:
    """Fitted minus recorded time: quantiles over steps, and over the event times of runs."""
    table = steps.table
    residual_s = fit.fitted - table["step_s"]
    runs = run_errors(fit, steps)["error_pct"]
    quantities: Mapping[str, tuple[pd.Series, pd.Series]] = {
        "step, ms": (1e3 * residual_s, table["num_steps"]),
        "step, %": (100.0 * residual_s / table["step_s"], table["num_steps"]),
        "event time of a run, %": (runs, pd.Series(1, index=runs.index)),
    }
    rows = [
        {"quantity": name, "n": int(counts.sum())}
        | {f"q{100 * q:g}": value for q, value in zip(QUANTILES, _quantiles(*of), strict=True)}
        for name, of in quantities.items()
        for counts in (of[1],)
    ]
    return Table(
        name="calibration-residuals",
        title=f"Residuals of {steps.num_steps:,} steps of {steps.num_runs} runs",
        rows=pd.DataFrame(rows),
        views=(
            (
                Column(heading="fitted less recorded", templates=("{quantity}",)),
                Column(heading="n", templates=("{n:,d}",)),
                *(
                    Column(heading=_heading(q), templates=(f"{{q{100 * q:g}:+z.4f}}",))
                    for q in QUANTILES
                ),
            ),
        ),
        origin=steps.origin,
    )


def spread(fit: Fit, steps: Steps) -> str:
    """A sentence on the residuals of single steps."""
    table = steps.table
    residuals = 100.0 * (fit.fitted / table["step_s"] - 1.0)
    low, middle, high = _quantiles(residuals, table["num_steps"])[1:4]
    return (
        f"Fitted less recorded, of a step: median {middle:+.1f} %, nine in ten from {low:+.1f} to "
        f"{high:+.1f} %."
    )


def run_errors(fit: Fit, steps: Steps) -> pd.DataFrame:
    """Event time of each run, recorded and fitted, largest error first."""
    counts = steps.table["num_steps"]
    totals = pd.DataFrame(
        {
            "run": steps.table["run"],
            "num_steps": counts,
            "event_time_s": counts * steps.table["step_s"],
            "fitted_s": counts * fit.fitted,
        }
    )
    runs = totals.groupby("run", sort=False).sum().reset_index()
    runs["error_pct"] = 100.0 * (runs["fitted_s"] / runs["event_time_s"] - 1.0)
    order = runs["error_pct"].abs().sort_values(ascending=False, kind="stable").index
    return runs.loc[order].reset_index(drop=True)


def runs_table(fit: Fit, steps: Steps) -> Table:
    return Table(
        name="calibration-runs",
        title="Event time of each run, recorded and fitted",
        rows=run_errors(fit, steps),
        views=(
            (
                Column(heading="run", templates=("{run}",)),
                Column(heading="steps", templates=("{num_steps:,d}",)),
                Column(heading="recorded, s", templates=("{event_time_s:.3f}",)),
                Column(heading="fitted, s", templates=("{fitted_s:.3f}",)),
                Column(heading="error, %", templates=("{error_pct:+z.3f}",)),
            ),
        ),
        origin=steps.origin,
    )


def rows_table(fit: Fit, time_s: pd.Series, origin: Origin) -> Table:
    """Published rows, one by one."""
    rows = pd.DataFrame({"row": time_s.index, "time_s": time_s.array, "fitted_s": fit.fitted.array})
    rows["error_pct"] = 100.0 * (rows["fitted_s"] / rows["time_s"] - 1.0)
    return Table(
        name="calibration-rows",
        title="Each published row beside its fit",
        rows=rows,
        views=(
            (
                Column(heading="row", templates=("{row}",)),
                Column(heading="paper, s", templates=("{time_s:.3f}",)),
                Column(heading="fitted, s", templates=("{fitted_s:.3f}",)),
                Column(heading="error, %", templates=("{error_pct:+z.2f}",)),
            ),
        ),
        origin=origin,
        notes=(f"Largest error {rows['error_pct'].abs().max():.2f} %.",),
    )


def _quantiles(values: pd.Series, counts: pd.Series) -> list[float]:
    """Quantiles of values that occur `counts` times each: the smallest value with at least a share
    q at or below it."""
    order = values.sort_values().index
    share = counts[order].cumsum() / counts.sum()
    places = np.minimum(np.searchsorted(share, QUANTILES), len(order) - 1)
    return [float(values[order[place]]) for place in places]


def _heading(quantile: float) -> str:
    names = {0.0: "least", 0.5: "median", 1.0: "largest"}
    return names.get(quantile, f"{100 * quantile:g} %")
