"""The sign-flip test against full rational enumeration, SciPy, and inputs that broke others."""

from fractions import Fraction
from itertools import permutations, product

import numpy as np
import pandas as pd
import pytest
from scipy.stats import permutation_test

from analysis.signflip import sign_flip_test


def enumerated(values):
    """Share of all sign assignments with |sum| >= |observed sum|, in exact rational arithmetic.

    A float stands for the decimal it prints as, so that 0.1 + 0.2 equals 0.3.
    """
    exact = [Fraction(str(value)) for value in values]
    observed = abs(sum(exact))
    sums = {Fraction(0): 1}
    for value in exact:
        flipped = {}
        for total, count in sums.items():
            for signed in (total + value, total - value):
                flipped[signed] = flipped.get(signed, 0) + count
        sums = flipped
    extreme = sum(count for total, count in sums.items() if abs(total) >= observed)
    return Fraction(extreme, 2 ** len(exact))


@pytest.mark.parametrize(
    ("values", "p"),
    [
        ([0.0], 1.0),
        ([0] * 10, 1.0),
        ([3.5] * 10, 2 / 1024),  # all equal: only + and - everywhere are as extreme
        ([0.3] * 10, 2 / 1024),
        ([0.1, 0.2, -0.2], 1.0),  # |sum| 0.1 is the smallest there is
        ([0.1, 0.2, -0.1], 0.75),
        ([1, 2, -3], 1.0),
        ([0.1, 0.2, -0.3, 0.4], 0.625),  # 0.4 ties with 0.1 + 0.2 - 0.3 - 0.4
        ([1, -1], 1.0),
        ([5.0], 1.0),
        ([0.0, 0.0, 2.0, 3.0], 0.5),
        ([1e16, 1, -1], 0.75),  # whole numbers are exact at any size
        ([1e300, 1, -1], 0.75),
        ([1e-320, 2e-320], 0.5),
    ],
)
def test_known_inputs_have_their_known_p(values, p):
    assert sign_flip_test(values).p_value == p


@pytest.mark.parametrize("values", [[0.1, 0.2, -0.2], [0.1, 0.2, -0.1], [0.1, 0.2, -0.3, 0.4]])
def test_every_order_and_every_overall_sign_gives_the_same_p(values):
    results = {sign_flip_test(order).p_value for order in permutations(values)}
    results |= {sign_flip_test([-value for value in values]).p_value}
    assert len(results) == 1


@pytest.mark.parametrize("seed", range(40))
def test_random_inputs_agree_with_rational_enumeration(seed):
    rng = np.random.default_rng(seed)
    for _ in range(50):
        n = int(rng.integers(1, 11))
        kind = rng.integers(0, 5)
        if kind == 0:
            values = rng.integers(-4, 5, n)  # many ties
        elif kind == 1:
            values = rng.integers(-9, 10, n) / 10  # decimal ties
        elif kind == 2:
            values = rng.normal(0.3, 1.0, n).round(2)
        elif kind == 3:
            values = rng.choice([0.0, 0.07, -0.07], n)  # zeros and mirror images
        else:
            values = rng.normal(0.0, 10.0 ** rng.integers(-9, 9), n)
        assert sign_flip_test(values).p_value == enumerated(values.tolist()), values


def test_fractions_are_tested_exactly():
    values = [Fraction(1, 3), Fraction(2, 3), Fraction(-1, 3)]
    signed = [
        abs(sum(s * v for s, v in zip(signs, values, strict=True)))
        for signs in product((1, -1), repeat=3)
    ]
    extreme = sum(total >= Fraction(2, 3) for total in signed)
    assert sign_flip_test(values).p_value == extreme / 8


def test_numbers_of_every_kind_are_taken():
    for values in (np.array([1, 2, 4]), [np.float32(1), 2, 4.0], pd.Series([1.0, 2.0, 4.0])):
        assert sign_flip_test(values).p_value == 0.25  # only +++ and --- reach 7


@pytest.mark.parametrize("seed", range(5))
def test_scipy_finds_the_same_p_by_enumeration(seed):
    values = np.random.default_rng(seed).normal(0.4, 1.0, 9)
    result = permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=True
    )
    assert sign_flip_test(values).p_value == pytest.approx(result.pvalue, rel=1e-12)


def test_twelve_seeds_give_multiples_of_two_in_4096():
    result = sign_flip_test(np.random.default_rng(0).normal(0.5, 1.0, 12))
    assert (result.method, result.num_assignments) == ("exact", 4096)
    assert result.num_extreme % 2 == 0
    assert result.p_value == result.num_extreme / 4096


def test_twenty_four_differences_are_enumerated():
    # All magnitudes are 1, so |sum| >= 12 needs at most 6 minus or at most 6 plus signs.
    result = sign_flip_test([1] * 18 + [-1] * 6)
    binomials = [1, 24, 276, 2024, 10626, 42504, 134596]
    assert result.method == "exact"
    assert result.num_extreme == 2 * sum(binomials)


def test_beyond_the_limit_the_result_is_labelled_monte_carlo_and_never_zero():
    small_and_large = [0.01] * 18 + [5.0] * 42
    result = sign_flip_test(small_and_large)
    assert result.method == "Monte Carlo"
    assert result.n == 60
    assert result.p_value == result.num_extreme / result.num_assignments
    assert result.p_value >= 1 / 100_000 > 2 / 2**60
    shuffled = np.random.default_rng(1).permutation(small_and_large)
    assert sign_flip_test(shuffled) == result


def test_monte_carlo_does_not_depend_on_the_order_of_the_differences():
    values = np.random.default_rng(4).normal(0.15, 1.0, 40)
    result = sign_flip_test(values)
    assert 0.01 < result.p_value < 0.99
    assert sign_flip_test(values[::-1]) == result


def test_monte_carlo_is_close_to_the_enumeration_it_replaces():
    values = np.random.default_rng(5).normal(0.3, 1.0, 16)
    exact = sign_flip_test(values)
    sampled = sign_flip_test(values, max_exact=10, rng=np.random.default_rng(2))
    assert sampled.method == "Monte Carlo"
    # Five standard errors of a share of 99,999 draws.
    p = exact.p_value
    assert abs(sampled.p_value - p) < 5 * np.sqrt(p * (1 - p) / 99_999)


def test_the_limit_can_be_raised():
    assert sign_flip_test([1.0] * 30, max_exact=32).num_assignments == 2**30


def test_a_difference_that_is_not_finite_is_named():
    with pytest.raises(ValueError, match="difference 1 must be finite, got nan"):
        sign_flip_test([0.1, float("nan")])
    with pytest.raises(ValueError, match="difference 0 must be finite, got inf"):
        sign_flip_test([float("inf"), 1.0])
    with pytest.raises(ValueError, match="at least one difference"):
        sign_flip_test([])


@pytest.mark.slow
def test_under_the_null_hypothesis_rejections_are_as_rare_as_promised():
    rng = np.random.default_rng(11)
    draws = rng.normal(0.0, 1.0, (20_000, 8)) * rng.uniform(0.2, 3.0, (20_000, 8))
    rejected = np.mean([sign_flip_test(row).p_value <= 0.05 for row in draws])
    # 12 of 256 assignments are allowed: 0.046875, and 5 standard errors of 20,000 draws.
    assert abs(rejected - 12 / 256) < 5 * np.sqrt(0.047 * 0.953 / 20_000)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_the_least_number_of_an_integer_type_keeps_its_magnitude(dtype):
    # abs(int8(-128)) is -128. For int8 the sums are 131, 129, 127 and 125, twice each; the observed
    # one is 129.
    least = int(np.iinfo(dtype).min)
    assert sign_flip_test(np.array([least, 1, -2], dtype=dtype)).p_value == 0.5


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_unsigned_differences_are_not_summed_in_their_own_width(dtype):
    most = int(np.iinfo(dtype).max)
    result = sign_flip_test(np.array([most] * 4, dtype=dtype))
    assert (result.p_value, result.num_extreme) == (2 / 16, 2)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
def test_whole_floats_of_any_width_are_exact(dtype):
    assert sign_flip_test(np.array([1.0, 2.0, -3.0], dtype=dtype)).p_value == 1.0
    assert sign_flip_test(np.array([3.0] * 10, dtype=dtype)).p_value == 2 / 1024


def test_ties_of_short_floats_are_not_split_by_their_rounding():
    # The observed sum is -0.4, and 0.4 + 0.4 - 0.3 - 0.1 ties with it, but not in 32 bits.
    values = [-0.4, -0.3, -0.1, 0.4]
    short = np.array(values, dtype=np.float32)
    assert sign_flip_test(short).p_value == enumerated(values) == 0.75
    assert sign_flip_test([Fraction(float(value)) for value in short]).p_value == 0.625


def test_a_whole_number_beyond_all_floats_is_exact():
    huge = 10**400
    assert sign_flip_test([huge, 1, -1]).p_value == 0.75
    assert sign_flip_test([huge, huge]).p_value == 0.5
    assert sign_flip_test([huge, 0.5]).p_value == 1.0  # 0.5 is nothing beside it
    assert sign_flip_test([Fraction(np.int8(-128), np.int8(3)), Fraction(1, 3)]).p_value == 1.0


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, "True"),
        (np.True_, r"np\.True_"),
        (None, "None"),
        ("1", "'1'"),
        (1 + 0j, r"\(1\+0j\)"),
    ],
)
def test_what_is_no_number_is_refused_by_its_place(value, shown):
    with pytest.raises(ValueError, match=f"difference 1 must be a number, got {shown}"):
        sign_flip_test([0.5, value])
