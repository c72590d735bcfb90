"""A campaign at another size: fewer requests and cells, the same memory in pages."""

import pytest
from launches import composed, planned

from hsexp.config.base import ConfigError
from hsexp.memory.organizations import create
from hsexp.plan.cells import Plan
from hsexp.plan.planner import make_plan
from hsexp.plan.run import VllmRunConfig, parse_run

MINI = ("device=cpu", "model=falcon_h1_mini")


def real(*overrides: str) -> Plan:
    return make_plan(composed("engine=vllm", *MINI, *overrides), engine="vllm")


def pages(plan: Plan) -> dict[tuple[str, str], list[int]]:
    """Pages of each pool by organization and budget."""
    found = {}
    for cell in plan.cells:
        config = parse_run(cell.config)
        layout = create(config.organization, config.model).plan(config.budget.bytes)
        found[config.organization.name, config.budget.name] = [p.num_pages for p in layout.pools]
    return found


def test_a_small_model_on_cores_has_the_pages_that_falcon_has() -> None:
    small, large = pages(real("campaign=q1")), pages(planned("campaign=q1"))
    for shared in ("s1", "s2"):
        assert small[shared, "b63"] == large[shared, "b63"] == [193]
        assert small[shared, "b83"] == large[shared, "b83"] == [254]
    # The convolution is a little larger beside the rest: S0's pages are 0.6 % wider.
    assert (small["s0", "b63"], large["s0", "b63"]) == ([63], [63])


def test_lengths_and_rates_stay_and_requests_are_fewer() -> None:
    ours, papers = real("campaign=q1").cells[0].config, planned("campaign=q1").cells[0].config
    law = papers["workload"] | {"num_requests": 60, "kind": "synthetic", "name": "extension"}
    only_drawn = ("output_short_fraction", "output_short_max_tokens")
    assert ours["workload"] == {key: law[key] for key in law if key not in only_drawn}
    assert ours["arrivals"] == papers["arrivals"] | {"kind": "poisson"}


def test_a_scale_keeps_the_laws_that_its_ledgers_were_measured_under() -> None:
    for campaign, law in (("q1", "extension"), ("q6", "confirmation"), ("q9", "confirmation")):
        laws = {
            (cell.config["workload"]["name"], cell.config["arrivals"]["kind"])
            for cell in real(f"campaign={campaign}").cells
        }
        assert laws == {(law, "poisson")}


def test_a_field_that_the_command_line_changes_holds_for_the_law_of_the_scale() -> None:
    cell = real("campaign=q1", "workload.zipf_exponent=0.5", "arrivals.rate_per_s=2.0").cells[0]
    assert cell.config["workload"]["zipf_exponent"] == 0.5
    assert cell.config["workload"]["name"] == "extension"
    assert cell.config["arrivals"] == {"kind": "poisson", "rate_per_s": 2.0}


def test_a_law_that_the_command_line_names_is_not_replaced() -> None:
    cell = real("campaign=q1", "workload=original").cells[0]
    assert cell.config["workload"]["name"] == "original"


def test_a_campaign_without_a_design_at_this_scale_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="scale cpu_falcon_h1_mini has no design for campaign q3"):
        real("campaign=q3")


def test_without_its_scale_a_campaign_has_the_paper_s_cells() -> None:
    assert len(real("campaign=q1", "~scale").cells) == len(planned("campaign=q1").cells)


def test_what_the_command_line_changes_is_taken_as_it_is() -> None:
    (cell,) = real(
        "campaign=q1",
        "workload.num_requests=20",
        "organization=s2",
        "organization.slot_bytes=16384",
        "budget=bytes",
        "budget.bytes=99000000",
        "seeds=[42000]",
    ).cells
    assert cell.config["workload"]["num_requests"] == 20
    assert cell.config["organization"]["slot_bytes"] == 16384
    assert cell.config["budget"]["bytes"] == 99000000


def test_a_pinned_budget_is_scaled_like_the_others() -> None:
    pinned, every = real("campaign=q1", "budget=b63"), real("campaign=q1")
    assert {cell.cell_id for cell in pinned.cells} < {cell.cell_id for cell in every.cells}


def test_scaled_seeds_are_registered_as_the_campaign_s() -> None:
    assert real("campaign=q6").registration["seeds"] == {"confirmation": [76400, 76401, 76402]}


# -- cells of a real engine ------------------------------------------------------------------------


def test_a_fitted_device_changes_no_measured_cell() -> None:
    fitted = "device.step_time={name: fit, base_s: 1, decode_token_s: 0, prefill_token_s: 0}"
    plain, changed = real("campaign=q1"), real("campaign=q1", fitted)
    assert [cell.cell_id for cell in plain.cells] == [cell.cell_id for cell in changed.cells]
    assert plain.contract == changed.contract


@pytest.mark.parametrize(
    "override",
    [
        "engine.transport=inproc",
        "engine.num_warmup_requests=0",
        "engine.max_retries=0",
        "device.hardware.threads=2",
        "model.checkpoint=other",
    ],
)
def test_what_serves_a_run_names_it(override: str) -> None:
    plain, changed = real("campaign=q1"), real("campaign=q1", override)
    assert plain.contract != changed.contract
    assert plain.cells[0].cell_id != changed.cells[0].cell_id


def test_the_patience_with_an_engine_changes_no_cell() -> None:
    plain, changed = real("campaign=q1"), real("campaign=q1", "engine.limits.stall_s=5")
    assert [cell.cell_id for cell in plain.cells] == [cell.cell_id for cell in changed.cells]


def test_every_seed_of_a_measured_campaign_begins_with_another_setting() -> None:
    plan = real("campaign=q1", "budget=b63")
    first = [cell.axes["organization"] for cell in plan.cells[::4]]
    assert first == ["s0", "s1", "s2"]
    assert isinstance(parse_run(plan.cells[0].config), VllmRunConfig)


def test_a_device_without_hardware_cannot_run_an_engine() -> None:
    with pytest.raises(ConfigError, match=r"device\.hardware is required to run vllm, got null"):
        real("campaign=q1", "device.hardware=null")


def test_a_device_that_was_never_fitted_cannot_be_simulated() -> None:
    launch = composed("campaign=q1", "engine=sim", *MINI)
    with pytest.raises(ConfigError, match=r"device\.step_time is required to simulate"):
        _ = launch.device.known_step_time


def test_an_engine_is_traced_like_a_simulation() -> None:
    cells = real("campaign=q7").cells
    assert [cell.config["trace"] for cell in cells].count(True) == len(cells) / 2 == 12
    pairs = {(cell.pair_id, cell.axes["organization"], cell.axes["headroom"]) for cell in cells}
    assert len(pairs) == 12  # with and without a trace
    (one,) = real("campaign=q1", "trace=true", "organization=s2", "budget=b63", "seeds=[1]").cells
    assert isinstance(parse_run(one.config), VllmRunConfig) and one.config["trace"]


@pytest.mark.parametrize("campaign", ["q7", "q8", "submitted_work"])
def test_a_traced_campaign_at_another_size_keeps_its_blocks_and_its_loads(campaign: str) -> None:
    def loads(plan: Plan) -> set[tuple[object, ...]]:
        names = ("budget", "rate_per_s", "admission.cap", "headroom", "retention", "pinning")
        return {
            (cell.block, *(cell.axes.get(name) for name in ("organization", "seed", *names)))
            for cell in plan.cells
        }

    plan = real(f"campaign={campaign}")
    blocks = {cell.block for cell in plan.cells}
    whole = planned(f"campaign={campaign}")
    left_out = {cell.block for cell in whole.cells} - blocks
    assert left_out == ({"M", "M_trace", "H", "H_trace"} if campaign == "submitted_work" else set())
    assert loads(plan) == {load for load in loads(whole) if load[0] in blocks}
    assert {cell.config["workload"]["num_requests"] for cell in plan.cells} == {60}
