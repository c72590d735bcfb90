"""Intervals against tables, closed forms and simulated coverage."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.effects import log_effect_percent
from analysis.intervals import bootstrap_mean, paired_t, paired_t_percent, standard_error


def rng():
    return np.random.default_rng(0)


def test_the_t_interval_of_three_values_is_the_textbook_one():
    # mean 2, s 1, t(0.95, df 2) = 2.91999: 2 +- 2.91999 / sqrt(3)
    interval = paired_t([1.0, 2.0, 3.0], level=0.90)
    assert (interval.low, interval.high) == pytest.approx((0.31415, 3.68585), abs=1e-5)


def test_the_t_interval_agrees_with_scipy():
    values = rng().normal(1.0, 2.0, 9)
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    interval = paired_t(values)
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))


def test_the_percent_interval_is_asymmetric_around_the_percent_effect():
    logs = pd.Series([math.log(1.1), math.log(1.2), math.log(1.3)])
    log, percent = paired_t(logs), paired_t_percent(logs)
    assert percent.high == pytest.approx(100 * (math.exp(log.high) - 1))
    effect = log_effect_percent(logs)
    assert percent.high - effect > effect - percent.low > 0


def test_containment_needs_both_ends_inside():
    inside = paired_t([-0.4, -0.2, -0.3], level=0.90)
    outside = paired_t([-3.0, 2.0, 0.5], level=0.90)
    assert inside.inside(-3.0, 3.0)
    assert not outside.inside(-3.0, 3.0)


@pytest.mark.parametrize(("low", "high"), [(-0.46, 0.0), (-1.0, -0.14)])
def test_an_interval_beyond_one_end_alone_is_not_inside(low: float, high: float) -> None:
    # -0.3 +- 2.920 x 0.1 / sqrt(3): -0.469 to -0.131.
    interval = paired_t([-0.4, -0.2, -0.3], level=0.90)
    assert interval.inside(-0.47, -0.13)
    assert not interval.inside(low, high)


def test_equal_values_give_a_point_that_says_it_is_degenerate():
    for interval in (bootstrap_mean([7.0] * 5, rng=rng()), paired_t([7.0] * 5)):
        assert (interval.low, interval.high, interval.degenerate) == (7.0, 7.0, True)


def test_a_single_value_has_no_t_interval_and_no_standard_error():
    with pytest.raises(ValueError, match="at least two values, got 1"):
        paired_t([1.0])
    assert standard_error([1.0]) is None
    assert bootstrap_mean([1.0], rng=rng()).degenerate


def test_the_standard_error_of_two_values_is_half_their_distance():
    assert standard_error([1.0, 3.0]) == pytest.approx(1.0)  # s = sqrt(2), n = 2


def test_the_bootstrap_repeats_with_its_generator_and_brackets_the_mean():
    values = rng().normal(3.0, 1.0, 12)
    one = bootstrap_mean(values, rng=rng())
    assert one == bootstrap_mean(values, rng=rng())
    assert one.low < values.mean() < one.high


def test_the_bootstrap_agrees_with_scipy():
    values = rng().normal(3.0, 1.0, 12)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", rng=1).confidence_interval
    ours = bootstrap_mean(values, rng=rng())
    # Two sets of 9,999 and 10,000 random resamples: equal within Monte Carlo noise.
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.03)


@pytest.mark.parametrize("values", [[], [1.0, np.nan], [1.0, np.inf]])
def test_values_that_no_interval_has_are_refused(values):
    with pytest.raises(ValueError, match="an interval needs"):
        bootstrap_mean(values, rng=rng())


@pytest.mark.slow
def test_t_intervals_of_normal_logs_cover_as_often_as_they_say():
    draws = rng().normal(0.1, 0.3, (4000, 6))
    covered = np.mean([paired_t(row).inside(-9, 9) and _holds(paired_t(row), 0.1) for row in draws])
    assert abs(covered - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 4000)


@pytest.mark.slow
def test_percentile_intervals_of_twelve_seeds_cover_a_little_less_than_they_say():
    generator = rng()
    draws = generator.normal(0.1, 0.3, (1500, 12))
    intervals = [bootstrap_mean(row, resamples=2000, rng=generator) for row in draws]
    covered = np.mean([_holds(interval, 0.1) for interval in intervals])
    # Theory for small n: the spread is that of n - 1 degrees of freedom without the t correction,
    # P(|t_11| < 1.96 sqrt(11 / 12)) = 0.914.
    expected = 2 * stats.t.cdf(1.959964 * math.sqrt(11 / 12), 11) - 1
    assert abs(covered - expected) < 4 * math.sqrt(0.91 * 0.09 / 1500)


def _holds(interval, value):
    return interval.low <= value <= interval.high
