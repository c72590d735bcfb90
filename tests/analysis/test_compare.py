"""The comparison with the paper: hand-counted errors, and nothing missing without a name."""

import math

import pytest
from recorded import record, row

from analysis.__main__ import main
from analysis.command import run
from analysis.compare.estimates import Comparison, Estimate, measure
from analysis.compare.page import compare, page
from analysis.compare.sources import Sources
from analysis.compare.targets import Group, Targets, TargetSet, load_targets
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


LEVELS = {"levels": {"title": "Levels", "unit": "tok/s", "error": "%"}}


def targets(*sets, goals=(), groups=LEVELS):
    return Targets.parse(
        {
            "title": "A page",
            "groups": groups,
            "goals": list(goals),
            "families": [],
            "confirmations": {},
            "omitted": [{"what": "the rest", "why": "it is long"}],
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
    assert measured(root, target_set(per="num_requests", factor=3.0)).value == pytest.approx(45.6)


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


def test_a_goal_can_be_a_ratio_to_seed_noise_over_groups(root):
    # S1 has a deviation of 2 x sqrt(2) around 152; noise counts two seeds here, twelve there, and
    # a normal error is sqrt(2 / pi) of its deviation in the mean.
    paper = published_value("E-4", "mean_throughput", "S1")
    groups = {
        name: {"title": name, "unit": "tok/s", "error": "unit"} for name in ("near", "far", "other")
    }
    per_seed = math.sqrt(2) * math.sqrt(1 / 2 + 1 / 12) * math.sqrt(2 / math.pi)
    factors = {"near": (paper + 0.0) / 152.0, "far": (paper + 20.0) / 152.0}
    factors["other"] = (paper + 5.0) / 152.0
    ratios = {
        name: abs(factor * 152.0 - paper) / (factor * 2.0 * per_seed)
        for name, factor in factors.items()
    }
    goals = [
        {"title": "farthest", "measure": "largest ratio", "at_most": ratios["far"] - 0.1},
        {"title": "middle", "measure": "median ratio", "at_most": ratios["other"] + 0.1},
        {"title": "two", "groups": ["near", "far"], "measure": "median ratio", "at_most": 0.0},
    ]
    declared = targets(
        *(target_set(group=name, factor=factor) for name, factor in factors.items()),
        goals=goals,
        groups=groups,
    )
    *_, errors, summary = page(declared, Sources(root, engine="sim"))
    assert errors.rows.set_index("what")["ratio"].to_dict() == pytest.approx(ratios, abs=1e-9)
    rows = summary.rows.set_index("what")
    assert rows.loc["farthest", "value"] == pytest.approx(ratios["far"])
    assert (rows.loc["farthest", "where"], rows.loc["farthest", "reached"]) == (
        "far",
        "not reached",
    )
    assert rows.loc["middle", "value"] == pytest.approx(ratios["other"])
    assert rows.loc["middle", "reached"] == "reached"
    assert rows.loc["two", "value"] == pytest.approx((ratios["near"] + ratios["far"]) / 2)


def test_a_group_of_one_seed_has_no_noise_and_no_ratio(root):
    goal = {"title": "any", "measure": "largest ratio", "at_most": 2.0}
    sources = Sources(root, engine="sim", seeds=(42000,))
    summary = page(targets(target_set(), goals=[goal]), sources)[-1]
    assert summary.rows.loc[0, "reached"] == "unknown"


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
        (["compare=novel"], "compare novel is unknown; there is paper"),
        (["compare=paper", "engine=abacus"], "engine must be sim or vllm, got abacus"),
        (["compare=paper", "seeds=few"], "seeds must be"),
        (["compare=paper", "ledger=here"], "unknown argument ledger=here"),
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
