"""Tables C-2, C-3, C-4 and the isolation pilot: what published values imply, and runs by hand."""

import math

import pandas as pd
import pytest
from block_frames import block_runs

from analysis.published import printed_number
from analysis.tables import c2, c3, c4, isolation_pilot


def row(table, **keys):
    mask = pd.Series(True, index=table.rows.index)
    for name, value in keys.items():
        mask &= table.rows[name] == value
    (found,) = table.rows[mask].to_dict("records")
    return found


# -- from the published values alone -------------------------------------------------------------


def test_the_printed_classes_are_counts_of_900_first_admissions():
    table = c2.from_paper()
    assert table.rows["requests"].tolist() == [900] * 4
    assert row(table, organization="S2", headroom=0.0)["zero_to_zero_requests"] == 326
    for found in table.rows.to_dict("records"):
        key = f"{found['organization']}/{found['headroom']:g}"
        for name in c2.CLASSES:
            assert printed_number("C-2", key, name).shows(found[f"{name}_fraction"])


def test_every_printed_probe_interval_lies_within_the_margin():
    table = c3.from_paper()
    assert table.rows["containment"].tolist() == table.rows["containment_published"].tolist()
    assert set(table.rows["containment"]) == {"PASS"}
    # The middle of an interval of rounded ends may be half a digit away from the mean.
    assert (table.rows["mean_100_ln_difference"].abs() < 0.0011).all()


def test_totals_of_c4_are_the_sums_of_their_parts():
    for found in c4.from_paper().rows.to_dict("records"):
        key = f"{found['budget_setting']}/{found['organization']}/{found['headroom']:g}"
        assert printed_number("C-4", key, "total").shows(found["total_tokens_per_request"])


def test_c4_cells_without_a_resume_share_one_input_length():
    inputs = c4.from_paper().rows["input_tokens_per_request"].dropna()
    assert len(inputs) == 5
    assert inputs.tolist() == pytest.approx([3364.7] * 5, abs=0.15)  # S2 low f = 0 is 0.13 off


# -- from runs -----------------------------------------------------------------------------------


def traced(arm, seed):
    slower = 0.99 if arm.trace and seed == 76600 else 1.0
    found = {"throughput_tok_per_s": 500.0 * slower}
    if arm.trace:
        found |= {metric: 0.1 for metric, _ in c2.CLASSES.values()}
        found["depth_equal_fraction"] = 0.6 + 0.3 * (seed == 76602)
    return found


def test_c2_averages_the_traced_runs():
    table = c2.from_runs(block_runs("q7", "availability", traced))
    assert table.rows["organization"].tolist() == ["D0", "D0", "S2", "S2"]
    found = row(table, organization="S2", headroom=0.19)
    assert found["positive_equal_fraction"] == pytest.approx(0.7)
    assert found["positive_equal_fraction_published"] == 0.564
    assert found["n"] == 3


def test_c3_pairs_traced_and_untraced_runs_by_seed():
    table = c3.from_runs(block_runs("q7", "availability", traced))
    found = row(table, organization="D0", headroom=0.0)
    slower = 100.0 * math.log(0.99)
    assert found["mean_100_ln"] == pytest.approx(slower / 3)
    # One value x and two zeros: s / sqrt(3) = |x| / 3; t_{0.95, 2} = 2.91999.
    assert found["ci90_low_100_ln"] == pytest.approx(slower / 3 * (1 + 2.919985580353726))
    assert found["containment"] == "PASS"


@pytest.mark.parametrize(("factor", "decision"), [(0.999, "PASS"), (0.9, "FAIL")])
def test_c3_passes_only_where_the_whole_interval_lies_within_three_percent(factor, decision):
    def metrics(arm, seed):
        return {"throughput_tok_per_s": 500.0 * (factor if arm.trace else 1.0)}

    table = c3.from_runs(block_runs("q7", "availability", metrics))
    assert set(table.rows["containment"]) == {decision}


def test_c3_says_why_simulated_pairs_have_no_spread():
    table = c3.from_runs(
        block_runs("q7", "availability", lambda arm, seed: {"throughput_tok_per_s": 500.0})
    )
    assert table.rows["degenerate"].all()
    assert any("no simulated time" in note for note in table.notes)


def work(arm, seed):
    return {
        "num_requests": 2.0,
        "prompt_tokens": 200.0,
        "adopted_tokens_mean": 30.0 + 6.0 * (seed == 70000),
        "initial_prefill_tokens": 140.0,
        "replayed_tokens": 20.0,
    }


def test_c4_is_in_tokens_a_request_and_percent_of_the_input():
    table = c4.from_runs(block_runs("matched_boundary", "work", work))
    found = row(table, budget_setting="Low", organization="D0-M512", headroom=0.0)
    assert found["adopted_prefix_pct"] == pytest.approx(31.0)  # 30 % in five seeds, 36 % in one
    assert found["initial_tokens_per_request"] == 70.0
    assert found["resume_tokens_per_request"] == 10.0
    assert found["total_tokens_per_request"] == 80.0
    assert found["adopted_prefix_pct_published"] == 39.802


def test_c4_leaves_an_incomplete_cell_open_and_names_it():
    def gone(arm, seed):
        return (arm.organization, arm.budget, arm.headroom, seed) == ("s2", "b63_d0", 0.19, 70005)

    table = c4.from_runs(block_runs("matched_boundary", "work", work, left_out=gone))
    found = row(table, budget="b63_d0", organization="S2", headroom=0.19)
    assert math.isnan(found["total_tokens_per_request"]) and found["n"] == 5
    assert table.missing == ("S2(0.19) b63_d0 seed 70005: not run",)


def test_the_isolation_pilot_shows_headroom_effects_by_reuse():
    def metrics(arm, seed):
        gain = {"share": 1.1, "isolate": 0.9}[arm.isolation] if arm.headroom else 1.0
        return {"throughput_tok_per_s": 100.0 * gain}

    table = isolation_pilot.from_runs(block_runs("isolation_pilot", "pilot", metrics))
    found = row(table, organization="S2", reuse="ISOLATE")
    assert found["headroom_effect_pct"] == pytest.approx(-10.0)
    assert found["headroom_effect_pct_published"] == -11.50
