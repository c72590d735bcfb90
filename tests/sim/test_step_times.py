"""Step times: base, decode and prefill tokens, and what paged kernels add."""

import pytest
from hydra import compose, initialize_config_dir
from toy_engine import SLOW_STEPS

from hsexp.config.catalog import CONF
from hsexp.config.device import RunnerModel, StepTimeModel
from hsexp.config.launch import parse_launch
from hsexp.memory import MemoryConfig
from hsexp.plan.planner import make_plan
from hsexp.plan.resolve import standing
from hsexp.sim.steptime import StepClock
from runners.sim import execute

PAGED = StepTimeModel(
    name="toy",
    base_s=0.010,
    decode_token_s=0.001,
    prefill_token_s=0.0001,
    paged_decode_token_s=0.0005,
)


def test_a_paged_decode_token_costs_more_and_a_prefill_token_does_not() -> None:
    # 10 ms + 4 x 1 ms + 20 x 0.1 ms; paged 4 x 0.5 ms more.
    assert StepClock.of(PAGED, paged=False).step_ns(4, 20) == 16_000_000
    assert StepClock.of(PAGED, paged=True).step_ns(4, 20) == 18_000_000


def test_a_device_that_knows_no_difference_makes_none() -> None:
    model = SLOW_STEPS.known_step_time
    assert StepClock.of(model, paged=True) == StepClock.of(model, paged=False)


def test_a_device_that_knows_no_difference_keeps_the_ids_of_its_cells() -> None:
    assert "paged_decode_token_s" not in SLOW_STEPS.model_dump(mode="json")["step_time"]


def test_only_organizations_that_page_a_state_run_under_paged_kernels() -> None:
    catalog = standing("capacity").catalog.options["organization"]
    model = standing("capacity").launch.model
    paged = {
        name: MemoryConfig.without_policies(model=model, organization=organization).paged
        for name, organization in catalog.items()
    }
    assert {name for name, is_paged in paged.items() if is_paged} == {"s1", "s1_fine", "s2", "s3"}
    assert {"s0", "d0", "d0_m512"} <= paged.keys()


@pytest.mark.parametrize(
    ("organization", "paged"), [("s0", False), ("s1", True), ("s2", True), ("s3", True)]
)
def test_a_run_takes_the_times_of_its_organization(organization: str, paged: bool) -> None:
    overrides = ["campaign=q1", "budget=b63", f"organization={organization}", "seeds=[42000]"]
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        launch = parse_launch(compose("config", [*overrides, "workload.num_requests=3"]))
    (cell,) = make_plan(launch, engine="sim").cells
    steps = execute(cell, record_steps=True).steps
    assert steps is not None
    clock = StepClock.of(launch.device.known_step_time, paged=paged)
    for step in steps.itertuples():
        assert round(step.step_s * 1e9) == clock.step_ns(step.decode_tokens, step.prefill_tokens)
    assert steps["decode_tokens"].max() > 0


def test_an_episode_is_whole_polls_and_a_constant() -> None:
    runner = RunnerModel(poll_s=10.0, lead_s=11.0, close_s=5.0)
    # 189 + 11 s are 20 polls to the second; a hair more waits for the 21st.
    assert runner.episode_s(189.0) == 205.0
    assert runner.episode_s(189.001) == 215.0
    assert runner.episode_s(0.5) == 25.0


def test_a_simulated_run_on_the_papers_device_has_its_runner_s_episode() -> None:
    overrides = ["campaign=q9", "retention=off", "isolation=share", "seeds=[88001]"]
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        launch = parse_launch(compose("config", [*overrides, "workload.num_requests=3"]))
    (cell,) = make_plan(launch, engine="sim").cells
    metrics = execute(cell).metrics
    assert launch.device.runner is not None
    assert metrics["episode_s"] == launch.device.runner.episode_s(metrics["span_s"])
    assert metrics["ledger_throughput_tok_per_s"] == metrics["output_tokens"] / metrics["episode_s"]


def test_a_real_engine_has_an_episode_of_its_own() -> None:
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        launch = parse_launch(compose("config", ["campaign=q9", "seeds=[88001]"]))
    cells = make_plan(launch, engine="vllm").cells
    assert all("runner" not in cell.config["device"] for cell in cells)
