"""Orders and placement as axes: an added axis changes nothing where it is neutral."""

from pathlib import Path
from typing import Any

import pytest
from launches import Command, composed, planned, planned_blocks

from hsexp.config.axes import AXES, MEMORY_AXES, stated, value_of
from hsexp.config.base import ConfigError
from hsexp.config.campaigns import ServingCampaign
from hsexp.config.catalog import options, read_option
from hsexp.engine.settings import EngineSettings, ServingSettings
from hsexp.ledger import Ledger
from hsexp.ledger.contract import Contract
from hsexp.memory.geometry import ModelConfig
from hsexp.plan.run import RunConfig
from hsexp.serve import Command as ServeCommand

ONE_SEED = ("budget=b63", "seeds=[76400]")
IMPLIED = [axis for axis in AXES if axis.is_implied and axis.name != "step_time_factor"]
"""The implied axes that are rules. The factor on step times is a number."""
ORDERS = {"eviction": "lru", "waiting": "hit_first"}
OTHERS = ORDERS | {
    "placement": "junction",
    "reservation": "promised",
    "states": "in_place",
    "leaves": "final",
}


def test_a_cell_with_neutral_orders_is_the_cell_that_it_was_before_there_were_any() -> None:
    plan = planned("campaign=q6", *ONE_SEED)
    neutral = tuple(f"{axis}={standing_neutral(axis)}" for axis in OTHERS)
    named = planned("campaign=q6", *ONE_SEED, *neutral)
    assert [cell.cell_id for cell in named.cells] == [cell.cell_id for cell in plan.cells]
    assert (named.contract, named.digest) == (plan.contract, plan.digest)
    for cell in (*plan.cells, *named.cells):
        assert not OTHERS.keys() & (cell.axes.keys() | cell.config.keys())
        config = RunConfig.parse(cell.config)
        assert (config.eviction.name, config.waiting.name) == ("paper", "first_come")
        assert config.placement.name == "chunk_ends"
        assert config.reservation.name == "full_prompt"
        assert config.states.name == "per_boundary"
        assert config.leaves.name == "off"


@pytest.mark.parametrize("axis", OTHERS)
def test_a_block_varies_an_order_beside_cells_that_do_not_name_it(axis: str) -> None:
    before = planned("campaign=q6", *ONE_SEED)
    neutral = standing_neutral(axis)
    plan = planned_blocks({"confirmation": {axis: [neutral, OTHERS[axis]]}}, *ONE_SEED)
    assert len(plan.cells) == 2 * len(before.cells)
    silent = [cell for cell in plan.cells if axis not in cell.axes]
    assert [cell.cell_id for cell in silent] == [cell.cell_id for cell in before.cells]
    for cell in plan.cells:
        value = value_of(cell.axes, axis)
        assert value == cell.config.get(axis, {"name": neutral})["name"]
    assert {value_of(cell.axes, axis) for cell in plan.cells} == {neutral, OTHERS[axis]}
    pairs = [cell.pair_id for cell in plan.cells]
    assert len(set(pairs)) == len({cell.pair_id for cell in before.cells})
    assert set(plan.contract["options"][axis]) == {OTHERS[axis]}


def standing_neutral(name: str) -> str:
    (neutral,) = next(axis.neutral for axis in AXES if axis.name == name) or ()
    return str(neutral)


def test_a_ledger_without_an_order_takes_cells_with_one_and_the_other_way_round() -> None:
    plain = planned("campaign=q6", *ONE_SEED)
    others = planned("campaign=q6", *ONE_SEED, "eviction=lru", "waiting=hit_first")
    for recorded, asked in [(plain, others), (others, plain)]:
        ledger = Contract.of(recorded.contract)
        assert not ledger.conflicts(Contract.of(asked.contract), fixed=ledger.terms)
    window = planned("campaign=q6", *ONE_SEED, "waiting=hit_first", "waiting.window_s=5")
    ledger = Contract.of(others.contract)
    assert ledger.conflicts(Contract.of(window.contract), fixed=ledger.terms) == [
        "waiting.hit_first.window_s: ledger has 10, this run has 5"
    ]


@pytest.mark.parametrize(
    ("overrides", "refusal"),
    [
        (("waiting=hit_first", "waiting.window_s=0"), r"waiting\.window_s must be greater than 0"),
        (("eviction=paper", "+eviction.window_s=1"), r"eviction\.window_s is not a known setting"),
        (
            ("placement=every", "placement.intervals=0"),
            r"placement\.intervals must be greater than",
        ),
        (("placement=junction", "+placement.intervals=1"), r"placement\.intervals is not a known"),
        (("reservation=promised", "reservation.spare_pages=-1"), r"spare_pages must be greater"),
        (("leaves=final", "leaves.max_final=0"), r"leaves\.max_final must be greater than 0"),
        (("leaves=off", "+leaves.max_final=1"), r"leaves\.max_final is not a known setting"),
    ],
)
def test_a_setting_that_an_order_does_not_have_is_refused_by_name(
    overrides: tuple[str, ...], refusal: str
) -> None:
    with pytest.raises(ConfigError, match=refusal):
        composed("campaign=q6", *overrides)


def test_states_in_place_are_refused_beside_a_policy_that_they_cannot_carry() -> None:
    refusal = "states in_place cannot be combined: retention keeps superseded states"
    with pytest.raises(ConfigError, match=refusal):
        planned("campaign=q6", *ONE_SEED, "states=in_place", "retention=k2")
    model = ModelConfig.parse(read_option("model", "falcon_h1_mini"))
    settings = ServingSettings.of({"organization": "s2", "states": "in_place"})
    with pytest.raises(ConfigError, match="max_leaves 64 must be 0"):
        settings.resolve(model, cap=8)
    settings = ServingSettings.of({"organization": "s2", "states": "in_place", "max_leaves": 0})
    assert settings.resolve(model, cap=8).states.name == "in_place"


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        (
            ("organization=s3",),
            "final cannot be combined with organization s3: its sequences cannot",
        ),
        (
            ("engine.exact=true",),
            "final cannot be combined with organization s2 and exact: canonical",
        ),
    ],
)
def test_leaves_are_refused_where_none_can_be_kept(settings: tuple[str, ...], refusal: str) -> None:
    with pytest.raises(ConfigError, match=f"leaves {refusal}"):
        planned("campaign=q6", *ONE_SEED, "leaves=final", "organization=s2", *settings)


def test_a_server_leaves_final_states_beside_states_in_place() -> None:
    model = ModelConfig.parse(read_option("model", "falcon_h1_mini"))
    written = {"organization": "s2", "leaves": "final", "states": "in_place", "max_leaves": 0}
    settings = ServingSettings.of(written | {"budget_bytes": 100_000_000}).resolve(model, cap=8)
    assert settings.lists_copies and settings.forked_leaves == 0
    leaves = settings.memory().branching.leaves
    assert leaves.keeps_final and not leaves.lets_fork
    per_boundary = ServingSettings.of(written | {"states": "per_boundary"}).resolve(model, cap=8)
    assert per_boundary.lists_copies
    neither = ServingSettings.of({"organization": "s2", "max_leaves": 0}).resolve(model, cap=8)
    assert not neither.lists_copies and neither.leaves.name == "off"


def test_a_price_beside_an_order_without_ranks_is_refused_before_any_run() -> None:
    with pytest.raises(ConfigError, match=r"retention priced needs an order .*, got lru"):
        planned("campaign=q6", *ONE_SEED, "retention=priced", "eviction=lru")
    plan = planned("campaign=q6", *ONE_SEED, "retention=priced", "eviction=restart_point")
    assert {cell.config["retention"]["kind"] for cell in plan.cells} == {"priced"}


@pytest.mark.parametrize("setting", [f"{axis}={option}" for axis, option in OTHERS.items()])
def test_an_order_means_nothing_to_a_campaign_without_requests(
    setting: str, command: Command
) -> None:
    exit_code, printed = command("campaign=capacity", setting, "stage=plan")
    name, value = setting.split("=")
    assert exit_code == 2
    assert f"{name} means nothing to campaign capacity, got {value}" in printed


def test_every_implied_axis_is_a_part_of_the_memory_with_one_neutral_option() -> None:
    """Its neutral value is the default of a configuration that does not name it."""
    plain = planned("campaign=q6", *ONE_SEED).cells[0]
    config = RunConfig.parse(plain.config)
    assert {axis.name for axis in IMPLIED} == OTHERS.keys()
    for axis in IMPLIED:
        assert axis in MEMORY_AXES
        assert axis.neutral == (getattr(config, axis.name).name,)
        assert getattr(config, axis.name).model_dump() == read_option(
            axis.name, standing_neutral(axis.name)
        )


def test_axes_are_stated_without_what_is_implied_and_read_with_it() -> None:
    axes = {"organization": "s2", "retention": "off", "eviction": "paper", "waiting": "hit_first"}
    named = stated(axes)
    assert named == {"organization": "s2", "retention": "off", "waiting": "hit_first"}
    assert value_of(named, "eviction") == "paper"
    with pytest.raises(KeyError):
        value_of({}, "organization")


# -- runs and tables -------------------------------------------------------------------------------


def test_runs_of_several_orders_are_printed_and_recorded_side_by_side(
    command: Command, tmp_path: Path
) -> None:
    small = ("campaign=q6", *ONE_SEED, "organization=s2", "admission.headroom=0")
    small += ("workload.num_requests=20", "engine=sim", "stage=run", "workers=1")
    ledger = tmp_path / "ledger"
    for waiting in ("first_come", "hit_first"):
        exit_code, printed = command(*small, f"waiting={waiting}", f"ledger={ledger}")
        assert exit_code == 0, printed
    frame = Ledger.read(ledger).frame()
    assert len(frame) == 2
    assert sorted(frame["waiting"].fillna("first_come")) == ["first_come", "hit_first"]
    exit_code, printed = command(*small, f"ledger={ledger}")
    assert exit_code == 0 and "1 already accepted, 0 to run" in printed


def test_a_plan_prints_an_order_that_varies_and_none_that_does_not(command: Command) -> None:
    _, printed = command("campaign=q6", *ONE_SEED, "stage=plan")
    assert "eviction" not in printed and "waiting" not in printed
    _, printed = command("campaign=q6", *ONE_SEED, "stage=plan", "eviction=lru")
    assert "eviction lru" in printed


# -- serving ---------------------------------------------------------------------------------------


def test_a_server_takes_the_orders_as_options_or_as_values() -> None:
    command = ServeCommand.parse(
        ["organization=s2", "model=m", "waiting=hit_first", "waiting.window_s=3", "eviction=lru"]
    )
    waiting = {"kind": "hit_first", "name": "hit_first", "window_s": 3}
    assert command.settings == {"organization": "s2", "eviction": "lru", "waiting": waiting}
    # An engine is not told of weights: it loads them.
    model = ModelConfig.parse(read_option("model", "falcon_h1_mini") | {"weights": None})
    written: dict[str, Any] = command.settings | {"budget_bytes": 100_000_000}
    settings = ServingSettings.of(written).resolve(model, cap=8)
    assert (settings.eviction.name, settings.waiting.name) == ("lru", "hit_first")
    assert EngineSettings.of(settings.additional_config()) == settings
    assert settings.labels.items() >= {"eviction": "lru", "waiting_window_s": 3.0}.items()


def test_an_engine_is_told_of_every_part_so_that_no_default_of_a_server_fills_a_gap() -> None:
    model = ModelConfig.parse(read_option("model", "falcon_h1_mini"))
    settings = ServingSettings.of({"organization": "s2"}).resolve(model, cap=8)
    assert {axis.name for axis in MEMORY_AXES} <= settings.additional_config()["hsexp"].keys()
    assert settings.labels.items() >= {"eviction": "paper", "waiting": "first_come"}.items()


def test_a_server_places_as_vllm_does_unless_it_is_told_otherwise() -> None:
    model = ModelConfig.parse(read_option("model", "falcon_h1_mini"))
    settings = ServingSettings.of({"organization": "s2"}).resolve(model, cap=8)
    assert settings.placement.name == "junction"
    told = ServingSettings.of({"organization": "s2", "placement": "chunk_ends"})
    assert told.resolve(model, cap=8).placement.name == "chunk_ends"
    assert ServeCommand.parse(["organization=s2", "model=m"]).settings == {"organization": "s2"}


@pytest.mark.parametrize("placement", ["chunk_ends", "junction", "dense"])
def test_a_server_that_a_campaign_starts_places_as_its_cell_does(placement: str) -> None:
    """The server reads what it is sent as if a user had written it, and fills in what is missing
    with its own defaults; the placement of the campaigns is not its default."""
    cell = planned("campaign=q6", *ONE_SEED, f"placement={placement}").cells[0]
    config = RunConfig.parse(cell.config)
    sent = EngineSettings(**config.memory_settings, budget_bytes=config.budget.bytes)
    received = ServingSettings.of(sent.additional_config()["hsexp"])
    settings = received.resolve(config.model, cap=config.admission.cap)
    assert settings.placement == config.placement
    assert settings == sent


def test_campaigns_of_the_paper_place_at_chunk_ends() -> None:
    placements = {
        name: {option for block in campaign.blocks.values() for option in block.placement}
        for name in options("campaign")
        if read_option("campaign", name)["campaign"]["section"] != "none"  # not the paper's
        and isinstance(campaign := composed(f"campaign={name}").campaign, ServingCampaign)
    }
    assert len(placements) > 15
    assert set.union(*placements.values()) == {"chunk_ends"}
