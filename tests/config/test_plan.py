"""The plan of a campaign: which cells, how they pair, what narrows them, what names them."""

import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import commands
import pytest
from launches import composed_data, planned, planned_blocks

from hsexp.config import catalog
from hsexp.config.base import ConfigError
from hsexp.config.launch import parse_launch
from hsexp.ledger.contract import Contract
from hsexp.plan.cells import Plan, content_key
from hsexp.plan.contract import in_words
from hsexp.plan.planner import make_plan
from hsexp.plan.run import RunConfig

ONE_SEED = ("budget=b63", "seeds=[76400]")
"""Leaves ten of Q6's cells."""


@pytest.fixture(scope="module")
def q6() -> Plan:
    return planned("campaign=q6")


def values(plan: Plan, axis: str) -> set[Any]:
    return {cell.axes[axis] for cell in plan.cells}


def ids(plan: Plan) -> list[str]:
    return [cell.cell_id for cell in plan.cells]


def refused(recorded: Plan, plan: Plan) -> list[str]:
    """What a ledger in which every cell of one plan has run says to another plan."""
    ledger = Contract.of(recorded.contract)
    return ledger.conflicts(Contract.of(plan.contract), fixed=ledger.terms)


# -- cells -----------------------------------------------------------------------------------------


def test_q6_has_360_cells_twelve_seeds_of_thirty_settings(q6: Plan) -> None:
    assert len(q6.cells) == len(set(ids(q6))) == 360
    settings = defaultdict(set)
    for cell in q6.cells:
        setting = tuple((axis, value) for axis, value in cell.axes.items() if axis != "seed")
        settings[setting].add(cell.axes["seed"])
    assert len(settings) == 30  # 3 budgets * 2 organizations * 5 headrooms
    assert set(map(frozenset, settings.values())) == {frozenset(range(76400, 76412))}
    assert q6.notes == ()


def test_a_pair_is_the_arms_that_differ_in_organization_or_headroom_alone(q6: Plan) -> None:
    pairs = defaultdict(list)
    for cell in q6.cells:
        pairs[cell.pair_id].append(cell.axes)
    assert len(pairs) == 36  # 3 budgets * 12 seeds
    for arms in pairs.values():
        assert len({(axes["budget"], axes["seed"]) for axes in arms}) == 1
        assert len({(axes["organization"], axes["headroom"]) for axes in arms}) == len(arms) == 10


def test_runs_under_other_arrivals_are_no_pair() -> None:
    plan = planned("campaign=bursts")
    arrivals = {cell.pair_id: set[str]() for cell in plan.cells}
    for cell in plan.cells:
        arrivals[cell.pair_id].add(cell.config["arrivals"]["kind"])
    kinds_of_all = {kind for kinds in arrivals.values() for kind in kinds}
    assert kinds_of_all == {"burst_drawn", "poisson_drawn"}
    assert all(len(kinds) == 1 for kinds in arrivals.values())


def test_the_first_thirty_cells_are_one_whole_seed_and_arms_run_side_by_side(q6: Plan) -> None:
    assert {cell.axes["seed"] for cell in q6.cells[:30]} == {76400}
    for first, second in zip(q6.cells[::2], q6.cells[1::2], strict=True):
        assert first.pair_id == second.pair_id
        assert (first.axes["organization"], second.axes["organization"]) == ("d0", "s2")


def test_a_cell_is_named_by_its_configuration_which_can_be_read_back(q6: Plan) -> None:
    for cell in q6.cells[:30]:
        config = RunConfig.parse(cell.config)
        assert content_key(config.model_dump(mode="json")) == cell.cell_id
        assert config.organization.name == cell.axes["organization"]
        assert config.budget.name == cell.axes["budget"]
        assert config.admission.headroom == cell.axes["headroom"]
        assert config.seed == cell.axes["seed"]


# -- narrowing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "axis", "value", "num_cells", "note"),
    [
        ("organization=d0", "organization", "d0", 180, "organization narrowed to d0 (of d0, s2)"),
        ("budget=b63", "budget", "b63", 120, "budget narrowed to b63 (of b108, b63, b83)"),
        (
            "admission.headroom=0.19",
            "headroom",
            0.19,
            72,
            "headroom narrowed to 0.19 (of 0.0, 0.1, 0.19, 0.27, 0.35)",
        ),
        (
            "seeds=[76400]",
            "seed",
            76400,
            30,
            "seeds narrowed to 76400 (of 12 values from 76400 to 76411)",
        ),
    ],
)
def test_a_planned_value_narrows_its_axis_to_cells_of_the_full_plan(
    override: str, axis: str, value: Any, num_cells: int, note: str, q6: Plan
) -> None:
    plan = planned("campaign=q6", override)
    assert values(plan, axis) == {value}
    assert plan.notes == (note,)
    assert len(plan.cells) == num_cells
    assert ids(plan) == [cell.cell_id for cell in q6.cells if cell.axes[axis] == value]


@pytest.mark.parametrize(
    ("overrides", "axis", "value", "note"),
    [
        (["organization=s1"], "organization", "s1", "organization set to s1, which"),
        (["budget=b320"], "budget", "b320", "budget set to b320, which"),
        (
            ["budget=bytes", "budget.bytes=200000000"],
            "budget",
            "bytes_200000000",
            "budget set to bytes_200000000, which the campaign does not plan (it has b108, b63",
        ),
        (["admission.headroom=0.5"], "headroom", 0.5, "headroom set to 0.5, which"),
        (["admission.cap=10"], "cap", 10, "cap set to 10, which"),
        (["arrivals.rate_per_s=1.5"], "rate_per_s", 1.5, "rate_per_s set to 1.5, which"),
        (["workload.sharing=0.5"], "sharing", 0.5, "sharing set to 0.5, which"),
        (["retention=k2"], "retention", "k2", "retention set to k2, which"),
        (["pinning=off"], "pinning", "off", "pinning set to off, which"),
        (["isolation=isolate"], "isolation", "isolate", "isolation set to isolate, which"),
        (["seeds=[7]"], "seed", 7, "seeds set to 7, which"),
    ],
)
def test_a_value_that_the_campaign_lacks_replaces_the_axis_and_the_plan_says_so(
    overrides: list[str], axis: str, value: Any, note: str, q6: Plan
) -> None:
    plan = planned("campaign=q6", *overrides)
    assert values(plan, axis) == {value}
    assert [each for each in plan.notes if each.startswith(note)] == list(plan.notes)
    assert len(plan.cells) == 360 // len(values(q6, axis))
    assert not set(ids(plan)) & set(ids(q6))


def test_a_value_that_is_the_whole_axis_narrows_nothing(q6: Plan) -> None:
    plan = planned("campaign=q6", "admission.cap=63", "pinning=k1")
    assert (ids(plan), plan.notes) == (ids(q6), ())


def test_two_axes_narrow_together(q6: Plan) -> None:
    plan = planned("campaign=q6", "budget=b83", "organization=s2", "seeds=[76400,76403]")
    assert len(plan.cells) == 10  # 5 headrooms * 2 seeds
    assert set(ids(plan)) < set(ids(q6))


# -- blocks ----------------------------------------------------------------------------------------

TWO_BLOCKS: dict[str, dict[str, Any]] = {
    "small": {"budget": ["b63", "b83"], "headroom": [0.0], "seeds": [1, 2]},
    "large": {"budget": ["b108"], "headroom": [0.0], "seeds": [1]},
}


def test_a_block_without_the_chosen_value_is_left_out_while_another_has_it() -> None:
    plan = planned_blocks(TWO_BLOCKS, "budget=b63")
    assert {cell.block for cell in plan.cells} == {"small"}
    assert len(plan.cells) == 4  # 2 organizations * 2 seeds


def test_no_cell_comes_from_a_block_without_the_chosen_value() -> None:
    large = TWO_BLOCKS["large"] | {"seeds": [9]}
    plan = planned_blocks(TWO_BLOCKS | {"large": large}, "budget=b63")
    assert 9 not in values(plan, "seed")


def test_a_value_that_no_block_has_goes_to_all_and_shared_cells_run_once() -> None:
    plan = planned_blocks(TWO_BLOCKS, "budget=b320")
    # small: 2 organizations * 2 seeds; large: the same with seed 1 only
    assert len(plan.cells) == 4
    assert "2 cells are shared between blocks and run once" in plan.notes


def test_blocks_with_and_without_a_rate_can_be_narrowed_to_one() -> None:
    """Sorting None among the rates used to fail."""
    blocks: dict[str, dict[str, Any]] = {
        "drawn": {"rate_per_s": [2.0]},
        "own": {"rate_per_s": [None]},
    }
    plan = planned_blocks(blocks, "arrivals.rate_per_s=2.0")
    assert {cell.block for cell in plan.cells} == {"drawn"}
    assert plan.notes == ("rate_per_s narrowed to 2.0 (of None, 2.0)",)


# -- names -----------------------------------------------------------------------------------------


def test_cells_have_the_same_names_in_every_process(q6: Plan) -> None:
    program = (
        "from launches import planned\n"
        "print(*[f'{cell.cell_id} {cell.pair_id}' for cell in planned('campaign=q6').cells])"
    )
    expected = " ".join(f"{cell.cell_id} {cell.pair_id}" for cell in q6.cells)
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=commands.environment(Path(__file__).parent, PYTHONHASHSEED=hash_seed),
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == expected


def test_cells_have_the_same_names_whatever_the_order_of_keys(q6: Plan) -> None:
    data = reversed_keys(composed_data("campaign=q6"))
    assert ids(make_plan(parse_launch(data), engine="sim")) == ids(q6)


def reversed_keys(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: reversed_keys(value) for key, value in reversed(data.items())}
    return data


def test_any_number_that_decides_a_run_changes_its_name(q6: Plan) -> None:
    changed = [
        "model.max_model_tokens=4096",
        "workload.num_requests=299",
        "scheduler.token_budget=4096",
        "device.step_time.base_s=0.016",
    ]
    plans = [planned("campaign=q6", *ONE_SEED, override) for override in changed]
    names = {plan.cells[0].cell_id for plan in [q6, *plans]}
    assert len(names) == 5


# -- contract --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "overrides",
    [
        ["budget=b63"],
        ["budget=bytes", "budget.bytes=200000000"],
        ["organization=s2"],
        ["organization=s0"],
        ["pinning=off"],
        ["admission.headroom=0.5", "admission.cap=9"],
        ["arrivals.rate_per_s=1.0", "workload.sharing=0.0"],
        ["seeds=[1]", "workers=1", "stage=run", "ledger=elsewhere"],
        list(ONE_SEED),
    ],
)
def test_a_narrowed_plan_goes_into_the_ledger_of_the_full_one(
    overrides: list[str], q6: Plan
) -> None:
    """Its contract is its own: it has the names that its cells use (once: all that there are)."""
    assert refused(q6, planned("campaign=q6", *overrides)) == []


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.max_model_tokens=4096"],
        ["model=granite_4_h"],
        ["workload.num_requests=299"],
        ["workload=original"],
        ["arrivals=burst"],
        ["organization=s2", "organization.reserve_fraction=0.1"],
        ["pinning=k1", "pinning.protected_fraction=0.4"],
        ["scheduler.token_budget=4096"],
        ["device.step_time.base_s=0.016"],
    ],
)
def test_a_changed_number_needs_a_ledger_of_its_own(overrides: list[str], q6: Plan) -> None:
    assert refused(q6, planned("campaign=q6", *ONE_SEED, *overrides))


def test_an_overridden_field_concerns_the_cells_of_its_organization_alone(q6: Plan) -> None:
    other = planned("campaign=q6", "organization=s2", "organization.block_size=256")
    assert refused(q6, other) == ["organization.s2.block_size: ledger has 512, this run has 256"]
    only_d0 = planned("campaign=q6", "organization=d0")
    assert refused(only_d0, other) == []


def test_a_contract_names_what_its_cells_use_and_nothing_else(q6: Plan) -> None:
    options = planned("campaign=q6", *ONE_SEED, "organization=s2").contract["options"]
    assert {group: list(names) for group, names in options.items()} == {
        "organization": ["s2"],
        "budget": ["b63"],
        "retention": ["off"],
        "pinning": ["k1"],
        "isolation": ["share"],
    }
    assert set(q6.contract["blocks"]) == {"confirmation"}


def test_an_option_that_no_cell_uses_changes_no_contract(
    q6: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(catalog.CONF, tmp_path / "conf")
    plain = (catalog.CONF / "organization" / "s2.yaml").read_text(encoding="utf-8")
    (tmp_path / "conf" / "organization" / "s3.yaml").write_text(
        plain.replace("name: s2", "name: s3")
    )
    monkeypatch.setattr(catalog, "CONF", tmp_path / "conf")
    assert "s3" in catalog.options("organization")
    assert planned("campaign=q6").contract == q6.contract


def test_a_budget_s_name_has_one_size(q6: Plan) -> None:
    other = planned("campaign=q6", "budget=b63", "budget.bytes=200000000")
    (line,) = refused(q6, other)
    assert line.startswith("budget.b63.bytes: ledger has ")


def test_free_text_is_not_compared_and_makes_no_new_cells(q6: Plan) -> None:
    described = planned("campaign=q6", "device.description=another", "device.source=another")
    assert refused(q6, described) == []
    assert ids(described) != ids(q6)
    assert ids(in_words(described, q6.contract["words"])) == ids(q6)


def test_two_engines_never_share_a_ledger(q6: Plan) -> None:
    launch = parse_launch(composed_data("campaign=q6"))
    assert make_plan(launch, engine="vllm").contract != q6.contract


# -- exact continuation ----------------------------------------------------------------------------


def test_an_exact_launch_has_cells_and_a_contract_of_its_own(q6: Plan) -> None:
    exact = planned("campaign=q6", "engine=sim", "engine.exact=true")
    assert all(cell.config["exact"] for cell in exact.cells)
    assert not {cell.cell_id for cell in exact.cells} & {cell.cell_id for cell in q6.cells}
    assert refused(q6, exact) == ["blocks.confirmation.exact: ledger has false, this run has true"]


def test_cells_without_exact_keep_the_names_that_they_had_before_there_was_any(q6: Plan) -> None:
    assert all("exact" not in cell.config for cell in q6.cells)
    assert q6.contract["blocks"]["confirmation"]["exact"] is False


def test_exact_blocks_differ_from_stock_ones_in_nothing_else() -> None:
    plan = planned("campaign=exact_cost", "seeds=[42000]")
    stock, exact = (
        [cell for cell in plan.cells if cell.block == block] for block in ("stock", "exact")
    )
    assert len(stock) == len(exact) == 5 * 3 * 2
    for one, other in zip(stock, exact, strict=True):
        assert one.config | {"exact": True} == other.config
        assert (one.axes, one.pair_id) == (other.axes, other.pair_id)
    exact_of = {name: block["exact"] for name, block in plan.contract["blocks"].items()}
    assert exact_of == {"stock": False, "exact": True}


# -- separation ------------------------------------------------------------------------------------


def test_blocks_that_separate_differ_from_the_others_in_nothing_else() -> None:
    plan = planned("campaign=live_separation", "seeds=[71000]")
    mixed, separated = (
        [cell for cell in plan.cells if cell.block == block] for block in ("mixed", "separated")
    )
    assert len(mixed) == len(separated) == 4  # two organizations at two headrooms
    for one, other in zip(mixed, separated, strict=True):
        assert one.config["scheduler"] | {"separate": True} == other.config["scheduler"]
        assert one.config | {"scheduler": None} == other.config | {"scheduler": None}
        assert (one.axes, one.pair_id) == (other.axes, other.pair_id)
        assert one.cell_id != other.cell_id
    separate = {name: block["separate"] for name, block in plan.contract["blocks"].items()}
    assert separate == {"mixed": False, "separated": True}


def test_the_launch_s_scheduler_reaches_blocks_that_separate() -> None:
    plan = planned("campaign=live_separation", "seeds=[71000]", "scheduler.token_budget=4096")
    assert {cell.config["scheduler"]["token_budget"] for cell in plan.cells} == {4096}


def test_separation_is_refused_on_an_engine_that_mixes() -> None:
    launch = parse_launch(composed_data("campaign=live_separation"))
    with pytest.raises(
        ConfigError, match=r"scheduler\.separate must be false unless engine is sim"
    ):
        make_plan(launch, engine="vllm")


# -- the engine that a device was fitted to --------------------------------------------------------


def release_orders(plan: Plan) -> dict[str, str]:
    """Where each organization releases the first page of an uncached state."""
    return {
        cell.axes["organization"]: cell.config["organization"]["release_order"][
            "plain_representative"
        ]
        for cell in plan.cells
    }


def test_a_simulation_has_the_organizations_of_the_engine_that_its_device_was_fitted_to() -> None:
    assert release_orders(planned("campaign=q4")) == {
        "s0": "tail", "s1": "head", "s2": "head", "d0": "head",
    }  # fmt: skip
    assert release_orders(planned("campaign=isolation_pilot"))["d0_m512"] == "tail"


def test_another_device_and_a_real_engine_keep_the_order_of_the_option() -> None:
    launch = parse_launch(composed_data("campaign=q1"))
    assert release_orders(make_plan(launch, engine="vllm"))["s0"] == "head"
    fitted = planned("campaign=q1", "device=cpu_falcon_h1_mini_q1", "~scale")
    assert release_orders(fitted)["s0"] == "head"


def test_a_field_of_an_organization_that_the_command_line_changes_is_kept() -> None:
    typed = "organization.release_order.plain_attention=tail"
    cells = planned("campaign=q1", "organization=s0", typed).cells
    order = cells[0].config["organization"]["release_order"]
    assert (order["plain_attention"], order["plain_representative"]) == ("tail", "head")


def test_a_field_that_an_organization_does_not_have_is_refused_with_the_device() -> None:
    wrong = "+device.organization.s0.slots=3"
    with pytest.raises(ConfigError, match=r"device\.organization\.s0"):
        planned("campaign=q1", wrong)


def test_a_simulation_of_a_model_that_the_device_was_not_fitted_to_says_so() -> None:
    notes = planned("campaign=q6", "model=granite_4_h", "engine=sim").notes
    assert (
        "device a100_40gb has the step times of falcon_h1_7b; those of granite_4_h are not known: "
        "compare organizations, not seconds"
    ) in notes
    assert not any("step times" in note for note in planned("campaign=q6", "engine=sim").notes)
