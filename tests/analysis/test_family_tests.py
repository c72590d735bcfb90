"""Declared families on hand data: two looks, scales, interactions, runs in doubt."""

import pytest
from toy_ledgers import by_organization, original_five, throughput, write_block

from analysis import config as configs
from analysis.family_tests import (
    adjusted_p,
    component_changes,
    family_tests,
    sequential_p,
)
from analysis.ledgers import Ledgers
from analysis.published import published_value

SIZES = {
    "original5": ("B.5", "original comparisons"),
    "extension22": ("B.5", "extension family tests"),
    "pinning2": ("B.2", "pinning primary Holm family size"),
}


@pytest.mark.parametrize("name", SIZES)
def test_a_declared_family_has_the_size_that_the_paper_gives(name):
    assert configs.family(name).size == published_value("text", *SIZES[name])


def test_the_extension_is_made_of_the_contrasts_that_the_paper_counts():
    family = configs.family("extension22")
    kinds = [contrast.campaign for contrast in family.contrasts]
    stepwise, budget, split = (kinds.count(name) for name in ("q1", "q4", "split_sweep"))
    endings = [interaction.id.split("-")[-1] for interaction in family.interactions]
    counts = {
        "stepwise contrasts": stepwise,
        "D0-S2 budget contrasts": budget,
        "split contrasts": split,
        "budget interactions": len(endings) - endings.count("sharing"),
        "sharing-endpoint interactions": endings.count("sharing"),
    }
    for name, count in counts.items():
        assert count == published_value("text", "B.5", f"extension family: {name}"), name


def test_every_contrast_names_a_block_whose_axes_its_arms_fix():
    for name in SIZES:
        family = configs.family(name)
        for contrast in (*family.contrasts, *family.components):
            design = configs.block_design(contrast.campaign, contrast.block)
            for arm in (contrast.numerator, contrast.denominator):
                axes = design.whole(arm.at(contrast.at)).axes
                assert axes.keys() == design.axes.keys(), contrast.id
                assert all(axes[axis] in values for axis, values in design.axes.items())


def test_every_published_value_that_a_family_names_is_there():
    for name in SIZES:
        family = configs.family(name)
        for test in (*family.contrasts, *family.components, *family.interactions):
            for place in (test.published_change, test.published_p):
                assert place is None or published_value(*place) is not None


@pytest.mark.parametrize(
    ("looks", "p"),
    [
        ([0.03125, 0.00390625], 0.0078125),
        ([0.0625], 0.125),
        ([0.7, 0.6], 1.0),
    ],
)
def test_two_looks_double_the_smaller_p(looks, p):
    assert sequential_p(looks, 2) == p


def test_the_original_five_take_six_and_nine_seeds_and_one_look_where_there_are_six(tmp_path):
    ledgers = original_five(tmp_path)
    tests = family_tests(configs.family("original5"), ledgers.of)
    assert [[look.n for look in test.looks] for test in tests] == [[6], *([[6, 9]] * 4)]
    # D0 always slower: p6 = 2/64 and p9 = 2/512; doubled 1/16 and 1/128. Holm over five: 5/128
    # four times, 1/16 last.
    assert [test.p_value for test in tests] == [1 / 16, *([1 / 128] * 4)]
    assert adjusted_p(tests).tolist() == [1 / 16, *([5 / 128] * 4)]
    assert all(test.mean_change == pytest.approx(-10.0) for test in tests)


def test_the_first_look_takes_the_lowest_seeds(tmp_path):
    seeds = sorted(configs.block_design("cap_ladder", "b63_cap8").seeds)

    def value(arm, seed):
        slow = 90.0 if seed in seeds[:6] else 110.0
        return throughput(slow if arm.organization == "d0" else 100.0)

    write_block(tmp_path, "cap_ladder", "b63_cap8", value)
    family = configs.family("original5")
    contrasts = tuple(each for each in family.contrasts if each.campaign == "cap_ladder")
    (test,) = family_tests(family.model_copy(update={"contrasts": contrasts}), Ledgers(tmp_path).of)
    # Six times -10: 2 of 64. Nine with three times +10: at least as far from 0 as -30 are the sums
    # with at most three or at least six of a sign, 2 x (1 + 9 + 36 + 84) of 512.
    assert [look.p_value for look in test.looks] == [2 / 64, 260 / 512]


def test_relative_changes_and_log_ratios_can_have_different_p(tmp_path):
    # Gaps of +100 and five times -25 %: relative changes add up to -25, logs to -0.745.
    gains = [2.0, 0.75, 0.75, 0.75, 0.75, 0.75]

    def value(arm, seed):
        return throughput(gains[seed] if arm.organization == "d0" else 1.0)

    write_block(tmp_path, "q5", "expanded_b63", value)
    family = configs.family("original5").model_copy(
        update={"contrasts": configs.family("original5").contrasts[:1], "looks": ()}
    )
    ledgers = Ledgers(tmp_path)
    (relative,) = family_tests(family, ledgers.of)
    (log,) = family_tests(family.model_copy(update={"scale": "log ratio"}), ledgers.of)
    # Signed sums of {100, 25 x 5} are odd multiples of 25: none is nearer to 0 than the observed.
    assert relative.p_value == 1.0
    # {0.693, 0.288 x 5}, observed |0.693 - 1.438| = 0.745. With +0.693 and 5, 4, 3, 2, 1, 0 pluses
    # among the five the sums are 2.13, 1.56, 0.98, 0.41, -0.17, -0.75: 1 + 5 + 10 + 1 count, twice.
    assert log.p_value == 2 * 17 / 64
    assert relative.mean_change == log.mean_change == pytest.approx(-25 / 6)


def test_an_interaction_is_the_difference_of_two_gaps(tmp_path):
    def value(arm, seed):
        slow = {"k3": 90.0, "k1": 95.0}.get(arm.pinning, 80.0)
        return throughput(slow if arm.organization == "d0" else 100.0)

    for block in ("b63", "b108"):
        write_block(tmp_path, "pinning", block, value)
    family, ledgers = configs.family("pinning2"), Ledgers(tmp_path)
    for test in family_tests(family, ledgers.of):
        assert test.mean_change == pytest.approx(5.0)
        assert (test.unit, test.p_value) == ("pp", 2 / 64)
    gaps = component_changes(family, ledgers.of)
    assert gaps["A-Roff"].mean_change == pytest.approx(-20.0)
    assert gaps["B-R2"].mean_change == pytest.approx(-5.0)


def test_an_interaction_is_tested_on_the_declared_scale_and_shown_in_percentage_points(tmp_path):
    # The gap under R2 alone varies: +100 % once, -25 % five times. p as for a single contrast.
    gains = [2.0, 0.75, 0.75, 0.75, 0.75, 0.75]

    def value(arm, seed):
        gap = (arm.organization, arm.pinning) == ("d0", "k1")
        return throughput(gains[seed - first_seed] if gap else 1.0)

    first_seed = min(configs.block_design("pinning", "b108").seeds)
    for block in ("b63", "b108"):
        write_block(tmp_path, "pinning", block, value)
    family, ledgers = configs.family("pinning2"), Ledgers(tmp_path)
    relative = family_tests(family, ledgers.of)
    log = family_tests(family.model_copy(update={"scale": "log ratio"}), ledgers.of)
    assert [test.p_value for test in relative] == [1.0, 1.0]
    assert [test.p_value for test in log] == [2 * 17 / 64] * 2
    for test in (*relative, *log):
        assert (test.unit, test.mean_change) == ("pp", pytest.approx(-25 / 6))


# -- adoption of runs in doubt -------------------------------------------------------------------

AFFECTED = ["S1-S0-b108", "S2-S1-b108"]


def stepwise(tmp_path, *, doubtful=150.0, left_out=lambda arm, seed: False):
    """Q1 alone: S0 100, S1 150, S2 160 tokens/s, but for the run in doubt."""

    def value(arm, seed):
        affected = (arm.organization, arm.budget, seed) == ("s1", "b108", 42004)
        speeds = {"s0": 100.0, "s1": 150.0, "s2": 160.0}
        return throughput(doubtful if affected else speeds[arm.organization])

    write_block(tmp_path, "q1", "main", value, left_out=left_out)
    return Ledgers(tmp_path)


def by_id(ledgers, adoption):
    tests = family_tests(configs.family("extension22"), ledgers.of, adoption=adoption)
    return {test.id: test for test in tests}


def test_the_current_adoption_counts_the_run_in_doubt(tmp_path):
    tests = by_id(stepwise(tmp_path, doubtful=50.0), "current")
    # Eleven seeds at +50 %, one at -50 %: mean (11 x 50 - 50) / 12.
    assert tests["S1-S0-b108"].n == 12
    assert tests["S1-S0-b108"].mean_change == pytest.approx(500 / 12)


def test_complete_cases_leave_the_seed_out_of_the_two_affected_contrasts_only(tmp_path):
    tests = by_id(stepwise(tmp_path, doubtful=50.0), "complete_case")
    for name, test in tests.items():
        if name in AFFECTED:
            assert (test.n, list(test.excluded)) == (11, [42004])
            assert test.p_value == 2 / 2048
        else:
            assert test.excluded == {}
    assert tests["S1-S0-b108"].mean_change == pytest.approx(50.0)
    assert tests["S1-S0-b63"].n == 12


def test_an_invalid_run_makes_its_contrasts_inestimable_with_p_one(tmp_path):
    tests = by_id(stepwise(tmp_path), "invalid")
    for name in AFFECTED:
        assert (tests[name].mean_change, tests[name].p_value) == (None, 1.0)
        assert tests[name].missing == ()
    assert tests["S1-S0-b63"].p_value == 2 / 4096


@pytest.mark.parametrize("adoption", ["current", "complete_case", "invalid"])
def test_every_scenario_keeps_the_size_of_the_family(tmp_path, adoption):
    tests = family_tests(configs.family("extension22"), stepwise(tmp_path).of, adoption=adoption)
    assert len(tests) == 22
    # Six, six and four tests have the smallest p; the multiplier of the first stays 22.
    first = next(p for p, test in zip(adjusted_p(tests), tests, strict=True) if test.n == 12)
    assert first == 22 * 2 / 4096


def test_a_run_in_doubt_that_is_not_there_is_no_gap_once_its_seed_is_left_out(tmp_path):
    ledgers = stepwise(
        tmp_path,
        left_out=lambda arm, seed: (arm.organization, arm.budget, seed) == ("s1", "b108", 42004),
    )
    assert by_id(ledgers, "current")["S1-S0-b108"].missing == ("S1 b108 seed 42004: not run",)
    assert by_id(ledgers, "current")["S1-S0-b108"].p_value is None
    complete = by_id(ledgers, "complete_case")["S1-S0-b108"]
    assert (complete.missing, complete.n) == ((), 11)


@pytest.mark.parametrize("doubtful", ["minuend", "subtrahend"])
def test_an_affected_part_takes_its_seed_out_of_the_whole_interaction(tmp_path, doubtful):
    # Declared as hand data: the S1 run of b108 is part of an interaction with b63.
    family = configs.family("extension22")
    contrasts = tuple(each for each in family.contrasts if each.id.startswith("S1-S0"))
    other = {"minuend": "subtrahend", "subtrahend": "minuend"}[doubtful]
    interaction = family.interactions[0].model_copy(
        update={"id": "steps", doubtful: "S1-S0-b108", other: "S1-S0-b63"}
    )
    part = family.model_copy(update={"contrasts": contrasts, "interactions": (interaction,)})
    ledgers = stepwise(tmp_path, doubtful=50.0)
    *_, test = family_tests(part, ledgers.of, adoption="complete_case")
    assert (test.n, list(test.excluded)) == (11, [42004])
    assert test.mean_change == pytest.approx(0.0)
    *_, test = family_tests(part, ledgers.of, adoption="invalid")
    assert (test.p_value, test.changes) == (1.0, None)


def test_a_family_without_a_campaign_keeps_the_others_and_says_what_is_missing(tmp_path):
    write_block(
        tmp_path,
        "q4",
        "budget",
        by_organization(dict.fromkeys(["s0", "s1", "s2"], 1.0) | {"d0": 2.0}),
    )
    tests = by_id(Ledgers(tmp_path), "current")
    assert tests["D0-S2-b63"].p_value == 2 / 4096
    assert tests["S1-S0-b63"].p_value is None
    assert "campaign q1" in tests["S1-S0-b63"].missing[0]
