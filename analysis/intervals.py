"""Intervals over seeds: percentile bootstrap of a mean, paired t in log space, containment."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from analysis.families import BootstrapConfig

Values = pd.Series | Sequence[float] | NDArray[np.float64]

RESAMPLES = 10_000
"""Bootstrap resamples (Appendix B.12)."""

FEWEST_FOR_BOOTSTRAP = 3
"""A percentile interval of one or two seeds shows only those seeds."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A two-sided interval, in the unit of its values."""

    low: float
    high: float
    level: float
    kind: Literal["percentile bootstrap", "paired t", "block bootstrap"]
    n: int
    degenerate: bool = False
    """All values are equal, or there is only one: the interval does not measure spread."""

    def inside(self, low: float, high: float) -> bool:
        """Whether the whole interval lies in [low, high] (containment, Table C-3)."""
        return low <= self.low and self.high <= high


def bootstrap_mean(
    values: Values,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    rng: np.random.Generator,
) -> Interval:
    """Percentile interval of the mean over resamples of whole seeds (display intervals, B.12)."""
    sample = _finite(values)
    draws = rng.integers(0, sample.size, size=(resamples, sample.size))
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(sample[draws].mean(axis=1), (tail, 1.0 - tail))
    equal = bool(np.ptp(sample) == 0.0)
    if equal:
        low = high = sample[0]
    return Interval(
        low=float(low),
        high=float(high),
        level=level,
        kind="percentile bootstrap",
        n=sample.size,
        degenerate=equal,
    )


def declared_interval(values: Values, config: BootstrapConfig) -> Interval:
    """The display interval as conf/analysis declares it; the same values give the same interval."""
    return bootstrap_mean(
        values,
        level=config.level,
        resamples=config.resamples,
        rng=np.random.default_rng(config.seed),
    )


def paired_t(values: Values, *, level: float = 0.95) -> Interval:
    """mean +- t s / sqrt(n) with n - 1 degrees of freedom, for log ratios (Sections 4.5, G.4).

    Raises:
        ValueError: there are fewer than two values, so no standard deviation.
    """
    sample = _finite(values)
    if sample.size < 2:
        raise ValueError(f"a t interval needs at least two values, got {sample.size}")
    quantile = float(stdtrit(sample.size - 1, (1.0 + level) / 2.0))
    half = quantile * float(sample.std(ddof=1)) / math.sqrt(sample.size)
    mean = float(sample.mean())
    return Interval(
        low=mean - half,
        high=mean + half,
        level=level,
        kind="paired t",
        n=sample.size,
        degenerate=half == 0.0,
    )


def paired_t_percent(logs: Values, *, level: float = 0.95) -> Interval:
    """Eq. G4: the t interval of log effects, as percent changes 100 (exp - 1)."""
    log = paired_t(logs, level=level)
    return Interval(
        low=100.0 * math.expm1(log.low),
        high=100.0 * math.expm1(log.high),
        level=level,
        kind=log.kind,
        n=log.n,
        degenerate=log.degenerate,
    )


def standard_error(values: Values) -> float | None:
    """s / sqrt(n) over seeds; None for a single one."""
    sample = _finite(values)
    return float(sample.std(ddof=1)) / math.sqrt(sample.size) if sample.size > 1 else None


def _finite(values: Values) -> NDArray[np.float64]:
    sample = np.asarray(values, dtype=np.float64)
    if not sample.size:
        raise ValueError("an interval needs at least one value")
    if not np.isfinite(sample).all():
        raise ValueError(f"an interval needs finite values, got {sample[~np.isfinite(sample)][0]}")
    return sample
