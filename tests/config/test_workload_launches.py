"""Launches of workloads beside the paper's: which axes apply to them, and what is refused."""

import pytest
from launches import composed, planned

from hsexp.config.base import ConfigError
from hsexp.plan.planner import make_plan
from hsexp.plan.run import parse_run
from runners.sim import workload_of

OURS = ["conversations", "nested", "drifting", "contexts_64", "contexts_256"]
OURS += ["long_prompts", "double_outputs"]


@pytest.mark.parametrize("name", OURS)
def test_a_workload_is_named_on_the_command_line_and_its_arms_serve_the_same_requests(
    name: str,
) -> None:
    plan = planned("campaign=q6", f"workload={name}", "budget=b63", "seeds=[7]")
    digests = {workload_of(parse_run(cell.config))[1] for cell in plan.cells}
    assert len(plan.cells) == 10  # 2 organizations * 5 headrooms
    assert len(digests) == 1
    assert {cell.config["workload"]["name"] for cell in plan.cells} == {name}


def test_every_workload_makes_cells_of_its_own() -> None:
    narrow = ("campaign=q6", "budget=b63", "admission.headroom=0", "seeds=[7]")
    names = [*OURS, "extension_drawn", "confirmation_drawn"]
    ids = [c.cell_id for name in names for c in planned(*narrow, f"workload={name}").cells]
    assert len(set(ids)) == len(ids) == 2 * len(names)


def test_a_setting_of_a_conversation_is_typed_like_any_other() -> None:
    typed = ("workload=conversations", "workload.message.median_tokens=30", "seeds=[7]")
    cell = planned("campaign=q6", "budget=b63", *typed).cells[0]
    message = cell.config["workload"]["message"]
    assert (message["median_tokens"], message["sigma"]) == (30.0, 1.0)


def test_conversations_fix_their_own_sharing_and_the_plan_says_so() -> None:
    plan = planned("campaign=q6", "workload=conversations", "budget=b63", "seeds=[7]")
    assert "sharing" not in plan.cells[0].config["workload"]
    assert [note for note in plan.notes if note.startswith("sharing")] == [
        "sharing 1.0 of the campaign is not applied: workload conversations fixes its own"
    ]


def test_a_fraction_of_sharing_is_refused_by_conversations() -> None:
    with pytest.raises(
        ConfigError,
        match=r"workload\.sharing must be null, got 0\.5: workload conversations fixes its own",
    ):
        planned("campaign=q6", "workload=conversations", "+workload.sharing=0.5")


def test_a_campaign_that_varies_its_sharing_cannot_serve_conversations() -> None:
    with pytest.raises(ConfigError, match=r"workload\.sharing must be one value, got .*conversat"):
        planned("campaign=q3", "workload=conversations")


def test_nested_prefixes_follow_the_sharing_of_the_campaign() -> None:
    typed = ("workload=nested", "workload.sharing=0.5", "budget=b63", "seeds=[7]")
    cell = planned("campaign=q6", *typed).cells[0]
    requests = workload_of(parse_run(cell.config))[0].requests
    assert 100 < sum(bool(request.segments) for request in requests) < 200


@pytest.mark.parametrize("workload", ["conversations", "extension workload.sharing=1.0"])
def test_a_law_without_a_rate_is_refused_by_the_plan(workload: str) -> None:
    with pytest.raises(ConfigError, match=r"arrivals\.rate_per_s is required: .* no times of i"):
        planned("campaign=trace", *f"workload={workload}".split())


def test_both_engines_plan_the_same_conversations() -> None:
    launch = composed(
        *("campaign=q6", "workload=conversations", "budget=b63", "seeds=[76400]"),
        *("device=cpu", "model=falcon_h1_mini", "organization=s2"),
    )
    digests = {
        workload_of(parse_run(cell.config))[1]
        for engine in ("sim", "vllm")
        for cell in make_plan(launch, engine=engine).cells  # type: ignore[arg-type]
    }
    assert len(digests) == 1


@pytest.mark.parametrize("name", OURS)
def test_a_small_machine_serves_about_sixty_requests_of_each_workload(name: str) -> None:
    typed = (f"workload={name}", "device=cpu", "model=falcon_h1_mini", "organization=s2")
    plan = planned("campaign=q6", *typed, "admission.headroom=0", "seeds=[76400]")
    (cell,) = plan.cells
    assert len(workload_of(parse_run(cell.config))[0].requests) == pytest.approx(60, abs=15)
