"""Simultaneous bounds over a family."""

import numpy as np
import pandas as pd
import pytest

from analysis.families import AnalysisConfig, BootstrapConfig
from analysis.intervals import paired_t
from analysis.runs import Runs
from analysis.simultaneous import simultaneous_bounds
from analysis.tables.simultaneous_bounds import from_runs

CONFIG = BootstrapConfig(level=0.95, resamples=2000, seed=1)


def changes(num_seeds: int, num_contrasts: int, *, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(rng.normal(1.0, 2.0, size=(num_seeds, num_contrasts)))


def test_bounds_of_many_contrasts_are_wider_than_the_interval_of_one() -> None:
    sample = changes(12, 17)
    bounds = simultaneous_bounds(sample, CONFIG).table
    for contrast in sample:
        alone = paired_t(sample[contrast])
        assert bounds.loc[contrast, "high"] > alone.high
        assert bounds.loc[contrast, "low"] < alone.low


def test_copies_of_a_contrast_cost_nothing() -> None:
    sample = changes(12, 1)
    copies = pd.concat([sample[0]] * 5, axis=1, keys=list("abcde"))
    one, five = simultaneous_bounds(sample, CONFIG), simultaneous_bounds(copies, CONFIG)
    assert five.quantile == one.quantile


def test_a_contrast_without_scatter_is_its_own_bound() -> None:
    sample = changes(12, 2)
    sample[1] = 3.0
    row = simultaneous_bounds(sample, CONFIG).table.loc[1]
    assert (row["low"], row["high"]) == (3.0, 3.0)


def test_three_seeds_have_the_quantile_of_their_27_resamples() -> None:
    # Of 1, 2, 6 (mean 3, s = sqrt 7) three of 27 resamples have one seed alone. |t*| of the others:
    # 0 six times, and 0.2, 0.25, 0.8, 1.25, 4 and 5 three times each. More than 5 % of them are 5.
    bounds = simultaneous_bounds(pd.DataFrame({"contrast": [1.0, 2.0, 6.0]}), CONFIG)
    assert bounds.quantile == pytest.approx(5.0)
    half = 5.0 * np.sqrt(7 / 3)
    row = bounds.table.loc["contrast"]
    assert (row["low"], row["high"]) == pytest.approx((3.0 - half, 3.0 + half))


@pytest.mark.parametrize(
    "bad", [changes(1, 2), changes(12, 0), changes(12, 2).replace({1: {}}).mask(changes(12, 2) > 3)]
)
def test_what_cannot_be_bounded_is_refused(bad: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match="bounds need"):
        simultaneous_bounds(bad, CONFIG)


def test_the_table_has_every_test_that_compares_two_cells(runs: Runs, q6: AnalysisConfig) -> None:
    rows = from_runs(runs, q6).rows
    assert len(rows) == 15  # 17 less two cells against themselves
    assert (rows["low"] <= rows["mean"]).all() and (rows["mean"] <= rows["high"]).all()


@pytest.mark.slow
def test_all_bounds_of_a_family_hold_together_about_as_often_as_they_say() -> None:
    """Correlated contrasts, 12 seeds. The bootstrap t of few seeds errs on the wide side."""
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(400):
        common = rng.normal(size=(12, 1))
        sample = pd.DataFrame(common + rng.normal(size=(12, 6)))
        bounds = simultaneous_bounds(sample, CONFIG.model_copy(update={"resamples": 500})).table
        held += bool(((bounds["low"] <= 0) & (bounds["high"] >= 0)).all())
    assert 0.92 <= held / 400 <= 1.0
