"""One published number beside ours: the value over seeds, its spread, the error, and chance.

Chance is what a comparison with the paper would give if the paper's seeds were drawn from ours: as
many seeds as the paper has are drawn again and again, and each draw is an error by chance alone.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.compare.formula import evaluate
from analysis.compare.targets import Group, Line, TargetSet
from analysis.effects import log_ratios, relative_changes
from analysis.intervals import bootstrap_mean, paired_t_percent
from analysis.runs import Runs
from hsexp.config.arm import Arm

Floats = NDArray[np.float64]

DRAWS = 400
"""Draws of seeds that show what chance alone would give."""

_RESAMPLES = 400
"""Resamples of an interval of one draw."""

_SEED = 20261011


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number over seeds; None if a seed lacks a run or its metric."""

    value: float | None
    deviation: float | None
    """Standard deviation over seeds; None for fewer than two seeds."""
    n: int
    chance: tuple[float, ...] | None = None
    """Errors of draws of as many seeds as the paper has; None for fewer than two seeds."""

    @property
    def standard_error(self) -> float | None:
        return None if self.deviation is None else self.deviation / math.sqrt(self.n)


UNKNOWN = Estimate(value=None, deviation=None, n=0)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One target with its published and its measured value."""

    targets: TargetSet
    line: Line
    group: Group
    estimate: Estimate
    published: float
    num_published_seeds: int
    runs_compared: tuple[object, ...] = ()
    """What the value was measured on. Equal for numbers that two tables print of the same runs."""

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
    def chance(self) -> Floats | None:
        """Errors that chance alone would give, one a draw; in the unit of `error`."""
        draws = self.estimate.chance
        return None if draws is None else np.array(draws) * self._per_unit

    @property
    def _per_unit(self) -> float:
        return 100.0 / self.published if self.group.error == "%" else 1.0


def measure(
    targets: TargetSet, line: Line, runs: Runs, second: Runs | None = None, *, published: int = 0
) -> Estimate:
    """A target's value from runs.

    Args:
        second: the runs of the line's second pair; None uses `runs`.
        published: number of seeds of the paper; 0 takes those of the block.

    Raises:
        AnalysisError: two runs of one seed fit an arm, or its arms served different requests.
    """
    seeds = _seedwise(targets, line, runs, second or runs)
    if seeds is None or not len(seeds) or np.isnan(seeds).any():
        return UNKNOWN  # a mean without a seed would mislead
    return _summed_up(targets, seeds, published or len(runs.design.seeds))


def _seedwise(targets: TargetSet, line: Line, runs: Runs, second: Runs) -> Floats | None:
    """Numbers of every seed, one row a seed; None if a pair is incomplete."""
    match targets.measure:
        case "mean":
            sides = [_values(targets, arm, runs) for arm in targets.arms(line)]
            return _column(pd.concat(sides, axis=1).max(axis=1, skipna=False))
        case "difference":
            first, base = (_values(targets, arm, runs) for arm in targets.arms(line))
            return _column(first - base)
        case "change" | "log change":
            effect = _effects(targets, targets.arms(line), runs)
            if line.less_arm is not None and effect is not None:
                less = _effects(targets, targets.second_pair(line), second)
                effect = None if less is None else (effect - less).dropna()
            return None if effect is None else _column(effect)
    numerator, denominator = targets.arms(line)
    pairs = runs.pairs(numerator, denominator, targets.metric)
    if pairs.undefined or not pairs.num_pairs:
        return None
    match targets.measure:
        case "ratio":
            return _column(pairs.numerator / pairs.denominator)
        case _:
            return np.column_stack([pairs.numerator, pairs.denominator])


def _effects(targets: TargetSet, arms: list[Arm], runs: Runs) -> pd.Series | None:
    """Relative changes in percent, or log ratios, by seed; None if a pair is incomplete."""
    pairs = runs.pairs(arms[0], arms[1], targets.metric)
    if pairs.undefined or not pairs.num_pairs:
        return None
    return log_ratios(pairs) if targets.measure == "log change" else relative_changes(pairs)


def _values(targets: TargetSet, arm: Arm, runs: Runs) -> pd.Series:
    return evaluate(targets.metric, lambda metric: runs.values(arm, metric))


def _column(values: pd.Series) -> Floats:
    return values.to_numpy(dtype=np.float64)[:, np.newaxis]


# -- over seeds ------------------------------------------------------------------------------------


def _summed_up(targets: TargetSet, seeds: Floats, published: int) -> Estimate:
    """The value over seeds, its spread, and errors by chance.

    An extreme, a count and an interval depend on the number of seeds, so the value is the mean over
    draws of as many seeds as the paper has.
    """
    n = len(seeds)
    if n < 2 and targets.statistic.startswith("interval"):
        return UNKNOWN
    of = _statistic(targets, published)
    depends_on_n = targets.statistic != "mean"
    if depends_on_n and n > published:
        value = float(of(seeds[_subsets(n, published)]).mean())
    else:
        value = float(_exact(targets, seeds, of))
    if n < 2:
        return Estimate(value=value, deviation=None, n=n)
    draws = of(seeds[_draws(n, published)])
    center = float(draws.mean()) if depends_on_n else value
    # Ours has a spread too, and n seeds show (n - 1) / n of the variance.
    scale = math.sqrt((1.0 + published / n) * n / (n - 1))
    chance = (draws - center) * scale
    if depends_on_n:
        deviation = float(draws.std()) * math.sqrt(published * n / (n - 1))
    else:
        deviation = _deviation(targets, seeds)
    return Estimate(value=value, deviation=deviation, n=n, chance=tuple(chance.tolist()))


def _statistic(targets: TargetSet, published: int) -> Callable[[Floats], Floats]:
    """The statistic over the seeds of each draw, draws x seeds x numbers."""
    factor = targets.factor
    match targets.statistic, targets.measure:
        case "smallest", _:
            return lambda draws: factor * draws[..., 0].min(axis=-1)
        case "largest", _:
            return lambda draws: factor * draws[..., 0].max(axis=-1)
        case "positive", _:
            return lambda draws: published * (draws[..., 0] > 0.0).mean(axis=-1)
        case "negative", _:
            return lambda draws: published * (draws[..., 0] < 0.0).mean(axis=-1)
        case ("interval low" | "interval high") as end, measure:
            return lambda draws: _interval_ends(draws, end == "interval low", measure)
        case _, "change of means":
            return lambda draws: (
                100.0 * (draws[..., 0].mean(axis=-1) / draws[..., 1].mean(axis=-1) - 1.0)
            )
        case _, "log change":
            return lambda draws: 100.0 * np.expm1(draws[..., 0].mean(axis=-1))
        case _:
            return lambda draws: factor * draws[..., 0].mean(axis=-1)


def _exact(targets: TargetSet, seeds: Floats, of: Callable[[Floats], Floats]) -> float:
    """The statistic of all seeds, an interval with all its resamples."""
    if not targets.statistic.startswith("interval"):
        return float(of(seeds))
    if targets.measure == "log change":
        interval = paired_t_percent(seeds[:, 0])
    else:
        interval = bootstrap_mean(seeds[:, 0], rng=np.random.default_rng(_SEED))
    return interval.low if targets.statistic == "interval low" else interval.high


def _interval_ends(draws: Floats, low: bool, measure: str) -> Floats:
    """The lower or upper end of the interval of each draw."""
    every = draws[..., 0].reshape(-1, draws.shape[-2])
    if measure == "log change":
        return np.array([_t_end(draw, low) for draw in every])
    n = every.shape[1]
    means = every[:, _inner(n)].mean(axis=-1)
    return np.asarray(np.quantile(means, 0.025 if low else 0.975, axis=-1))


def _t_end(logs: Floats, low: bool) -> float:
    interval = paired_t_percent(logs)
    return interval.low if low else interval.high


def _deviation(targets: TargetSet, seeds: Floats) -> float:
    """Standard deviation of the seeds behind a mean, in its unit."""
    match targets.measure:
        case "log change":
            slope = 100.0 * math.exp(float(seeds[:, 0].mean()))  # of exp at the mean (delta method)
            return slope * float(seeds[:, 0].std(ddof=1))
        case "change of means":
            base = float(seeds[:, 1].mean())
            ratio = float(seeds[:, 0].mean()) / base
            residuals = seeds[:, 0] - ratio * seeds[:, 1]  # of the ratio estimator
            return 100.0 / base * float(residuals.std(ddof=1))
        case _:
            return targets.factor * float(seeds[:, 0].std(ddof=1))


@cache
def _draws(n: int, size: int) -> NDArray[np.int64]:
    """Draws with replacement; targets of equal numbers draw the same seeds, as the paper did."""
    return np.random.default_rng((_SEED, n, size)).integers(0, n, size=(DRAWS, size))


@cache
def _subsets(n: int, size: int) -> NDArray[np.int64]:
    """Draws without replacement."""
    order = np.random.default_rng((_SEED, n, size)).random((DRAWS, n)).argsort(axis=1)
    return np.asarray(order[:, :size], dtype=np.int64)


@cache
def _inner(n: int) -> NDArray[np.int64]:
    """Resamples of the seeds of one draw."""
    return np.random.default_rng((_SEED, n)).integers(0, n, size=(_RESAMPLES, n))
