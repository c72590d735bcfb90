"""Holm against statsmodels and the vectors that broke other implementations."""

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from analysis.holm import holm


@pytest.mark.parametrize(
    ("raw", "adjusted"),
    [
        ([0.01, 0.011], [0.02, 0.02]),  # monotone: the second is not 0.011
        ([1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]),  # nothing is significant
        ([0.001, 0.002, 0.003], [0.003, 0.004, 0.004]),  # everything is
        ([0.04], [0.04]),
        ([0.02, 0.02, 0.02], [0.06, 0.06, 0.06]),
        ([0.9, 0.01, 0.6], [1.0, 0.03, 1.0]),  # order kept, capped at 1
        ([], []),
    ],
)
def test_known_families_have_their_known_adjustment(raw, adjusted):
    assert holm(raw).tolist() == pytest.approx(adjusted)


@pytest.mark.parametrize("seed", range(20))
def test_random_families_agree_with_statsmodels(seed):
    rng = np.random.default_rng(seed)
    raw = rng.choice(np.append(rng.uniform(size=8) ** 3, [0.0, 1.0, 0.01, 0.01]), 17)
    expected = multipletests(raw, method="holm")[1]
    np.testing.assert_allclose(holm(raw), expected, rtol=1e-12)


def test_a_test_that_could_not_be_done_stays_unknown_and_keeps_its_place():
    # Three tests, one unknown: the smallest known p is still multiplied by 3.
    adjusted = holm([0.01, np.nan, 0.02])
    np.testing.assert_allclose(adjusted, [0.03, np.nan, 0.04])


@pytest.mark.parametrize("seed", range(20))
def test_an_unknown_p_only_ever_leaves_upper_bounds(seed):
    rng = np.random.default_rng(seed)
    raw = rng.uniform(size=6) ** 2
    unknown = raw.copy()
    unknown[2] = np.nan
    bounds = np.delete(holm(unknown), 2)
    assert (bounds >= np.delete(holm(raw), 2) - 1e-15).all()


@pytest.mark.parametrize("value", [-0.1, 1.5])
def test_a_value_that_is_no_p_is_refused(value):
    with pytest.raises(ValueError, match=rf"p value 1 must be in \[0, 1\], got {value}"):
        holm([0.5, value])
