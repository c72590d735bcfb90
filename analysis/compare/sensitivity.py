"""What Q6's request rates owe to a mean output length that the paper does not print."""

import math

import numpy as np
import pandas as pd

from analysis.compare.sources import Sources
from analysis.published import published_value
from analysis.runs import Runs
from analysis.tables.table import Column, Table
from hsexp.config.arm import Arm
from hsexp.config.catalog import read_option

_WORKLOADS = {
    "confirmation": "Q9's tokens (G-5), as simulated",
    "extension": "the extension's tokens (G-1)",
    "original": "the anchors' tokens (E.1)",
}
"""Workload whose mean output is tried, and where that mean comes from."""

_LEAST_SCATTER = 0.005
"""Standard deviation of log outputs over seeds from which they show their effect."""


def sensitivity_table(sources: Sources) -> list[Table]:
    """Mean error of Q6's request rates without headroom, if its outputs had another mean.

    Outputs that scatter over seeds show how rates follow them; otherwise a token is taken to cost
    the same time, which is the most that rates can change. No table without complete runs.
    """
    runs = sources.runs("q6", "confirmation")
    arms = [
        Arm(organization=organization, budget=budget, headroom=0.0)
        for budget in runs.design.budget
        for organization in runs.design.organization
    ]
    if runs.why_absent is not None or any(runs.missing_seeds(arm) for arm in arms):
        return []
    slope = _slope(runs, arms)
    error = np.mean([_log_error(runs, arm) for arm in arms])
    simulated = float((runs.values(arms[0], "output_tokens") / _finished(runs, arms[0])).mean())
    exponent = -1.0 if slope is None else slope
    rows = []
    for workload, source in _WORKLOADS.items():
        tokens = float(read_option("workload", workload)["output_mean_tokens"])
        shift = exponent * math.log(tokens / simulated)
        rows.append(
            {
                "source": source,
                "mean_output_tokens": tokens,
                "rate_change_pct": 100.0 * math.expm1(shift),
                "mean_rate_error_pct": 100.0 * math.expm1(float(error) + shift),
            }
        )
    how = (
        "as one token costs the same time, the most that rates can change"
        if slope is None
        else f"as over our seeds: rates go with outputs to the power {slope:.2f}"
    )
    return [
        Table(
            name="compare-sensitivity",
            title="Request rates of Q6 without headroom, if its mean output were another",
            rows=pd.DataFrame(rows),
            views=(
                (
                    Column(heading="mean output from", templates=("{source}",)),
                    Column(heading="tokens", templates=("{mean_output_tokens:.1f}",)),
                    Column(heading="rates change, %", templates=("{rate_change_pct:+.1f}",)),
                    Column(
                        heading="mean error of six rates, %",
                        templates=("{mean_rate_error_pct:+.1f}",),
                    ),
                ),
            ),
            origin=runs.origin,
            notes=(
                "The paper prints Q6's requests/s, not its output lengths; those of Q9 are taken. "
                f"Rates change {how}.",
            ),
        )
    ]


def _slope(runs: Runs, arms: list[Arm]) -> float | None:
    """Slope of log rate over log outputs within arms; None if outputs hardly scatter."""
    outputs, rates = [], []
    for arm in arms:
        tokens = np.log(runs.values(arm, "output_tokens").to_numpy())
        rate = np.log(runs.values(arm, "requests_per_s").to_numpy())
        outputs.append(tokens - tokens.mean())
        rates.append(rate - rate.mean())
    x, y = np.concatenate(outputs), np.concatenate(rates)
    return None if x.std() < _LEAST_SCATTER else float(x @ y / (x @ x))


def _log_error(runs: Runs, arm: Arm) -> float:
    row = f"{arm.budget}/{arm.organization_label}/0.00"
    ours = float(runs.values(arm, "requests_per_s").mean())
    return math.log(ours / published_value("B-8", row, "requests_per_s"))


def _finished(runs: Runs, arm: Arm) -> pd.Series:
    return runs.values(arm, "num_finished")
