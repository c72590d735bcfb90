"""One published number beside ours: the value over seeds, its standard error, and the error."""

import math
from dataclasses import dataclass

import pandas as pd

from analysis.compare.targets import Group, Line, TargetSet
from analysis.effects import log_effect_percent, log_ratios, relative_changes
from analysis.runs import Runs


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number over seeds; None if a seed lacks a run or its metric."""

    value: float | None
    deviation: float | None
    """Standard deviation over seeds; None for fewer than two seeds."""
    n: int

    @property
    def standard_error(self) -> float | None:
        return None if self.deviation is None else self.deviation / math.sqrt(self.n)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One target with its published and its measured value."""

    targets: TargetSet
    line: Line
    group: Group
    estimate: Estimate
    published: float
    num_published_seeds: int

    @property
    def error(self) -> float | None:
        """Ours minus the paper's, in percent of the paper's or in the group's unit."""
        value = self.estimate.value
        return None if value is None else (value - self.published) * self._per_unit

    @property
    def noise(self) -> float | None:
        """Standard error of `error` if both sides had the same mean and our spread over seeds.

        The paper's requests differ from ours, so this part of the error is chance.
        """
        deviation = self.estimate.deviation
        if deviation is None:
            return None
        variance = 1 / self.estimate.n + 1 / self.num_published_seeds
        return abs(self._per_unit) * deviation * math.sqrt(variance)

    @property
    def _per_unit(self) -> float:
        return 100.0 / self.published if self.group.error == "%" else 1.0


def measure(targets: TargetSet, line: Line, runs: Runs) -> Estimate:
    """A target's value from runs.

    Raises:
        AnalysisError: two runs of one seed fit an arm, or its arms served different requests.
    """
    if targets.measure in ("mean", "difference"):
        sides = [_values(targets, line, runs, index) for index in range(len(targets.arms(line)))]
        seeds = sides[0] if len(sides) == 1 else sides[0] - sides[1]
        return _mean(seeds, targets.factor)
    numerator, denominator = targets.arms(line)
    pairs = runs.pairs(numerator, denominator, targets.metric)
    if pairs.undefined or not pairs.num_pairs:
        return Estimate(value=None, deviation=None, n=0)
    match targets.measure:
        case "ratio":
            return _mean(pairs.numerator / pairs.denominator, targets.factor)
        case "change":
            return _mean(relative_changes(pairs), targets.factor)
        case "log change":
            logs = log_ratios(pairs)
            slope = 100.0 * math.exp(float(logs.mean()))  # slope of exp at the mean (delta method)
            return Estimate(
                value=log_effect_percent(logs),
                deviation=_deviation(logs, slope),
                n=len(logs),
            )
        case _:
            base = float(pairs.denominator.mean())
            ratio = float(pairs.numerator.mean()) / base
            residuals = pairs.numerator - ratio * pairs.denominator  # of the ratio estimator
            return Estimate(
                value=100.0 * (ratio - 1.0),
                deviation=_deviation(residuals, 100.0 / base),
                n=pairs.num_pairs,
            )


def _values(targets: TargetSet, line: Line, runs: Runs, index: int) -> pd.Series:
    arm = targets.arms(line)[index]
    values = runs.values(arm, targets.metric)
    return values if targets.per is None else values / runs.values(arm, targets.per)


def _mean(seeds: pd.Series, factor: float) -> Estimate:
    """Mean over seeds; None if any seed is missing, since a partial mean would mislead."""
    if seeds.empty or seeds.isna().any():
        return Estimate(value=None, deviation=None, n=0)
    return Estimate(
        value=factor * float(seeds.mean()), deviation=_deviation(seeds, factor), n=len(seeds)
    )


def _deviation(seeds: pd.Series, factor: float) -> float | None:
    return factor * float(seeds.std(ddof=1)) if len(seeds) > 1 else None
