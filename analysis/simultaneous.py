"""Simultaneous bounds: one level for a whole declared family, by the max-t bootstrap over seeds.

Seeds are resampled jointly for all contrasts, so that their correlation is kept. The bound of a
contrast is mean +- q s / sqrt(n), where q is the `level` quantile of the largest studentized
deviation in the family. Not interchangeable with the display intervals of single contrasts (B.12).
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.families import BootstrapConfig


@dataclass(frozen=True, kw_only=True)
class SimultaneousBounds:
    """Bounds of a family of means over the same seeds."""

    level: float
    n: int
    quantile: float
    """Quantile of the largest studentized deviation; NaN if no contrast varies over seeds."""
    table: pd.DataFrame
    """Mean, low and high of each contrast."""


def simultaneous_bounds(changes: pd.DataFrame, config: BootstrapConfig) -> SimultaneousBounds:
    """Two-sided bounds for the mean of every column at once.

    Args:
        changes: one row per seed, one column per contrast, without missing values.

    Raises:
        ValueError: fewer than two seeds, no contrast, or a value that is not finite.
    """
    values = changes.to_numpy(dtype=np.float64)
    num_seeds, num_contrasts = values.shape
    if num_seeds < 2 or num_contrasts < 1:
        raise ValueError(f"bounds need two seeds and a contrast, got {num_seeds} x {num_contrasts}")
    if not np.isfinite(values).all():
        raise ValueError("bounds need a finite change of every contrast for every seed")
    mean = values.mean(axis=0)
    error = values.std(axis=0, ddof=1) / np.sqrt(num_seeds)
    scatters = error > 0.0
    quantile = _largest_deviation(values[:, scatters], config) if scatters.any() else np.nan
    half = np.where(scatters, error * np.nan_to_num(quantile), 0.0)
    table = pd.DataFrame(
        {"mean": mean, "low": mean - half, "high": mean + half}, index=changes.columns
    )
    return SimultaneousBounds(
        level=config.level, n=num_seeds, quantile=float(quantile), table=table
    )


def _largest_deviation(values: np.ndarray, config: BootstrapConfig) -> float:
    """Quantile of max |t*| over the contrasts, from resampled seeds."""
    num_seeds = values.shape[0]
    rng = np.random.default_rng(config.seed)
    draws = values[rng.integers(0, num_seeds, size=(config.resamples, num_seeds))]
    errors = draws.std(axis=1, ddof=1) / np.sqrt(num_seeds)
    # A resample of one seed alone has no error of its own and cannot be studentized.
    proper = (errors > 0.0).all(axis=1)
    deviations = np.abs(draws.mean(axis=1) - values.mean(axis=0))
    largest = (deviations[proper] / errors[proper]).max(axis=1)
    return float(np.quantile(largest, config.level))
