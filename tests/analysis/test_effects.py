"""Paired effects by hand, and pairs that have no ratio."""

import math

import numpy as np
import pandas as pd
import pytest

from analysis.effects import (
    UndefinedPairsError,
    differences,
    geometric_mean,
    log_effect_percent,
    log_ratios,
    pair_up,
    relative_changes,
)
from analysis.errors import AnalysisError


def by_seed(*values):
    return pd.Series(values, index=range(len(values)), dtype=float)


def test_relative_changes_are_formed_within_seeds_before_averaging():
    pairs = pair_up(by_seed(110.0, 90.0), by_seed(100.0, 100.0))
    assert relative_changes(pairs).tolist() == pytest.approx([10.0, -10.0])
    # The ratio of means would be 1; swapping the arms does not mirror the percentages.
    swapped = relative_changes(pair_up(by_seed(100.0, 100.0), by_seed(110.0, 90.0)))
    assert swapped.mean() == pytest.approx((100 / 110 + 100 / 90 - 2) * 50)


def test_log_ratios_mirror_when_the_arms_are_swapped():
    pairs = pair_up(by_seed(2.0, 3.0), by_seed(1.0, 4.0))
    assert log_ratios(pairs).tolist() == pytest.approx([math.log(2), math.log(0.75)])
    mirrored = log_ratios(pair_up(by_seed(1.0, 4.0), by_seed(2.0, 3.0)))
    assert mirrored.tolist() == pytest.approx([-math.log(2), -math.log(0.75)])


def test_a_tiny_effect_keeps_its_digits():
    pairs = pair_up(by_seed(1.0 + 1e-12), by_seed(1.0))
    assert log_ratios(pairs)[0] == pytest.approx(1e-12, rel=1e-3)


def test_equal_arms_have_exactly_no_effect():
    pairs = pair_up(by_seed(0.1, 0.7), by_seed(0.1, 0.7))
    assert log_ratios(pairs).tolist() == [0.0, 0.0]


def test_pairs_are_matched_by_seed_and_not_by_position():
    numerator = pd.Series({7: 2.0, 5: 3.0})
    denominator = pd.Series({5: 1.0, 7: 1.0})
    assert relative_changes(pair_up(numerator, denominator)).to_dict() == {5: 200.0, 7: 100.0}


@pytest.mark.parametrize(
    ("numerator", "denominator", "why"),
    [
        (0.0, 5.0, "the numerator is 0.0"),
        (5.0, 0.0, "the denominator is 0.0"),
        (0.0, 0.0, "the numerator is 0.0, the denominator is 0.0"),
        (np.nan, 5.0, "the numerator is missing"),
        (np.inf, 5.0, "the numerator is inf"),
        (5.0, -1.0, "the denominator is -1.0"),
    ],
)
def test_a_pair_without_a_ratio_is_counted_and_named(numerator, denominator, why):
    pairs = pair_up(by_seed(4.0, numerator), by_seed(2.0, denominator))
    assert pairs.num_pairs == 2
    assert dict(pairs.undefined) == {1: why}
    for effect in (relative_changes, log_ratios):
        with pytest.raises(UndefinedPairsError, match=f"1 of 2 pairs have no ratio: seed 1: {why}"):
            effect(pairs)


def test_a_seed_that_only_one_arm_has_is_an_undefined_pair():
    pairs = pair_up(pd.Series({1: 2.0, 2: 2.0}), pd.Series({1: 1.0}))
    assert dict(pairs.undefined) == {2: "the denominator is missing"}


def test_complete_cases_average_the_rest_and_keep_the_others_on_record():
    pairs = pair_up(by_seed(4.0, 0.0, 6.0), by_seed(2.0, 5.0, 2.0)).complete_cases()
    assert relative_changes(pairs).tolist() == [100.0, 200.0]
    assert dict(pairs.excluded) == {1: "the numerator is 0.0"}
    assert pairs.num_pairs == 3


def test_a_seed_that_stands_twice_is_refused():
    twice = pd.Series([1.0, 2.0], index=[3, 3])
    with pytest.raises(AnalysisError, match="seed 3 appears twice in the numerator"):
        pair_up(twice, by_seed(1.0))


def test_an_interaction_subtracts_within_seeds():
    assert differences(by_seed(0.5, 0.1), by_seed(0.2, 0.3)).tolist() == pytest.approx([0.3, -0.2])


def test_an_interaction_of_different_seeds_names_them():
    with pytest.raises(UndefinedPairsError, match=r"missing for \[1\]"):
        differences(by_seed(0.5, 0.1), by_seed(0.2))


def test_geometric_means_multiply():
    assert geometric_mean(by_seed(1.0, 4.0)) == pytest.approx(2.0)
    assert geometric_mean(by_seed(2.0, 4.0, 8.0)) == pytest.approx(4.0)


@pytest.mark.parametrize("value", [0.0, np.nan, -1.0, np.inf])
def test_one_bad_value_stops_a_geometric_mean_and_is_named(value):
    with pytest.raises(UndefinedPairsError, match=f"1: {value}"):
        geometric_mean(by_seed(5.0, value))


def test_the_percent_effect_of_mean_logs_is_their_geometric_ratio():
    logs = pd.Series([math.log(1.2), math.log(1.8)])
    assert log_effect_percent(logs) == pytest.approx(100 * (math.sqrt(1.2 * 1.8) - 1))
