"""Separated against mixed steps: changes by condition, and whose signs are the paper's."""

from block_frames import block_runs

from analysis.config import block_design
from analysis.tables import live_separation
from hsexp.config.arm import Arm


def of_block(block: str, arm: Arm) -> dict[str, float]:
    """Separation halves throughput; S2 with headroom alone gets its first tokens sooner."""
    separated = block == "separated"
    ttft = (0.5 if arm.organization == "s2" and arm.headroom else 3.0) if separated else 1.0
    return {
        "throughput_tok_per_s": 50.0 if separated else 100.0,
        "ttft_mean_s": ttft,
        "ttft_p99_s": ttft,
        "e2e_mean_s": 2.0 if separated else 1.0,
        "e2e_p99_s": 2.0 if separated else 1.0,
    }


def table_of(*, left_out=lambda block, arm, seed: False):
    mixed, separated = (
        block_runs(
            "live_separation",
            block,
            lambda arm, seed, block=block: of_block(block, arm),
            left_out=lambda arm, seed, block=block: left_out(block, arm, seed),
        )
        for block in ("mixed", "separated")
    )
    return live_separation.from_runs(mixed, separated)


def test_the_four_conditions_show_their_change_and_how_many_have_the_paper_s_sign():
    table = table_of()
    rows = table.rows.set_index(["organization", "headroom"])
    assert len(rows) == 4
    assert (rows["throughput_tok_per_s_change_pct"] == -50.0).all()
    assert rows.loc[("D0-M512", 0.19), "ttft_p99_s_change_pct"] == 200.0
    assert rows.loc[("S2", 0.19), "ttft_p99_s_change_pct"] == -50.0
    assert "of 4 conditions: tok/s down 4, TTFT mean up 3, TTFT p99 up 3" in table.notes[0]
    assert "E2E p99 up 4" in table.notes[0]


def test_a_condition_without_all_its_pairs_has_no_change_and_no_sign():
    def gone(block, arm, seed):
        return block == "separated" and arm == arm_of_s2 and seed == 71001

    arm_of_s2 = block_arm("s2", 0.0)
    table = table_of(left_out=gone)
    rows = table.rows.set_index(["organization", "headroom"])
    assert rows.loc[("S2", 0.0), "n"] == 2
    assert rows["throughput_tok_per_s_change_pct"].isna().sum() == 1
    assert "tok/s down 3" in table.notes[0]
    assert "of 4 conditions (3 of them with all runs): " in table.notes[0]
    assert table.missing == ("S2(0.00) b63_d0 seed 71001: not run",)


def block_arm(organization: str, headroom: float) -> Arm:
    (arm,) = (
        arm
        for arm in block_design("live_separation", "separated").cells()
        if (arm.organization, arm.headroom) == (organization, headroom)
    )
    return arm


def test_a_block_is_never_filled_with_runs_of_the_other():
    assert block_design("live_separation", "mixed").same_law == ("mixed",)
    assert block_design("live_separation", "separated").same_law == ("separated",)
