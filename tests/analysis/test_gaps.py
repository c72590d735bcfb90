"""What a narrowed launch lacks is said in one line that covers exactly those cells."""

from collections.abc import Mapping
from itertools import product

import pytest
from q6_frames import q6_attempts

from analysis.families import AnalysisConfig
from analysis.gaps import Gap, describe
from analysis.ledgers import missing_cells
from analysis.runs import Runs
from analysis.tables import b7, b8
from hsexp.config.arm import Arm

SEEDS = (76400, 76401, 76402)


def only(q6: AnalysisConfig, **axes: object) -> Runs:
    """The runs of a launch that was narrowed to some values of the axes."""
    attempts = q6_attempts(SEEDS)
    for axis, value in axes.items():
        attempts = attempts[attempts[axis] == value]
    return Runs.select(attempts, campaign="q6", design=q6.design, seeds=SEEDS)


def lines(runs: Runs) -> tuple[str, ...]:
    return missing_cells([(runs, runs.design.cells(), ["requests_per_s"])])


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"budget": "b63"}, "no run of b83, b108"),
        ({"organization": "d0"}, "no run of S2"),
        ({"seed": 76401}, "no run of seed 76400, 76402"),
        (
            {"budget": "b63", "headroom": 0.19},
            "no run of b83, b108, nor of headroom 0.0, 0.1, 0.27, 0.35",
        ),
    ],
)
def test_one_line_says_what_a_narrowed_launch_lacks(
    q6: AnalysisConfig, axes: Mapping[str, object], said: str
) -> None:
    assert lines(only(q6, **axes)) == (f"campaign q6: {said}",)


def test_every_table_of_a_narrowed_launch_says_it_in_the_same_line(q6: AnalysisConfig) -> None:
    runs = only(q6, budget="b63")
    for table in (b7.from_runs(runs, q6), b8.from_runs(runs, q6)):
        assert table.missing == ("campaign q6: no run of b83, b108",)


def test_a_cell_that_no_value_explains_is_named_beside_those_that_one_does(
    q6: AnalysisConfig,
) -> None:
    attempts = q6_attempts(SEEDS)
    lost = (attempts["organization"] == "d0") & (attempts["headroom"] == 0.1)
    lost &= (attempts["budget"] == "b63") & (attempts["seed"] == 76401)
    attempts = attempts[(attempts["budget"] != "b108") & ~lost]
    runs = Runs.select(attempts, campaign="q6", design=q6.design, seeds=SEEDS)
    assert lines(runs) == (
        "campaign q6: no run of b108",
        "D0(0.10) b63 seed 76401: not run",
    )


def test_cells_that_were_tried_and_failed_are_named_one_by_one(q6: AnalysisConfig) -> None:
    attempts = q6_attempts(SEEDS)
    failed = attempts["budget"] == "b63"
    attempts.loc[failed, ["adopted", "status", "reason"]] = [False, "failed", "OutOfMemory"]
    runs = Runs.select(attempts, campaign="q6", design=q6.design, seeds=SEEDS)
    said = lines(runs)
    assert len(said) == 10
    assert said[0] == "D0(0.00) b63 seed 76400-76402: failed (OutOfMemory)"


def test_the_values_of_the_line_cover_exactly_the_cells_that_lack_a_run(
    q6: AnalysisConfig,
) -> None:
    for budget, organization in product(q6.design.budget, q6.design.organization):
        runs = only(q6, budget=budget, organization=organization)
        gaps = runs.gaps(q6.design.cells())
        absent = {arm for arm in q6.design.cells() if runs.missing_seeds(arm)}
        values = {value for gap in gaps for value in gap.unrun}
        covered = {arm for arm in q6.design.cells() if values & set(arm.axes.items())}
        assert covered == absent and all(gap.unrun for gap in gaps)


def test_blocks_that_lack_the_same_share_a_line() -> None:
    gaps = [
        Gap(
            cells=f"S1 {block} seed 0",
            reason="not run",
            campaign="q2",
            block=block,
            unrun=(("organization", "s1"),),
        )
        for block in ("low", "high")
    ]
    assert describe(gaps) == ("campaign q2, blocks low, high: no run of S1",)


def test_a_missing_seed_of_one_arm_alone_is_no_missing_seed_of_the_block(
    q6: AnalysisConfig,
) -> None:
    runs = only(q6)
    arm = Arm(organization="d0", budget="b63", headroom=0.1)
    attempts = runs.attempts
    gone = (attempts["organization"] == "d0") & (attempts["budget"] == "b63")
    gone &= (attempts["headroom"] == 0.1) & (attempts["seed"] == 76402)
    left = Runs.select(attempts[~gone], campaign="q6", design=q6.design, seeds=SEEDS)
    assert missing_cells([(left, [arm], [])]) == ("D0(0.10) b63 seed 76402: not run",)
