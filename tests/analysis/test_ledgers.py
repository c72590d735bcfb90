"""Runs of several campaigns: found by block, absent with a reason, never mixed."""

import pytest
from toy_ledgers import by_organization, throughput, write_block

from analysis.errors import AnalysisError, NoRunsError
from analysis.ledgers import Ledgers, common_origin, missing_cells
from hsexp.config.arm import Arm

D0, S2 = Arm(organization="d0"), Arm(organization="s2")
FAST = by_organization({"d0": 2.0, "s2": 1.0, "s0": 1.0})


def test_a_campaign_without_a_ledger_is_absent_and_says_what_to_run(tmp_path):
    runs = Ledgers(tmp_path).runs("q5", "expanded_b63")
    assert runs.values(D0, "throughput_tok_per_s").isna().all()
    assert len(runs.values(D0, "throughput_tok_per_s")) == 6
    (line,) = runs.missing([D0, S2])
    assert "run `python -m hsexp campaign=q5` first" in line
    with pytest.raises(NoRunsError, match=r"campaign q5: .* there is no ledger"):
        common_origin([runs])


def test_a_block_that_was_not_run_is_absent_though_others_of_its_campaign_are_there(tmp_path):
    write_block(tmp_path, "cap_ladder", "b108", FAST)
    runs = Ledgers(tmp_path).runs("cap_ladder", "b63_cap8")
    assert runs.why_absent is not None
    assert runs.why_absent == "no adopted run of block b63_cap8 for seeds 0-8"


def test_blocks_of_equal_axes_are_told_apart_by_their_arrivals(tmp_path):
    # bursts: the same D0 and S2 cells under Poisson arrivals and under bursts.
    write_block(tmp_path, "bursts", "poisson", lambda arm, seed: throughput(1.0))
    write_block(tmp_path, "bursts", "burst", lambda arm, seed: throughput(5.0))
    ledgers = Ledgers(tmp_path)
    for block, value, n in (("poisson", 1.0, 6), ("burst", 5.0, 9)):
        values = ledgers.runs("bursts", block).values(D0, "throughput_tok_per_s")
        assert values.tolist() == [value] * n


def test_a_cell_that_two_blocks_share_counts_for_both_under_either_name(tmp_path):
    # q5: seeds 0-2 at 3.0 requests/s are recorded under curve_b63, whose block comes first.
    write_block(tmp_path, "q5", "curve_b63", FAST)
    runs = Ledgers(tmp_path).runs("q5", "expanded_b63")
    assert runs.missing_seeds(D0) == [3, 4, 5]
    assert runs.missing([D0]) == ["D0 b63 seed 3-5: not run"]


def test_seeds_asked_for_replace_those_of_every_block(tmp_path):
    write_block(tmp_path, "q5", "expanded_b63", FAST)
    runs = Ledgers(tmp_path, seeds=[1, 4]).runs("q5", "expanded_b63")
    assert runs.seeds == (1, 4)


def test_a_missing_arm_is_named_by_the_axes_that_tell_it_apart(tmp_path):
    write_block(tmp_path, "cap_ladder", "b63", FAST, left_out=lambda arm, seed: arm.cap == 5)
    runs = Ledgers(tmp_path).runs("cap_ladder", "b63")
    assert runs.missing([Arm(organization="d0", cap=5)]) == ["D0 b63 cap 5 seed 0-2: not run"]


def test_a_metric_that_was_not_recorded_is_missing_and_not_zero(tmp_path):
    write_block(tmp_path, "q5", "expanded_b63", FAST)
    runs = Ledgers(tmp_path).runs("q5", "expanded_b63")
    assert runs.values(D0, "h_tokens").isna().all()
    assert missing_cells([(runs, [D0], ["h_tokens"])]) == ("D0 b63 seed 0-5: no h_tokens",)


def test_ledgers_of_two_devices_never_stand_in_one_table(tmp_path):
    write_block(tmp_path, "q5", "expanded_b63", FAST)
    write_block(tmp_path, "bursts", "burst", FAST, engine="vllm")
    ledgers = Ledgers(tmp_path)
    with pytest.raises(AnalysisError, match=r"must share their origin; got .* and "):
        common_origin([ledgers.runs("q5", "expanded_b63"), ledgers.runs("bursts", "burst")])


def test_ledgers_of_two_engines_are_never_chosen_between(tmp_path):
    for engine in ("sim", "vllm"):
        write_block(tmp_path, "q5", "expanded_b63", FAST, engine=engine)
    with pytest.raises(AnalysisError, match="2 engines, which are never mixed"):
        Ledgers(tmp_path).runs("q5", "expanded_b63")


def test_an_unknown_block_names_those_of_the_campaign(tmp_path):
    with pytest.raises(
        AnalysisError, match="campaign bursts has no block b63; choose from poisson, b"
    ):
        Ledgers(tmp_path).runs("bursts", "b63")
