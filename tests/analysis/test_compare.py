"""The comparison with the paper: hand-counted errors, and nothing missing without a name."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from recorded import record, row

from analysis.__main__ import main
from analysis.command import run
from analysis.compare.estimates import Comparison, Estimate, measure
from analysis.compare.formula import evaluate, names_in
from analysis.compare.goals import Errors
from analysis.compare.page import compare, page
from analysis.compare.sensitivity import sensitivity_table
from analysis.compare.sources import Sources
from analysis.compare.targets import Group, NoiseGoal, Targets, TargetSet, load_targets
from analysis.config import block_design
from analysis.errors import AnalysisError, NoRunsError
from analysis.published import published_value

THROUGHPUT = "throughput_tok_per_s"
PUBLISHED = range(42000, 42012)
"""Seeds of Q1's main block."""


def target_set(**changes):
    """E-4's throughput of S1, which is at b108; here it only has to be some printed number."""
    return TargetSet.parse(
        {
            "group": "levels",
            "tag": "tuned",
            "table": "E-4",
            "quantity": "throughput",
            "campaign": "q1",
            "block": "main",
            "metric": THROUGHPUT,
            "at": {"budget": "b63"},
            "lines": [
                {"rows": ["mean_throughput"], "columns": ["S1"], "arm": {"organization": "s1"}}
            ],
        }
        | changes
    )


def over(measure, **changes):
    """S1 against S0."""
    line = {
        "rows": ["mean_throughput"],
        "columns": ["S1"],
        "arm": {"organization": "s1"},
        "over": {"organization": "s0"},
    }
    return target_set(measure=measure, lines=[line], **changes)


def targets(*sets, goals=()):
    return Targets.parse(
        {
            "title": "A page",
            "groups": {"levels": {"title": "Levels", "unit": "tok/s", "error": "%"}},
            "goals": list(goals),
            "families": [],
            "confirmations": {},
            "printed": {},
            "sets": [each.model_dump() for each in sets],
        }
    )


@pytest.fixture
def root(tmp_path):
    """S0 has 100 and 110, S1 150 and 154, on two published seeds."""
    rows = [
        row(organization, seed, **{THROUGHPUT: value, "num_requests": 10})
        for organization, values in (("s0", (100.0, 110.0)), ("s1", (150.0, 154.0)))
        for seed, value in zip(PUBLISHED, values, strict=False)
    ]
    record(tmp_path / "q1" / "sim", "q1", rows)
    return tmp_path


def measured(root, targets, **options):
    sources = Sources(root, engine="sim", **options)
    line = targets.lines[0]
    return measure(targets, line, sources.runs(*targets.place(line)))


# -- estimates -----------------------------------------------------------------------------------


def test_a_mean_comes_with_the_standard_error_over_seeds(root):
    estimate = measured(root, target_set())
    assert (estimate.value, estimate.n) == (152.0, 2)
    # Deviations -2 and 2: variance 8, standard error sqrt(8 / 2).
    assert estimate.standard_error == pytest.approx(2.0)


def test_a_change_is_the_mean_of_seedwise_changes_in_percent(root):
    assert measured(root, over("change")).value == pytest.approx((50.0 + 40.0) / 2)


def test_a_change_of_means_divides_the_means(root):
    estimate = measured(root, over("change of means"))
    assert estimate.value == pytest.approx(100 * (304 / 210 - 1))
    # Residuals 150 - R 100 and 154 - R 110 are opposite; their size over the mean 105 is 1 seed's.
    residual = 150 - 304 / 210 * 100
    assert estimate.deviation == pytest.approx(100 * math.sqrt(2) * residual / 105)


def test_a_log_change_is_the_geometric_mean_ratio(root):
    estimate = measured(root, over("log change"))
    assert estimate.value == pytest.approx(100 * (math.sqrt(1.5 * 1.4) - 1))


def test_differences_and_ratios_are_taken_seed_by_seed(root):
    assert measured(root, over("difference")).value == pytest.approx((50 + 44) / 2)
    assert measured(root, over("ratio")).value == pytest.approx((1.5 + 1.4) / 2)


def test_a_metric_can_be_divided_by_another_run_by_run(root):
    assert measured(
        root, target_set(metric=f"{THROUGHPUT} / num_requests", factor=3.0)
    ).value == pytest.approx(45.6)


def test_one_seed_has_no_standard_error(root):
    estimate = measured(root, target_set(), seeds=(42000,))
    assert (estimate.value, estimate.standard_error, estimate.n) == (150.0, None, 1)


def test_a_mean_with_a_missing_seed_is_no_mean(root):
    assert measured(root, target_set(), seeds=(42000, 42001, 42002)).value is None


def comparison(value, *, deviation=None, error="%", unit="tok/s"):
    each = target_set()
    return Comparison(
        targets=each,
        line=each.lines[0],
        group=Group(title="Levels", unit=unit, error=error),
        estimate=Estimate(value=value, deviation=deviation, n=2),
        published=200.0,
        num_published_seeds=4,
    )


def test_an_error_is_relative_to_the_paper_or_a_difference_as_the_group_says():
    assert comparison(210.0).error == pytest.approx(5.0)
    assert comparison(210.0, error="pp").error == pytest.approx(10.0)
    assert comparison(None).error is None


def test_noise_counts_the_seeds_of_both_sides():
    # sqrt(1/2 + 1/4) of a deviation of 4 tok/s is 3.46, in percent of 200 half of that.
    assert comparison(210.0, deviation=4.0).noise == pytest.approx(2 * math.sqrt(0.75))
    assert comparison(210.0).noise is None


# -- which runs ----------------------------------------------------------------------------------


def test_published_seeds_are_taken_where_the_ledger_has_any_and_the_absent_ones_are_named(root):
    record(root / "q1" / "sim", "q1", [row("s1", 7, **{THROUGHPUT: 1.0})])
    sources = Sources(root, engine="sim")
    assert sources.runs("q1", "main").seeds == (42000, 42001)
    assert sources.narrowed == ["campaign q1, main: no seed 42002-42011"]


def test_a_ledger_of_other_seeds_gives_all_that_it_has(tmp_path):
    seeds = range(9000, 9032)
    rows = [row("s1", seed, **{THROUGHPUT: float(seed)}) for seed in seeds]
    record(tmp_path / "q1" / "sim", "q1", rows)
    estimate = measured(tmp_path, target_set())
    assert (estimate.n, estimate.value) == (32, 9015.5)


def test_all_seeds_of_the_ledger_can_be_asked_for(root):
    record(root / "q1" / "sim", "q1", [row("s1", 7, **{THROUGHPUT: 164.0})])
    assert measured(root, target_set(), seeds="all").n == 3


def test_only_the_ledger_of_the_engine_asked_for_is_read(root):
    record(root / "q1" / "vllm", "q1", [row("s1", 42000, **{THROUGHPUT: 1.0})], engine="vllm")
    assert measured(root, target_set()).value == 152.0


def test_a_campaign_without_a_ledger_is_named_and_the_others_are_compared(root):
    other = target_set(campaign="q4", block="budget")
    tables = page(targets(target_set(), other), Sources(root, engine="sim"))
    assert any("campaign=q4" in text for text in tables[-1].missing)
    assert tables[0].rows["n"].tolist() == [2, 0]


def test_a_metric_that_was_not_recorded_is_named(root):
    tables = page(targets(target_set(metric="k_records")), Sources(root, engine="sim"))
    assert tables[-1].missing[0] == "campaign q1: no k_records (S1 b63 seed 42000, 42001)"


def test_without_a_single_run_there_is_no_page(tmp_path):
    with pytest.raises(NoRunsError, match="there is no ledger"):
        page(targets(target_set()), Sources(tmp_path, engine="sim"))


# -- summary -------------------------------------------------------------------------------------


def test_tuned_and_held_out_errors_are_summed_up_apart_and_goals_are_judged_over_both(root):
    paper = published_value("E-4", "mean_throughput", "S1")
    factors = {"tuned": 1.01 * paper / 152.0, "held-out": 0.95 * paper / 152.0}
    goals = [
        {"title": "mean", "groups": ["levels"], "measure": "mean", "at_most": 3.5},
        {"title": "largest", "groups": ["levels"], "measure": "largest", "at_most": 4.0},
    ]
    sets = [target_set(tag=tag, factor=factor) for tag, factor in factors.items()]
    *_, errors, summary = page(targets(*sets, goals=goals), Sources(root, engine="sim"))
    assert errors.rows.set_index("tag")["mean"].to_dict() == pytest.approx(
        {"tuned": 1.0, "held-out": 5.0}
    )
    judged = summary.rows.set_index(["what", "tag"])
    assert judged.loc[("mean", "all"), "value"] == pytest.approx(3.0)
    assert judged["reached"].to_dict() == {
        ("mean", "all"): "reached",
        ("mean", "tuned"): "reached",
        ("mean", "held-out"): "not reached",
        ("largest", "all"): "not reached",
        ("largest", "tuned"): "reached",
        ("largest", "held-out"): "not reached",
    }


@pytest.mark.parametrize(("at_most", "is_named"), [(0.001, True), (100.0, False)])
def test_a_goal_that_is_not_reached_names_the_file_with_the_tries(root, at_most, is_named):
    goal = {"title": "mean", "groups": ["levels"], "measure": "mean", "at_most": at_most}
    declared = targets(target_set(), goals=[goal]).model_copy(update={"tries": "tries.md"})
    summary = page(declared, Sources(root, engine="sim"))[-1]
    assert any("tries.md" in note for note in summary.notes) == is_named


def test_the_tries_at_the_papers_goals_are_written_down():
    tries = Path(__file__).parents[2] / str(load_targets("paper").tries)
    assert "## Goals not reached" in tries.read_text(encoding="utf-8")


def test_a_goal_with_unmeasured_targets_is_reached_only_so_far(root):
    goal = {"title": "any", "groups": ["levels"], "measure": "mean", "at_most": 100.0}
    sets = (target_set(), target_set(metric="k_records"))
    summary = page(targets(*sets, goals=[goal]), Sources(root, engine="sim"))[-1]
    assert summary.rows.loc[0, "reached"] == "reached so far"


# -- the declared targets ------------------------------------------------------------------------


def test_every_target_names_one_printed_number_and_one_cell_of_its_block():
    declared = load_targets("paper")
    for each, line in declared.lines:
        published = each.published(line)
        assert published != 0.0 or declared.groups[each.group].error != "%", line
        design = block_design(*each.place(line))
        for arm in each.arms(line):
            whole = design.whole(arm)
            for axis, values in design.axes.items():
                assert getattr(whole, axis) in values, (each.table, line.name, axis)


def test_every_group_of_the_page_has_targets():
    declared = load_targets("paper")
    assert {each.group for each in declared.sets} == set(declared.groups)


def test_targets_of_one_number_are_declared_once():
    seen = [
        (
            each.table,
            line.rows,
            line.columns,
            each.column,
            each.quantity,
            line.over_row,
            each.place(line),
        )
        for each, line in load_targets("paper").lines
    ]
    assert len(seen) == len(set(seen))


# -- refusals ------------------------------------------------------------------------------------


def test_a_measure_of_two_arms_needs_both():
    with pytest.raises(ValueError, match="needs an `over`"):
        target_set(measure="change")
    with pytest.raises(ValueError, match="needs no `over`"):
        over("mean")


def test_a_group_must_be_declared():
    with pytest.raises(ValueError, match="groups depths are not declared"):
        targets(target_set(group="depths"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare=novel"], "compare novel is unknown; choose from paper"),
        (["compare=paper", "engine=abacus"], "engine must be sim or vllm, got abacus"),
        (["compare=paper", "seeds=few"], "seeds must be"),
        (["compare=paper", "ledger=here"], "argument ledger=here is unknown"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments, message):
    with pytest.raises(AnalysisError, match=message):
        main(arguments)


def test_the_page_is_printed_and_written_from_whatever_has_run(root, capsys):
    assert run(main, ["compare=paper", f"ledgers={root}", f"out={root / 'out'}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "python -m hsexp campaign=q6" in printed
    assert "S1/S0" in printed
    assert "D0-S2-b63" in printed
    names = {path.name for path in (root / "out").iterdir()}
    assert {"compare-numbers.csv", "compare-decisions.md", "compare-goals.tex"} <= names


def test_a_comparison_reads_each_target_once(root):
    sources = Sources(root, engine="sim")
    assert len(compare(targets(target_set(), over("change")), sources)) == 2
    assert len(sources.every) == 1


# -- formulas ------------------------------------------------------------------------------------


def test_a_formula_is_computed_seed_by_seed():
    values = {"a": pd.Series([6.0, 8.0]), "b": pd.Series([2.0, 4.0])}
    assert names_in("(a - b) / b + a") == ["a", "b"]
    assert evaluate("(a - b) / b + a", values.__getitem__).tolist() == [8.0, 9.0]


@pytest.mark.parametrize("formula", ["a +", "a ** b", "f(a)", "a / 2", "-a"])
def test_a_formula_has_only_metrics_and_four_operations(formula):
    with pytest.raises(ValueError, match="must be names joined by"):
        names_in(formula)


def test_a_change_is_of_one_metric():
    with pytest.raises(ValueError, match="a formula of metrics and measure change"):
        over("change", metric="a / b")


# -- statistics that depend on the number of seeds -----------------------------------------------


def effects(root, *values):
    """A ledger in which S1 is so many percent above S0, one seed a value."""
    rows = []
    for seed, value in zip(range(9000, 9000 + len(values)), values, strict=True):
        rows.append(row("s0", seed, **{THROUGHPUT: 100.0}))
        rows.append(row("s1", seed, **{THROUGHPUT: 100.0 + value}))
    record(root / "q1" / "sim", "q1", rows)
    return root


def test_of_the_papers_number_of_seeds_extremes_and_counts_are_exact(tmp_path):
    effects(tmp_path, *(-3.0, 5.0, 1.0, *[2.0] * 9))  # twelve seeds, as the block has
    found = {
        statistic: measured(tmp_path, over("change", statistic=statistic)).value
        for statistic in ("smallest", "largest", "positive", "negative")
    }
    assert found == pytest.approx(
        {"smallest": -3.0, "largest": 5.0, "positive": 11.0, "negative": 1.0}
    )


def test_of_more_seeds_extremes_and_counts_are_those_of_as_many_as_the_paper_has(tmp_path):
    effects(tmp_path, -20.0, *[1.0] * 23)  # half of all draws of 12 of 24 have the outlier
    smallest = measured(tmp_path, over("change", statistic="smallest"))
    negative = measured(tmp_path, over("change", statistic="negative"))
    assert smallest.n == 24
    assert smallest.value == pytest.approx((-20.0 + 1.0) / 2, abs=1.5)
    assert negative.value == pytest.approx(0.5, abs=0.1)


def test_an_interval_is_of_as_many_seeds_as_the_paper_has(tmp_path):
    effects(tmp_path, *[float(value) for value in range(-12, 12)])
    low, high = (
        measured(tmp_path, over("change", statistic=f"interval {end}")) for end in ("low", "high")
    )
    # Twelve of them scatter by 7: their mean by 2, so the interval is about 8 wide.
    assert high.value - low.value == pytest.approx(7.5, abs=0.7)


def test_an_interval_of_one_seed_is_unknown(tmp_path):
    effects(tmp_path, 3.0)
    assert measured(tmp_path, over("change", statistic="interval low")).value is None


def test_chance_is_the_scatter_of_both_sides(tmp_path):
    effects(tmp_path, *[float(value) for value in range(-12, 12)])
    estimate = measured(tmp_path, over("change"))
    both = estimate.deviation * math.sqrt(1 / 24 + 1 / 12)
    assert np.std(estimate.chance) == pytest.approx(both, rel=0.1)
    assert measured(effects(tmp_path / "one", 3.0), over("change")).chance is None


def test_a_second_pair_is_subtracted_seed_by_seed(root):
    pair = {"less_arm": {"organization": "s1"}, "less_over": {"organization": "s0"}}
    line = over("change").lines[0].model_dump() | pair
    assert measured(root, target_set(measure="change", lines=[line])).value == 0.0
    with pytest.raises(ValueError, match="only changes can have a second pair"):
        target_set(measure="difference", lines=[line])
    with pytest.raises(ValueError, match="a second pair has two arms"):
        target_set(measure="change", lines=[line | {"less_over": None}])


def test_the_largest_of_several_arms_is_taken_seed_by_seed(root):
    line = target_set().lines[0].model_dump() | {"others": [{"organization": "s0"}]}
    assert measured(root, target_set(lines=[line])).value == 152.0  # S1 is larger in both seeds


# -- seeds that lead -----------------------------------------------------------------------------


def test_numbers_of_the_same_runs_count_once_in_a_mean(root):
    paper = published_value("E-4", "mean_throughput", "S1")
    sets = [
        target_set(factor=1.06 * paper / 152.0),
        target_set(factor=1.02 * paper / 152.0, quantity="the same runs again"),
    ]
    errors = Errors.of(compare(targets(*sets), Sources(root, engine="sim")))
    assert (errors.num_targets, len(errors.apart)) == (2, 1)
    assert errors.mean == pytest.approx(4.0)


def test_a_goal_over_chance_is_judged_for_the_largest_and_the_median_group(root):
    declared = targets(target_set()).model_copy(
        update={"noise": NoiseGoal(largest=2.0, median=1.2)}
    )
    largest, median = page(declared, Sources(root, engine="sim"))[-1].rows.to_dict("records")
    errors = Errors.of(compare(declared, Sources(root, engine="sim")))
    assert largest["value"] == median["value"] == errors.mean / errors.expected
    assert (largest["reached"], largest["where"][:6]) == ("not reached", "Levels")


def test_fresh_seeds_lead_and_the_published_ones_stand_beside_them(root, capsys):
    fresh = [
        row(organization, seed, **{THROUGHPUT: value, "num_requests": 10})
        for organization, value in (("s0", 100.0), ("s1", 190.0))
        for seed in range(5000, 5032)
    ]
    record(root / "fresh" / "q1" / "sim", "q1", fresh)
    assert run(main, ["compare=paper", f"ledgers={root}", f"out={root / 'out'}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Ours is over 32 fresh seeds." in printed
    numbers = pd.read_csv(root / "out" / "compare-numbers.csv")
    stepwise = numbers[(numbers["table"] == "B-5") & (numbers["target"] == "b63")].iloc[0]
    assert (stepwise["n"], stepwise["ours"]) == (32, pytest.approx(90.0))
    assert (stepwise["published_seeds_n"], stepwise["published_seeds"]) == (2, 45.0)
    tests = pd.read_csv(root / "out" / "compare-decisions.csv")
    assert tests["n"].max() == 12  # as many as the paper has


def test_fresh_seeds_that_are_not_there_are_refused_by_name(root):
    with pytest.raises(AnalysisError, match="fresh=nowhere has no use because nowhere has no sim"):
        main(["compare=paper", f"ledgers={root}", "fresh=nowhere"])
    with pytest.raises(AnalysisError, match="fresh=nowhere has no use with seeds="):
        main(["compare=paper", f"ledgers={root}", "fresh=nowhere", "seeds=all"])


# -- what Q6's level rests on --------------------------------------------------------------------


def q6_runs(root, tokens, exponent):
    """Six arms whose seeds have other outputs; rates go with them to a power."""
    rows = [
        row(
            organization,
            seed,
            block="confirmation",
            budget=budget,
            pinning="k1",
            num_finished=300,
            output_tokens=300 * of_seed,
            requests_per_s=2.0 * (of_seed / 250.0) ** exponent,
        )
        for organization in ("d0", "s2")
        for budget in ("b63", "b83", "b108")
        for seed, of_seed in zip((76400, 76401, 76402), tokens, strict=True)
    ]
    record(root / "q6" / "sim", "q6", rows)
    return Sources(root, engine="sim")


def test_rates_of_q6_follow_outputs_as_they_do_over_seeds(tmp_path):
    (table,) = sensitivity_table(q6_runs(tmp_path, (240.0, 250.0, 260.0), -0.5))
    of = table.rows.set_index("mean_output_tokens")["rate_change_pct"]
    assert of[243.0] == pytest.approx(100 * ((243.0 / 250.0) ** -0.5 - 1), abs=1e-6)
    assert "to the power -0.50" in table.notes[0]


def test_outputs_without_scatter_bound_what_rates_can_change(tmp_path):
    (table,) = sensitivity_table(q6_runs(tmp_path, (256.7,) * 3, -0.5))
    of = table.rows.set_index("mean_output_tokens")["rate_change_pct"]
    assert of[256.7] == pytest.approx(0.0)
    assert of[243.0] == pytest.approx(100 * (256.7 / 243.0 - 1))
    assert "the most that rates can change" in table.notes[0]


def test_without_runs_of_q6_nothing_is_said_of_its_level(root):
    assert sensitivity_table(Sources(root, engine="sim")) == []
