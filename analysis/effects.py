"""Paired effects of one arm over another: the seed makes the pair, and no pair is dropped silently.

A pair without two positive numbers has no ratio. It is counted and named, and every mean over the
pairs raises until the caller uses `complete_cases()`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from analysis.errors import AnalysisError


class UndefinedPairsError(AnalysisError):
    """A mean over pairs was requested, but some pairs have no ratio."""


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """One quantity under two arms, by seed."""

    numerator: pd.Series
    denominator: pd.Series
    """Same index as the numerator: the seeds that have a ratio."""
    undefined: Mapping[int, str] = field(default_factory=dict)
    """Seeds without a ratio, and why."""
    excluded: Mapping[int, str] = field(default_factory=dict)
    """Seeds left out by `complete_cases` or `without`, and why."""

    @property
    def num_pairs(self) -> int:
        """All pairs, with and without a ratio."""
        return len(self.numerator) + len(self.undefined) + len(self.excluded)

    def complete_cases(self) -> "Pairs":
        """Only the pairs that have a ratio; the others move to `excluded`."""
        return Pairs(
            numerator=self.numerator,
            denominator=self.denominator,
            excluded={**self.excluded, **self.undefined},
        )

    def without(self, seeds: Mapping[int, str]) -> "Pairs":
        """All pairs except the given seeds, which move to `excluded` with their reasons."""
        kept = ~self.numerator.index.isin(list(seeds))
        return Pairs(
            numerator=self.numerator[kept],
            denominator=self.denominator[kept],
            undefined={seed: why for seed, why in self.undefined.items() if seed not in seeds},
            excluded={**self.excluded, **seeds},
        )

    def require_defined(self) -> None:
        """Raises: UndefinedPairsError, naming every pair without a ratio."""
        if self.undefined:
            reasons = "; ".join(f"seed {seed}: {why}" for seed, why in self.undefined.items())
            raise UndefinedPairsError(
                f"{len(self.undefined)} of {self.num_pairs} pairs have no ratio: {reasons}"
            )


def pair_up(numerator: pd.Series, denominator: pd.Series) -> Pairs:
    """Match two arms by seed (the index). A value that is missing, NaN, infinite, zero or negative
    makes its pair undefined."""
    for name, values in (("numerator", numerator), ("denominator", denominator)):
        if values.index.has_duplicates:
            twice = values.index[values.index.duplicated()][0]
            raise AnalysisError(f"seed {twice} appears twice in the {name}")
    seeds = numerator.index.union(denominator.index)
    top = numerator.reindex(seeds).astype(np.float64)
    bottom = denominator.reindex(seeds).astype(np.float64)
    undefined = {
        int(seed): why
        for seed, above, below in zip(seeds, top, bottom, strict=True)
        if (why := _why_undefined(above, below))
    }
    defined = ~seeds.isin(list(undefined))
    return Pairs(numerator=top[defined], denominator=bottom[defined], undefined=undefined)


def _why_undefined(numerator: float, denominator: float) -> str:
    sides = (("numerator", numerator), ("denominator", denominator))
    return ", ".join(
        f"the {name} is {'missing' if math.isnan(value) else value}"
        for name, value in sides
        if not (value > 0.0 and math.isfinite(value))
    )


def relative_changes(pairs: Pairs) -> pd.Series:
    """100 (numerator / denominator - 1) of each seed, in percent (Section 4.1)."""
    pairs.require_defined()
    return 100.0 * (pairs.numerator - pairs.denominator) / pairs.denominator


def log_ratios(pairs: Pairs) -> pd.Series:
    """ln(numerator / denominator) of each seed, accurate for small effects too (Appendix B.5)."""
    pairs.require_defined()
    return pd.Series(
        np.log1p((pairs.numerator - pairs.denominator) / pairs.denominator),
        index=pairs.numerator.index,
    )


def differences(minuend: pd.Series, subtrahend: pd.Series) -> pd.Series:
    """Seedwise difference of two effects: an interaction, in log ratios or percentage points.

    Raises:
        UndefinedPairsError: a seed is in only one of them.
    """
    unmatched = minuend.index.symmetric_difference(subtrahend.index)
    if len(unmatched):
        raise UndefinedPairsError(
            f"an interaction needs both effects of every seed; one is missing for {list(unmatched)}"
        )
    return minuend - subtrahend


def geometric_mean(values: pd.Series) -> float:
    """exp(mean ln x) of positive values (Eq. G1).

    Raises:
        UndefinedPairsError: a value is missing, zero, negative or infinite; its label is named.
    """
    refused = values[~((values > 0.0) & np.isfinite(values))]
    if len(refused) or not len(values):
        named = ", ".join(f"{label}: {value}" for label, value in refused.items()) or "no values"
        raise UndefinedPairsError(f"a geometric mean needs positive values; got {named}")
    return math.exp(float(np.log(values).mean()))


def log_effect_percent(logs: pd.Series) -> float:
    """100 (exp(mean z) - 1): the effect of mean log ratios or their differences (Eq. G3)."""
    return 100.0 * math.expm1(float(logs.mean()))
