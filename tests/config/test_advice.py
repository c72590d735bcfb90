"""How advice ranks arms, what it plans after the first runs, and factors on step times."""

from pathlib import Path

import pytest
from launches import composed, planned

from hsexp.config.arm import Arm
from hsexp.config.base import ConfigError
from hsexp.plan.advice import (
    CHOICES,
    PRICED,
    Candidate,
    Ranking,
    candidates,
    elsewhere,
    headrooms_between,
    prepared,
    sensitivities,
)
from hsexp.plan.planner import make_plan
from hsexp.plan.run import parse_run
from hsexp.plan.target import Target
from runners.sim import execute

DEFAULT = Arm(organization="s0")


def candidate(arm: Arm, tok_per_s: float, ttft_s: float, **metrics: float) -> Candidate:
    known = {"throughput_tok_per_s": tok_per_s, "ttft_p99_s": ttft_s}
    known |= {"num_refused": 0, "num_unfinished": 0, **metrics}
    (whole,) = candidates([{**arm.axes, "seed": 0, "cell_id": "0", **known}])
    return whole


def ranking(target: Target | None = None, default: Arm = DEFAULT) -> Ranking:
    (whole,) = candidates([{**default.axes, "seed": 0, "cell_id": "0"}])
    return Ranking(default=whole.arm, indifference=0.01, target=target)


def order(*found: Candidate, target: Target | None = None) -> list[str]:
    return [str(each.arm.organization) for each in ranking(target).order(found)]


# -- ranking ---------------------------------------------------------------------------------------


def test_throughput_decides_where_it_differs_by_more_than_what_counts_as_equal() -> None:
    s2 = candidate(Arm(organization="s2"), 102.0, 9.0)
    s0 = candidate(DEFAULT, 100.0, 1.0)
    assert order(s0, s2) == ["s2", "s0"]


def test_latency_decides_between_equal_throughputs() -> None:
    s2 = candidate(Arm(organization="s2"), 100.9, 9.0)
    d0 = candidate(Arm(organization="d0"), 100.0, 1.0)
    assert order(s2, d0) == ["d0", "s2"]


def test_among_equal_arms_the_one_nearest_to_the_default_is_first() -> None:
    far = candidate(Arm(organization="s2", waiting="hit_first"), 100.5, 1.0)
    near = candidate(DEFAULT, 100.0, 1.005)
    headroom = candidate(Arm(organization="s0", headroom=0.1), 100.4, 1.0)
    found = ranking().order([far, headroom, near])
    assert [each.arm for each in found] == [near.arm, headroom.arm, far.arm]


def test_arms_that_keep_the_target_go_first_and_the_nearest_follows() -> None:
    target = Target(metric="ttft_p99_s", side="<", bound=2.0)
    slow = candidate(DEFAULT, 200.0, 5.0)
    near = candidate(Arm(organization="d0"), 150.0, 2.1)
    keeps = candidate(Arm(organization="s2"), 100.0, 1.9)
    assert order(slow, near, keeps, target=target) == ["s2", "d0", "s0"]


def test_arms_that_refuse_requests_are_not_ranked() -> None:
    lazy = candidate(Arm(organization="s2"), 200.0, 0.1, num_refused=3)
    assert order(lazy, candidate(DEFAULT, 100.0, 1.0)) == ["s0"]


def test_an_arm_that_lacks_a_seed_is_no_candidate() -> None:
    rows = [
        {"organization": name, "seed": seed, "cell_id": f"{name}{seed}"}
        for name, seed in (("s0", 0), ("s0", 1), ("s2", 0))
    ]
    assert [each.arm.organization for each in candidates(rows)] == ["s0"]


@pytest.mark.parametrize(("text", "value", "kept"), [("a<2", 1.9, True), ("a < 2", 2.1, False)])
def test_a_target_is_kept_below_its_bound(text: str, value: float, kept: bool) -> None:
    assert (Target.parse(text, known=["a"]).shortfall(value) <= 0.0) == kept


def test_a_target_can_be_a_least_value() -> None:
    assert Target.parse("a>=1e2", known=["a"]).shortfall(120.0) < 0.0


# -- plans -----------------------------------------------------------------------------------------

BUDGET = ("budget=bytes", "budget.bytes=300000000")


def advise(path: Path, *overrides: str) -> tuple[str, ...]:
    return ("campaign=advise", f"workload.path={path}", *BUDGET, *overrides)


def test_the_grid_has_every_organization_headroom_and_policy(lengths: Path) -> None:
    plan = planned(*advise(lengths))
    grid = [cell for cell in plan.cells if cell.block == "grid"]
    assert len(grid) == 5 * 4 * 2 * 2
    policies = [cell for cell in plan.cells if cell.block == "policies"]
    assert {cell.axes["organization"] for cell in policies} == {"s0", "s1", "s2", "s3", "d0"}
    (price,) = {str(cell.config["retention"]) for cell in policies}
    assert PRICED in price and "'step_s': 0.015195" in price


def test_the_finalists_run_halfway_to_the_headrooms_beside_their_best_one(lengths: Path) -> None:
    launch, _ = prepared(composed(*advise(lengths)))
    rates = {0.0: 100.0, 0.1: 120.0, 0.19: 110.0, 0.35: 90.0}
    found = [
        candidate(Arm(organization="s2", headroom=f, placement="junction"), rate, 1.0)
        for f, rate in rates.items()
    ]
    (block,) = headrooms_between(launch, found).values()
    assert [arm.headroom for arm in block.arms.values()] == [0.05, 0.145]


def test_finalists_and_default_run_under_other_budgets_and_step_times(lengths: Path) -> None:
    launch, _ = prepared(composed(*advise(lengths)))
    found = [
        candidate(Arm(organization=name, placement="junction"), rate, 1.0)
        for name, rate in (("s0", 1.0), ("s1", 2.0), ("s2", 3.0), ("d0", 4.0), ("s3", 5.0))
    ]
    blocks = sensitivities(launch, found)
    assert list(blocks) == ["budget_x0.8", "budget_x1.2", "step_time_x0.5", "step_time_x2"]
    for block in blocks.values():
        arms = [arm.organization for arm in block.arms.values()]
        assert arms == ["s3", "d0", "s2", "s0"]
    plan = make_plan(launch, engine="sim", follow_ups=blocks)
    smaller = [cell for cell in plan.cells if cell.block == "budget_x0.8"]
    assert {cell.config["budget"]["bytes"] for cell in smaller} == {240_000_000}
    slower = [cell for cell in plan.cells if cell.block == "step_time_x2"]
    assert {cell.axes["step_time_factor"] for cell in slower} == {2.0}
    assert plan.registration == make_plan(launch, engine="sim").registration


def test_blocks_elsewhere_say_what_differs() -> None:
    assert elsewhere("budget_x0.8") == "budget x 0.8"
    assert elsewhere("step_time_x2") == "step times x 2"
    assert elsewhere("grid") is None


def test_every_choice_is_one_of_a_server() -> None:
    assert {axis.name for axis in CHOICES} >= {"organization", "headroom", "retention", "leaves"}
    assert not {axis.name for axis in CHOICES} & {"budget", "cap", "rate_per_s", "sharing"}


# -- step times ------------------------------------------------------------------------------------

ONE = ("campaign=q6", "budget=b63", "organization=s2", "admission.headroom=0", "seeds=[7]")
FEW = ("workload.num_requests=6",)


def test_steps_that_take_twice_as_long_double_every_duration() -> None:
    (plain,) = planned(*ONE, *FEW).cells
    (slow,) = planned(*ONE, *FEW, "step_time_factor=2").cells
    one, two = (execute(cell, record_steps=True).steps for cell in (plain, slow))
    assert one is not None and two is not None
    first, second = one["step_s"].iloc[0], two["step_s"].iloc[0]
    assert second == pytest.approx(2.0 * first, abs=1e-8)


def test_a_factor_of_one_is_the_cell_that_it_was_before_there_was_any() -> None:
    (plain,) = planned(*ONE).cells
    (named,) = planned(*ONE, "step_time_factor=1").cells
    assert named.cell_id == plain.cell_id
    assert "step_time_factor" not in plain.axes.keys() | plain.config.keys()
    (other,) = planned(*ONE, "step_time_factor=2").cells
    assert other.cell_id != plain.cell_id
    assert parse_run(other.config).step_time_factor == 2.0


def test_a_real_engine_takes_no_factor_on_its_steps() -> None:
    with pytest.raises(ConfigError, match="step_time_factor must be 1 on a real engine"):
        make_plan(composed(*ONE, "engine=vllm", "step_time_factor=2"), engine="vllm")


@pytest.mark.parametrize("factor", ["0", "-1"])
def test_a_factor_that_is_not_positive_is_refused(factor: str) -> None:
    with pytest.raises(ConfigError, match="step_time_factor must be greater than 0"):
        composed(*ONE, f"step_time_factor={factor}")
