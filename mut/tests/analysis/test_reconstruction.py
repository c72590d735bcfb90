"""What printed adjusted p say about raw ones, by hand and against Holm itself."""

from fractions import Fraction

import numpy as np
import pytest

from analysis.errors import AnalysisError
from analysis.holm import holm
from analysis.published import PrintedNumber
from analysis.reconstruction import holm_exact, on_grid, rank_groups
from analysis.tables.extension_paper import raw_p, rejections


def in_units(groups):
    return [(group.names, int(group.first * 4096), int(group.last * 4096)) for group in groups]


def test_a_printed_p_is_the_one_multiple_that_is_printed_so():
    assert on_grid(PrintedNumber(text="0.01074219"), 4096) == Fraction(44, 4096)
    assert on_grid(PrintedNumber(text="0.5469"), 512) == Fraction(280, 512)


@pytest.mark.parametrize("text", ["0.0108", "0.01"])
def test_a_printed_p_between_the_multiples_or_over_several_is_refused(text):
    # 44/4096 = 0.01074..., 45/4096 = 0.01098...; "0.01" rounds 39 to 43.
    with pytest.raises(AnalysisError, match=rf"{text} fits \d multiples of 1/4096"):
        on_grid(PrintedNumber(text=text), 4096)


def test_the_first_of_a_rank_group_is_forced_and_bounds_the_others():
    # Three tests: 3 x 2 = 6 for two of them (counts 2 and 2 or 3 -> 2), then 1 x 10 for the last.
    unit = Fraction(1, 4096)
    adjusted = {"a": 6 * unit, "b": 6 * unit, "c": 10 * unit}
    assert in_units(rank_groups(adjusted, 4096)) == [(("a", "b"), 2, 2), (("c",), 10, 10)]


def test_adjusted_p_that_no_even_counts_give_are_refused():
    with pytest.raises(AnalysisError, match="no even counts of 4096"):
        rank_groups({"a": Fraction(3, 4096)}, 4096)


def test_exact_holm_is_holm():
    rng = np.random.default_rng(5)
    for _ in range(200):
        counts = 2 * rng.integers(1, 2049, size=rng.integers(1, 23))
        raw = {str(i): Fraction(int(count), 4096) for i, count in enumerate(counts)}
        exact = [float(p) for p in holm_exact(raw).values()]
        assert exact == pytest.approx(holm(counts / 4096).tolist(), rel=1e-15)


def test_rank_groups_hold_the_raw_p_that_they_came_from():
    rng = np.random.default_rng(6)
    for _ in range(200):
        counts = 2 * rng.integers(1, 60, size=8)
        raw = {str(i): Fraction(int(count), 4096) for i, count in enumerate(counts)}
        for group in rank_groups(holm_exact(raw), 4096):
            in_order = sorted(raw[name] for name in group.names)
            assert in_order[0] == group.first
            assert in_order[-1] <= group.last


@pytest.mark.parametrize(
    ("test", "count"), [("S2-S1-b108", 30), ("RM10-b108", 36), ("RM05-b63", 54)]
)
def test_the_grid_and_scenario_c_force_three_raw_p_of_the_extension(test, count):
    bounds = raw_p("current")[test]
    assert bounds.low == bounds.high == Fraction(count, 4096)


def test_the_seventeen_smallest_raw_p_of_the_extension_are_only_bounded():
    bounded = [raw for raw in raw_p("current").values() if raw.low == Fraction(2, 4096)]
    assert len(bounded) == 17
    assert {raw.high for raw in bounded} == {Fraction(6, 4096)}


def test_table_b6_forces_both_raw_p_on_eleven_seeds():
    raw = raw_p("complete_case")
    assert raw["S1-S0-b108"].low == raw["S1-S0-b108"].high == Fraction(2, 2048)
    assert raw["S2-S1-b108"].low == raw["S2-S1-b108"].high == Fraction(14, 2048)


@pytest.mark.parametrize(
    ("adoption", "count"), [("current", 20), ("complete_case", 20), ("invalid", 16)]
)
def test_rejections_follow_from_the_smallest_and_from_the_largest_raw_p(adoption, count):
    # The counts of Table E-17, whichever of the bounded raw p is true.
    raw = raw_p(adoption)
    assert rejections({name: bounds.low for name, bounds in raw.items()}) == count
    rejected = {name: bounds.high for name, bounds in raw.items() if bounds.high < Fraction(1, 20)}
    assert rejections({name: bounds.low for name, bounds in raw.items()} | rejected) == count
