"""Every kind of campaign honours an override or refuses it by its name, before anything runs."""

from pathlib import Path
from typing import Any

import pytest
from launches import Command, composed, planned

from hsexp.config.base import ConfigError
from hsexp.config.campaigns import ContinuationCampaign, CountedCampaign
from hsexp.config.catalog import options
from hsexp.config.launch import Launch
from hsexp.memory.organizations.d0 import D0Config
from hsexp.memory.organizations.s2 import S2Config
from hsexp.plan.resolve import Resolved, require_settings, resolve, standing
from runners.continuation.plan import make_plan as checks

COUNTED = ("branching", "cachelab", "capacity", "fixed_work", "speculation")

S2_256 = ("organization=s2", "organization.block_size=256")

FEW = ("campaign.campaigns=[capacity,cachelab,q9]",)
"""Members of a collection that stand for their kinds."""


def given(campaign: str, lengths: Path) -> list[str]:
    """What a launch of the campaign needs to be small."""
    arguments = [f"campaign={campaign}", "stage=plan"]
    if campaign in ("trace", "advise"):
        arguments.append(f"workload.path={lengths}")
    if campaign == "advise":
        arguments.append("budget=b320")
    return [*arguments, *FEW] if campaign == "paper" else arguments


def resolved(*overrides: str) -> Resolved:
    launch = composed(*overrides)
    require_settings(launch, overrides)
    return resolve(launch)


def copied(launch: Launch, **fields: Any) -> Launch:
    return launch.model_copy(update=fields)


# -- one override, all campaigns -------------------------------------------------------------------


@pytest.mark.parametrize(
    "campaign", [name for name in options("campaign") if name != "continuation"]
)
def test_a_field_of_an_organization_is_honoured_or_refused_by_every_campaign(
    campaign: str, command: Command, lengths: Path, tmp_path: Path
) -> None:
    code, printed = command(*given(campaign, lengths), *S2_256)
    if code == 0:
        assert "organization.block_size 256 in place of 512" in printed
    else:
        assert code == 2
        assert "error: " in printed
        assert (
            "block_size means nothing to campaign" in printed or "fit a page of 524288" in printed
        )
    assert list(tmp_path.iterdir()) == [lengths]


def test_checks_on_an_engine_honour_a_field_of_an_organization() -> None:
    launch = composed("campaign=continuation", *S2_256)
    require_settings(launch, S2_256)
    assert isinstance(launch.campaign, ContinuationCampaign)
    sizes = {
        cell.config["organization"]["block_size"] for cell in checks(launch, launch.campaign).cells
    }
    assert sizes == {256}


def test_checks_refuse_an_organization_that_cannot_carry_the_model() -> None:
    small = "organization.slot_bytes=64"
    launch = composed("campaign=continuation", "organization=s2", small)
    assert isinstance(launch.campaign, ContinuationCampaign)
    with pytest.raises(ConfigError, match=r"organization s2 for model .*: slot_bytes 64 must hold"):
        checks(launch, launch.campaign)


@pytest.mark.parametrize("campaign", options("campaign"))
def test_another_model_never_ends_in_a_traceback(
    campaign: str, command: Command, lengths: Path
) -> None:
    code, printed = command(*given(campaign, lengths), "model=granite_4_h")
    assert code in (0, 2)
    assert "Traceback" not in printed and "HYDRA_FULL_ERROR" not in printed
    assert (code == 0) or "error: " in printed


@pytest.mark.parametrize("campaign", options("campaign"))
def test_every_campaign_says_what_it_uses_in_settings_that_there_are(campaign: str) -> None:
    kind = composed(
        f"campaign={campaign}", "workload.path=x" * (campaign in ("trace", "advise")) or "note=x"
    )
    assert kind.campaign is not None
    for setting in kind.campaign.settings or ():
        assert setting.split(".")[0] in Launch.model_fields


@pytest.mark.parametrize(
    ("overrides", "refusals"),
    [
        ("campaign=capacity admission.headroom=0.3", ["admission.headroom .*, got 0.3"]),
        ("campaign=capacity seeds=[7]", ["seeds .*, got \\[7\\]"]),
        ("campaign=cachelab organization=s2", ["organization .*, got s2"]),
        ("campaign=cachelab model.d_state=64", ["model.d_state .*, got 64"]),
        ("campaign=cachelab ~scale", ["scale means nothing to campaign cachelab\n"]),
        ("campaign=branching ledger=x workers=2", ["ledger .*, got x", "workers .*, got 2"]),
        ("campaign=speculation retention=k2", ["retention .*, got k2"]),
        ("campaign=fixed_work budget=b63", ["budget .*, got b63"]),
        ("campaign=fixed_work engine=sim", ["engine .*, got sim"]),
        ("campaign=continuation engine.exact=true", ["engine.exact .*, got true"]),
        ("campaign=continuation scheduler.stall_steps=1", ["scheduler.stall_steps .*, got 1"]),
        ("campaign=continuation record_steps=true", ["record_steps .*, got true"]),
        ("campaign=timing_probe budget=b63", ["budget .*, got b63"]),
        ("campaign=cachelab trace=true note=hello", ["trace .*, got true", "note .*, got hello"]),
    ],
)
def test_a_setting_that_means_nothing_to_a_kind_is_refused_by_name(
    overrides: str, refusals: list[str]
) -> None:
    for refusal in refusals:
        with pytest.raises(ConfigError, match=refusal):
            resolved(*overrides.split())


def test_a_refused_setting_is_told_before_anything_else(command: Command, tmp_path: Path) -> None:
    code, printed = command("campaign=capacity", "admission.headroom=0.3", "seeds=[1]")
    assert code == 2
    assert printed == (
        "error: admission.headroom means nothing to campaign capacity, got 0.3\n"
        "seeds means nothing to campaign capacity, got [1]\n"
        "it uses budget, campaign, model, organization, scale, stage\n"
    )
    assert not any(tmp_path.iterdir())


def test_a_pin_that_no_override_names_is_refused_too() -> None:
    launch = copied(composed("campaign=cachelab"), trace=True)
    with pytest.raises(ConfigError, match="trace means nothing to campaign cachelab, got True"):
        require_settings(launch, ["campaign=cachelab"])


@pytest.mark.parametrize(
    "overrides",
    [
        "campaign=fixed_work device=a100_40gb device.step_time.base_s=0.01",
        "campaign=continuation device=cpu scheduler=v1 scheduler.token_budget=512 engine=auto",
        "campaign=capacity scale=cpu_falcon_h1_mini model=falcon_h1_mini",
        "campaign=capacity ~scale",
    ],
)
def test_what_a_kind_uses_is_not_refused(overrides: str) -> None:
    require_settings(composed(*overrides.split()), overrides.split())


# -- laws of blocks --------------------------------------------------------------------------------


def test_a_field_of_a_law_holds_for_blocks_with_a_law_of_their_own() -> None:
    plan = planned("campaign=q1", "workload.num_requests=4")
    laws = {
        (c.config["workload"]["name"], c.config["workload"]["num_requests"]) for c in plan.cells
    }
    assert laws == {("original_drawn", 4), ("extension_drawn", 4)}


@pytest.mark.parametrize(
    ("overrides", "refusal"),
    [
        ("campaign=q1 workload=confirmation", r"workload is .* blocks .* q1 .*original.*, got con"),
        ("campaign=bursts arrivals=poisson", r"arrivals is .* has burst_drawn\), got poisson"),
        (
            "campaign=live_separation scheduler.separate=true",
            r"mixed has False, separated has True",
        ),
        ("campaign=exact_cost engine.exact=true", r"engine.exact is .*, got true"),
    ],
)
def test_what_blocks_say_themselves_cannot_be_said_for_them(overrides: str, refusal: str) -> None:
    with pytest.raises(ConfigError, match=refusal):
        resolved(*overrides.split())


def test_a_scale_without_such_blocks_leaves_the_law_to_the_launch() -> None:
    require_settings(
        composed("campaign=q1", "device=cpu", "model=falcon_h1_mini", "workload=confirmation"),
        ["campaign=q1", "workload=confirmation"],
    )


# -- what fits together ----------------------------------------------------------------------------


def test_slots_are_the_smallest_power_of_two_that_holds_the_convolution_states() -> None:
    launch = resolved("campaign=capacity", "model=granite_4_h")
    sizes = {memory.organization.name: memory.organization for memory in launch.memories}
    assert list(sizes) == ["s0", "s1", "s2", "d0"]
    assert isinstance(sizes["s2"], S2Config)
    assert sizes["s2"].slot_bytes == 262_144  # 9 states of 26,112 bytes are 235,008
    assert launch.notes == ()


def test_an_organization_that_cannot_carry_the_model_is_left_out_with_the_reason() -> None:
    heads = ("model.num_kv_heads=1", "model.head_dim=64")
    launch = resolved("campaign=capacity", "model=granite_4_h", *heads)
    assert [memory.organization.name for memory in launch.memories] == ["s0", "s1", "d0"]
    (note,) = launch.notes
    assert "organization s2 for model granite_4_h: block_size 512 makes pages of 131072" in note
    assert note.endswith("; it is left out")


def test_a_split_that_nobody_screened_is_the_ratio_of_bytes_and_said_aloud() -> None:
    launch = resolved("campaign=branching", "model.d0_attention_fraction=null")
    d0 = launch.memories[-1].organization
    assert isinstance(d0, D0Config)
    assert d0.attention_fraction == 0.535085  # 1,792 KiB of KV, 1,557 KiB of state
    (note,) = launch.notes
    assert note == (
        "d0: attention has 0.535085 of the budget, its share of the bytes of a checkpoint "
        "interval; no split was screened for model falcon_h1_7b: campaign=split_screen does it"
    )


@pytest.mark.parametrize("campaign", ["capacity", "branching", "speculation", "q6"])
def test_a_pinned_organization_that_cannot_carry_the_model_is_refused(
    campaign: str, command: Command
) -> None:
    code, printed = command(
        f"campaign={campaign}",
        "stage=plan",
        "organization=s2",
        "organization.slot_bytes=32768",
        "model=granite_4_h",
    )
    assert code == 2
    assert printed.startswith("error: organization s2 for model granite_4_h: slot_bytes 32768 must")


@pytest.mark.parametrize("campaign", ["capacity", "branching", "speculation", "q6"])
def test_a_budget_without_pages_is_refused_in_the_same_words(
    campaign: str, command: Command
) -> None:
    code, printed = command(
        f"campaign={campaign}", "stage=plan", "organization=s0", "budget=bytes", "budget.bytes=900"
    )
    assert code == 2
    assert printed == (
        "error: organization s0 under budget bytes_900: pool shared needs at least 2 pages, got 0\n"
    )


def test_a_device_without_step_times_is_refused_in_a_plan_of_fixed_work(command: Command) -> None:
    code, printed = command("campaign=fixed_work", "device=cpu", "stage=plan")
    assert code == 2
    assert printed.startswith("error: device.step_time is required to simulate, got null for")


def test_a_scale_changes_budgets_and_organizations_of_a_counted_campaign() -> None:
    launch = resolved("campaign=capacity", "model=falcon_h1_mini", "scale=cpu_falcon_h1_mini")
    whole = resolved("campaign=capacity", "model=falcon_h1_mini")
    assert [4 * b.bytes for b in launch.budgets] == [b.bytes for b in whole.budgets]
    assert [m.organization.slot_bytes for m in launch.memories if m.organization.kind == "s2"] == [
        8192
    ]
    assert launch.notes == ("scale cpu_falcon_h1_mini: budgets x 0.25",)


@pytest.mark.parametrize("campaign", COUNTED)
def test_a_counted_campaign_without_a_command_line_is_the_composed_one(campaign: str) -> None:
    assert standing(campaign).inputs == resolved(f"campaign={campaign}").inputs


def test_the_counted_campaigns_are_those_of_that_kind() -> None:
    found = [
        name
        for name in options("campaign")
        if name not in ("trace", "advise")
        and isinstance(composed(f"campaign={name}").campaign, CountedCampaign)
    ]
    assert found == list(COUNTED)
