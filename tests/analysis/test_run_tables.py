"""Tables from ledgers of made-up runs: means, paired changes, counts, and what is missing."""

import math

import numpy as np
import pandas as pd
import pytest
from toy_ledgers import by_organization, original_five, throughput, write_block

from analysis import config as configs
from analysis.errors import NoRunsError
from analysis.ledgers import Ledgers
from analysis.published import published_value
from analysis.tables import TABLES, make
from analysis.tables.original5 import goodput_effects
from analysis.tables.submitted_work import phase_times_s
from analysis.tables.table import ABSENT, to_csv, to_latex, to_markdown


def row(table, **keys):
    mask = np.ones(len(table.rows), dtype=bool)
    for name, value in keys.items():
        mask &= (table.rows[name] == value).to_numpy()
    (found,) = table.rows[mask].to_dict("records")
    return found


# -- anchors -------------------------------------------------------------------------------------


def work(arm, seed):
    """S0, S1, S2: 100, 200, 300 tokens/s; H falls by 100 a step; seed 2 has twice the K."""
    rank = int(arm.organization[1])
    k = 50.0 * (2.0 if seed == 2 else 1.0)
    return {
        "throughput_tok_per_s": 100.0 * (rank + 1),
        "h_tokens": 1000.0 - 100.0 * rank,
        "c_once_tokens": 900.0 - 100.0 * rank,
        "k_records": k,
        "h_per_k_mean": (1000.0 - 100.0 * rank) / k,
    }


@pytest.fixture
def anchors(tmp_path):
    write_block(tmp_path, "q2", "anchor_b63", work)
    write_block(tmp_path, "q2", "anchor_b108", work)
    return Ledgers(tmp_path)


def test_e1_averages_run_ratios_and_stands_beside_the_paper(anchors):
    found = row(make("E-1", anchors), budget="b63", organization="S0")
    # H/K: 20, 20, 10; the ratio of means would be 1000 / 66.7 = 15.
    assert found["h_per_k_mean"] == pytest.approx(50 / 3)
    assert found["n"] == 3
    printed = published_value("E-1", "b63/S0", "throughput")
    assert found["throughput_tok_per_s_published"] == printed
    assert found["throughput_tok_per_s_difference"] == 100.0 - printed


def test_e2_averages_same_seed_changes(anchors):
    found = row(make("E-2", anchors), budget="b108", step="S1->S2")
    assert found["throughput_change"] == pytest.approx(50.0)
    assert found["h_change"] == pytest.approx(100.0 * (800 / 900 - 1))
    assert found["k_change"] == 0.0


def test_a_cell_without_a_run_is_named_and_has_no_mean_while_the_others_have(tmp_path):
    for block in ("anchor_b63", "anchor_b108"):
        write_block(
            tmp_path,
            "q2",
            block,
            work,
            left_out=lambda arm, seed: (arm.organization, arm.budget, seed) == ("s1", "b63", 1),
        )
    table = make("E-1", Ledgers(tmp_path))
    assert table.missing == ("S1 b63 seed 1: not run",)
    gone = row(table, budget="b63", organization="S1")
    assert (gone["n"], pd.isna(gone["h_tokens"])) == (2, True)
    assert row(table, budget="b63", organization="S2")["h_tokens"] == 800.0
    assert ABSENT in table.cells(table.views[0])[1]
    steps = make("E-2", Ledgers(tmp_path))
    assert steps.rows["throughput_change"].isna().tolist() == [True, True, False, False]


def test_e4_has_one_row_a_quantity_and_one_column_an_organization(tmp_path):
    metrics = {"c_once_tokens", "k_records", "running_mean", "waiting_mean", "e2e_p99_s"}

    def value(arm, seed):
        return throughput(700.0) | dict.fromkeys(metrics, 10.0 if arm.organization == "s1" else 5.0)

    write_block(tmp_path, "q1", "main", value)
    table = make("E-4", Ledgers(tmp_path))
    waiting = row(table, metric="waiting_mean")
    assert (waiting["s1"], waiting["s2"]) == (10.0, 5.0)
    assert waiting["s2_published"] == published_value("E-4", "waiting_mean", "S2")


# -- extension -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def extension(tmp_path_factory):
    """Every organization at one speed everywhere, but for S1 of b108 in the seed in doubt."""
    root = tmp_path_factory.mktemp("extension")
    speeds = {"s0": 100.0, "s1": 150.0, "s2": 160.0, "d0": 80.0}
    speeds |= {"d0_m10": 70.0, "d0_m05": 90.0, "d0_p05": 60.0, "d0_p10": 50.0}

    def value(arm, seed):
        affected = (arm.organization, arm.budget, seed) == ("s1", "b108", 42004)
        return throughput(75.0 if affected else speeds[arm.organization])

    for campaign, block in [
        ("q1", "main"),
        ("q3", "sharing"),
        ("q4", "budget"),
        ("split_sweep", "split"),
    ]:
        write_block(root, campaign, block, value)
    return Ledgers(root)


def test_b5_shows_the_range_and_the_signs_of_seedwise_changes(extension):
    found = row(make("B-5", extension), budget="b108", contrast="S1/S0")
    assert found["observed_min"] == pytest.approx(-25.0)
    assert found["observed_max"] == pytest.approx(50.0)
    assert (found["positive_seeds"], found["negative_seeds"]) == (11, 1)
    assert found["mean_change_published"] == published_value("B-5", "b108/S1/S0", "mean_change")


def test_b6_shows_the_affected_contrasts_with_and_without_the_seed(extension):
    table = make("B-6", extension)
    assert table.rows["n"].tolist() == [12, 11, 12, 11]
    without = row(table, contrast="S1/S0", scenario="exclude 42004")
    assert without["mean_change"] == pytest.approx(50.0)
    assert without["holm_p_published"] == published_value("B-6", "S1/S0/exclude 42004", "holm_p")


def test_e12_names_the_split_by_its_share_and_adjusts_over_the_whole_family(extension):
    found = row(make("E-12", extension), budget="b63", setting="RM10")
    assert found["attention_fraction_difference"] == 0.0
    assert found["mean_change"] == pytest.approx(-12.5)
    assert found["holm_p"] == 22 * 2 / 4096


def test_e17_counts_rejections_by_scenario_and_keeps_the_family(extension):
    table = make("E-17", extension)
    # Equal changes everywhere: the two budget and three sharing interactions have p = 1. Of the 17
    # contrasts, C takes two out. The seed in doubt lifts S1/S0 of b108 to an outlier of twelve:
    # 2 x (1 + 1) of 4,096 at 50 against 25.
    assert table.rows["rejections"].tolist() == [17, 17, 15]
    assert set(table.rows["family_size"]) == {22}
    assert table.rows["n_affected_contrasts"].tolist()[:2] == [12, 11]


def test_e17_counts_nothing_while_tests_are_missing(tmp_path):
    write_block(tmp_path, "q1", "main", by_organization({"s0": 100.0, "s1": 150.0, "s2": 160.0}))
    table = make("E-17", Ledgers(tmp_path))
    assert table.rows["rejections"].isna().all()
    assert any("campaign q4" in line for line in table.missing)


def test_an_adoption_shows_in_the_table_and_its_notes(extension):
    table = make("B-5", Ledgers(extension.root, adoption="invalid"))
    found = row(table, budget="b108", contrast="S2/S1")
    assert pd.isna(found["mean_change"])
    assert found["holm_p"] == 1.0
    assert any("adoption=invalid of seed 42004" in note for note in table.notes)
    assert table.missing == ()


# -- original five -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def five(tmp_path_factory):
    return original_five(tmp_path_factory.mktemp("five"))


def test_e5_counts_directions_and_names_looks(five):
    table = make("E-5", five)
    found = row(table, id="2")
    assert (found["seeds_favoring_d0"], found["seeds_favoring_comparator"]) == (0, 9)
    assert found["p_looks"] == "p6 = 0.0312, p9 = 0.0039"
    assert found["holm_p"] == 5 / 128
    assert table.missing == ()


def test_e14_stands_for_two_windows_and_names_the_metric_that_is_missing(five):
    table = make("E-14", five)
    assert table.rows["full_run_gap"].tolist() == pytest.approx([-10.0] * 5)
    assert table.rows["central_arrival_gap"].isna().all()
    assert "D0 b63 seed 0-5: no central_throughput_tok_per_s" in table.missing


def served(*latencies_s):
    """Requests of ten tokens, all sent at 0, the first token after half a second."""
    return pd.DataFrame(
        {
            "request_id": range(len(latencies_s)),
            "status": "finished",
            "arrival_s": 0.0,
            "first_token_s": 0.5,
            "finish_s": latencies_s,
            "generated_tokens": 10,
        }
    )


def test_e13_qualifies_output_by_latencies_that_the_requests_had(tmp_path):
    def requests(arm, seed):
        third = 3.0 if arm.organization == "d0" else 2.0
        return served(2.0, 2.0, third, 10.0)

    write_block(
        tmp_path,
        "q5",
        "expanded_b63",
        lambda arm, seed: throughput(1.0),
        requests=requests,
    )
    contrast = configs.family("original5").contrasts[0]
    # 66th percentile over six seeds. Comparator, 18 times 2 s and 6 times 10 s: 2 s, so that D0 has
    # two good requests and S2 three. Both, with 30 times 2 s and 6 times 3 s: 3 s, three and three.
    comparator, union = goodput_effects(Ledgers(tmp_path), contrast, 66.0)
    assert comparator == pytest.approx(-100 / 3)
    assert union == 0.0


def test_e13_has_no_goodput_without_every_run(tmp_path):
    write_block(
        tmp_path,
        "q5",
        "expanded_b63",
        lambda arm, seed: throughput(1.0),
        left_out=lambda arm, seed: seed == 3,
    )
    contrast = configs.family("original5").contrasts[0]
    assert goodput_effects(Ledgers(tmp_path), contrast, 95.0) == (None, None)


def test_e13_averages_seedwise_ratios_of_run_level_p99(tmp_path):
    def value(arm, seed):
        slow = 2.0 + seed if arm.organization == "d0" else 1.0
        return throughput(1.0) | {"e2e_p99_s": slow, "tpot_p99_s": 1.0}

    write_block(tmp_path, "q5", "expanded_b63", value, requests=lambda arm, seed: served(1.0))
    found = row(make("E-13", Ledgers(tmp_path)), id="1")
    assert found["e2e_p99_ratio"] == pytest.approx((2 + 3 + 4 + 5 + 6 + 7) / 6)
    assert found["comparator_threshold_effect"] == 0.0


# -- diagnostics, caps, pinning ------------------------------------------------------------------


def test_event_time_is_divided_by_what_steps_carry():
    steps = pd.DataFrame(
        {
            "num_steps": [2, 3, 1],
            "step_s": [1.0, 0.1, 0.5],
            "prefill_tokens": [512, 0, 256],
            "decode_tokens": [0, 4, 4],
        }
    )
    assert phase_times_s(steps) == pytest.approx(
        {"Prefill-only": 2.0, "Decode-only": 0.3, "Mixed": 0.5, "ALL": 2.8}
    )


@pytest.fixture(scope="module")
def diagnostic(tmp_path_factory):
    root = tmp_path_factory.mktemp("diagnostic")

    def value(arm, seed):
        fast = arm.organization == "s2"
        return throughput(100.0 if fast else 90.0) | {
            "submitted_tokens": (100.0 if fast else 200.0) * (seed + 1),
            "event_time_s": 10.0 if fast else 11.0,
            "k_records": 50.0,
            "refusals": 7.0,
            "num_preemptions": 2.0,
        }

    for point in ("L", "M", "H"):
        write_block(root, "submitted_work", point, value)
    return Ledgers(root)


def test_e7_pools_work_over_seeds_and_averages_gaps(diagnostic):
    found = row(make("E-7", diagnostic), point="M")
    assert found["submitted_token_ratio_d0_s2"] == 2.0
    assert found["event_time_ratio_d0_s2"] == pytest.approx(1.1)
    assert found["ref_gap"] == found["trace_gap"] == pytest.approx(-10.0)


def test_e8_needs_step_tables_and_says_how_to_get_them(diagnostic):
    table = make("E-8", diagnostic)
    assert table.rows["L"].isna().all()
    assert "L: step tables (run the campaign with record_steps=true)" in table.missing


def test_e10_has_the_events_that_the_ledger_counts(diagnostic):
    found = row(make("E-10", diagnostic), point="L")
    assert (found["defer_label"], found["preempt_label"]) == (7.0, 2.0)


def test_e11_divides_events_by_finished_requests_run_by_run(tmp_path):
    def value(arm, seed):
        return throughput(99.0 if arm.organization == "d0" else 100.0) | {
            "refusals": 3.0 * (seed + 1),
            "num_preemptions": 1.0,
            "num_finished": 30.0,
        }

    for block in ("b63", "b108"):
        write_block(tmp_path, "cap_ladder", block, value)
    table = make("E-11", Ledgers(tmp_path))
    # Caps in the order of the paper, the reference first.
    assert table.rows["cap"].tolist() == [63, 3, 5, 6, 8, 109, 5, 8, 10, 13]
    found = row(table, budget="b63", cap=63)
    assert found["rejections"] == pytest.approx((0.1 + 0.2 + 0.3) / 3)
    assert found["mean_d0_s2_gap"] == pytest.approx(-1.0)


def test_e16_adjusts_over_two_and_shows_log_ratios_as_a_sensitivity(tmp_path):
    def value(arm, seed):
        shift = 0.1 * (seed + 1) if arm.pinning == "k1" else 0.0
        return throughput((90.0 if arm.organization == "d0" else 100.0) + shift) | {
            "pinned_checkpoints": 4.0
        }

    for block in ("b63", "b108"):
        write_block(tmp_path, "pinning", block, value)
    table = make("E-16", Ledgers(tmp_path))
    assert table.rows["raw_relative_gap_p"].tolist() == [2 / 64] * 2
    assert table.rows["holm_p"].tolist() == [4 / 64] * 2
    settings = make("E-15", Ledgers(tmp_path))
    assert row(settings, operating_point="A")["R0_d0_pins"] == 4.0


def test_e16_has_no_answer_where_pinning_changes_no_run(tmp_path):
    def value(arm, seed):
        # At b108 the pins act, at b63 they do not.
        shift = 0.1 * (seed + 1) if (arm.pinning, arm.budget) == ("k1", "b108") else 0.0
        speed = (90.0 if arm.organization == "d0" else 100.0) + shift
        return throughput(speed) | {"pinned_checkpoints": 4.0}

    for block in ("b63", "b108"):
        write_block(tmp_path, "pinning", block, value)
    table = make("E-16", Ledgers(tmp_path))
    found = {point: row(table, operating_point=point) for point in ("A", "B")}
    assert found["A"]["raw_relative_gap_p"] == 2 / 64
    for p in ("raw_relative_gap_p", "raw_log_ratio_p", "holm_p"):
        assert math.isnan(found["B"][p])
    assert found["B"]["mean_change"] == 0.0
    assert any(note.startswith("No answer at B: ") for note in table.notes)


# -- all of them ---------------------------------------------------------------------------------

FROM_RUNS = ["B-5", "B-6", *(f"E-{number}" for number in range(1, 18)), "extension-22"]


@pytest.mark.parametrize("name", FROM_RUNS)
def test_a_table_without_any_run_says_which_campaigns_to_run(name, tmp_path):
    with pytest.raises(NoRunsError, match="run `python -m hsexp campaign="):
        make(name, Ledgers(tmp_path))


def test_every_form_of_a_table_over_campaigns_says_what_its_data_are(five):
    table = make("E-5", five)
    for text in (to_csv(table), to_markdown(table), to_latex(table)):
        assert "simulated" in text


def test_every_table_of_the_storage_and_stepwise_appendices_has_a_function():
    names = ["A-1", "A-2", *(f"B-{number}" for number in range(2, 9)), *FROM_RUNS]
    assert set(names) <= set(TABLES)
