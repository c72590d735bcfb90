"""Holm's step-down adjustment of a declared family of tests (Appendix B.5)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def holm(p_values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Adjusted p values in the order given: monotone in the raw ones, at most 1.

    The k-th smallest of m is multiplied by m - k + 1; no result is below the one before it.

    NaN marks a test of the family that could not be done. It stays NaN and counts in m as if its p
    were 1. The others are then upper bounds: a smaller p would leave each of them the same or
    lower, so no rejection depends on the missing test.

    Raises:
        ValueError: a value is outside [0, 1].
    """
    raw = np.asarray(p_values, dtype=np.float64)
    known = ~np.isnan(raw)
    for index in np.flatnonzero(known & ~((raw >= 0.0) & (raw <= 1.0))):
        raise ValueError(f"p value {index} must be in [0, 1], got {raw[index]}")
    order = np.argsort(np.where(known, raw, 1.0), kind="stable")
    multipliers = np.arange(raw.size, 0, -1)
    stepped = np.maximum.accumulate(np.where(known, raw, 1.0)[order] * multipliers)
    adjusted = np.empty_like(raw)
    adjusted[order] = np.minimum(stepped, 1.0)
    adjusted[~known] = np.nan
    return adjusted
