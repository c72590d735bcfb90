"""GPUs by their data sheets: step times for any model, and the budget beside its weights."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from launches import Command, composed, planned

from hsexp.config.base import ConfigError, parse_union
from hsexp.config.catalog import options, read_option
from hsexp.config.device import DeviceConfig
from hsexp.config.roofline import RooflineStepTime
from hsexp.ledger import is_simulated
from hsexp.memory import MemoryConfig
from hsexp.memory.geometry import ModelConfig
from hsexp.memory.organizations import OrganizationConfig
from hsexp.plan.devices import (
    GIB,
    budget_beside_weights,
    priced,
    require_room,
    roofline,
    smallest_budget,
)
from runners.sim import execute

CONFIGS = Path(__file__).parents[1] / "models" / "configs"

PRIORS = ("a100_40gb_prior", "a100_80gb", "b200", "h100", "h100_pcie", "h200", "l40s")

SMALL = ("campaign=q6", "budget=b63", "organization=s2", "seeds=[76400]", "admission.headroom=0")

FALCON = ModelConfig.parse(read_option("model", "falcon_h1_7b"))


def device(name: str) -> DeviceConfig:
    return DeviceConfig.parse(read_option("device", name))


def settings(organization: str, model: ModelConfig = FALCON) -> MemoryConfig:
    option = parse_union(
        OrganizationConfig, read_option("organization", organization), path="organization"
    )
    return MemoryConfig.without_policies(model=model, organization=option)


# -- step times ----------------------------------------------------------------------------------


def test_the_priors_are_the_devices_without_fitted_steps_that_have_a_data_sheet() -> None:
    found = [name for name in options("device") if device(name).step_time is None]
    assert tuple(name for name in found if device(name).sheet is not None) == PRIORS


@pytest.mark.parametrize("name", PRIORS)
def test_a_data_sheet_prices_every_shipped_model(name: str) -> None:
    for model in options("model"):
        launch = priced(composed(f"device={name}", f"model={model}", "campaign=q6"))
        step_time = launch.device.known_step_time
        assert isinstance(step_time, RooflineStepTime)
        assert step_time.name == f"roofline-{name}"


def test_the_terms_of_a_step_are_bytes_over_bandwidth_and_flops_over_rate() -> None:
    terms = roofline(device("a100_40gb_prior"), FALCON)
    # 14.37 GB of layers and head at 0.8 x 1,555 GB/s
    assert terms.weights_s == pytest.approx(14.37e9 / 1.244e12, rel=1e-3)
    # 2 FLOP x 6.785 billion at half of 312 TFLOP/s, and the head's 0.4 billion for a decode
    assert terms.prefill_token_s == pytest.approx(2 * 6.785e9 / 156e12, rel=1e-3)
    assert terms.decode_token_s == pytest.approx(2 * 7.185e9 / 156e12, rel=1e-3)
    # 44 layers x (1,536 + 21) KiB, read and written at 0.44 of the bandwidth
    assert terms.state_s == pytest.approx(2 * 44 * 1557 * 1024 / 684.2e9, rel=1e-3)
    # 44 KiB a token at 0.65; two products of 44 x 12 x 128 elements, at 2 FLOP each
    assert terms.context_token_s == pytest.approx(44 * 1024 / 1010.75e9, rel=1e-3)
    assert terms.pair_s == pytest.approx(4 * 44 * 12 * 128 / 156e12, rel=1e-3)
    assert (terms.experts_s, terms.expert_share) == (0.0, 0.0)


def test_a_fitted_device_keeps_its_step_times_beside_its_data_sheet() -> None:
    launch = composed("device=a100_40gb", "campaign=q6")
    assert launch.device.sheet is not None
    assert priced(launch) is launch
    assert not launch.device.is_prior


def test_routed_experts_are_read_by_share_and_multiplied_by_token(command: Command) -> None:
    from hsexp.models.reading import read_model

    granite = read_model(str(CONFIGS / "granite_4_0_h_small.json"))
    assert granite.weights is not None
    assert granite.weights.experts is not None
    terms = roofline(device("h100"), granite)
    assert terms.expert_share == pytest.approx(10 / 72, rel=1e-5)
    # 72 experts of 40 layers x 3 x 4,096 x 768, at 0.8 x 3,350 GB/s
    assert terms.experts_s == pytest.approx(2 * 72 * 40 * 3 * 4096 * 768 / 2.68e12, rel=1e-3)
    assert terms.prefill_token_s < 2 * granite.weights.num_parameters / (0.5 * 989e12) / 3


def test_cells_hold_the_reckoned_times_and_not_what_they_were_reckoned_from() -> None:
    (cell,) = planned(*SMALL, "device=h100").cells
    found = cell.config["device"]
    assert found["step_time"]["kind"] == "roofline"
    assert found.keys() == {"name", "description", "step_time", "source"}
    other = planned(*SMALL, "device=h100", "device.efficiency.compute=0.4").cells[0]
    assert other.cell_id != cell.cell_id


def test_a_plan_on_a_prior_says_that_nothing_was_measured() -> None:
    plan = planned(*SMALL, "device=h100")
    assert [note for note in plan.notes if "device" in note] == [
        "device h100 is a prior: its step times are reckoned from the data sheet and were never "
        "measured (docs/devices.md)"
    ]


def test_a_run_on_a_prior_is_recorded_as_one() -> None:
    (cell,) = planned(*SMALL, "device=h100", "workload.num_requests=3").cells
    facts = execute(cell).engine
    assert (facts.device, facts.time_model) == ("h100", "roofline-h100")
    assert facts.data_kind == "simulated, prior"
    assert is_simulated(facts.data_kind)
    assert not is_simulated("measured")
    (fitted,) = planned(*SMALL, "workload.num_requests=3").cells
    assert execute(fitted).engine.data_kind == "simulated"


def test_a_faster_gpu_is_never_slower() -> None:
    order = ("a100_40gb_prior", "a100_80gb", "h100", "h200", "b200")
    terms = [roofline(device(name), FALCON).model_dump(exclude={"kind", "name"}) for name in order]
    for slow, fast in pairwise(terms):
        assert all(fast[term] <= slow[term] for term in slow)


def test_fixed_work_is_priced_by_a_data_sheet(command: Command) -> None:
    code, printed = command("campaign=fixed_work", "device=h100", "stage=run")
    assert code == 0
    assert "modelled, prior (device h100, time model roofline-h100), not measured" in printed


def test_a_gpu_without_a_prior_is_refused_with_those_there_are(command: Command) -> None:
    with pytest.raises(ConfigError, match=r"device .v100. does not exist.*nearest are .*h100"):
        command("campaign=q6", "device=v100", "stage=plan")
    code, printed = command("campaign=q6", "device=v100", "stage=plan", "--config-dir", ".")
    assert code == 2  # Hydra says it: there may be more devices in that folder
    assert "h100_pcie" in printed


def test_a_model_without_weights_is_refused_with_the_field_that_lacks(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = (CONFIGS / "bamba_9b.json").read_text(encoding="utf-8")
    path = tmp_path / "headless.json"
    path.write_text(re.sub(r' "vocab_size": \d+,\n', "", text), encoding="utf-8")
    given = ("campaign=q6", f"model={path}", "organization=s1", "budget=b108", "stage=plan")
    code, printed = command(*given, "device=h100")
    assert code == 2
    assert printed.count("\n") == 1
    assert "got null for model headless" in printed
    assert "vocab_size is required" in printed
    assert command(*given)[0] == 0  # a fitted device does not ask


# -- memory --------------------------------------------------------------------------------------


def test_the_budget_is_what_weights_and_activations_leave() -> None:
    share = budget_beside_weights(device("h100"), FALCON)
    # 79.1 GiB x 0.92 - 14.13 GiB of weights - 2.5
    assert share.num_bytes / GIB == pytest.approx(79.1 * 0.92 - 7.5844e9 * 2 / GIB - 2.5, abs=0.01)
    assert share.layer_bytes == share.num_bytes // 44
    assert str(share).startswith("56.14 GiB for states = 79.1 GiB x 0.92 - 14.13 GiB of weights")


def test_a_given_size_replaces_the_devices_own() -> None:
    whole = budget_beside_weights(device("h100"), FALCON)
    half = budget_beside_weights(device("h100"), FALCON, gpu_gib=39.55)
    assert whole.num_bytes - half.num_bytes == pytest.approx(39.55 * 0.92 * GIB, abs=2)
    # A device without a size of its own, such as one that a user fitted.
    assert budget_beside_weights(device("cpu"), FALCON, gpu_gib=79.1) == whole


def test_a_device_of_unknown_size_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(ConfigError) as refused:
        budget_beside_weights(device("cpu"), FALCON)
    message = str(refused.value)
    assert "got null for device cpu" in message
    assert "h100" in message
    assert "gpu_gib=N" in message
    assert "\n" not in message


def test_weights_that_leave_nothing_are_refused_with_the_smallest_gpu_that_works() -> None:
    with pytest.raises(ConfigError) as refused:
        budget_beside_weights(device("h100"), FALCON, gpu_gib=16)
    message = str(refused.value)
    assert "model falcon_h1_7b does not fit on 16 GiB of device h100" in message
    assert "device=a100_40gb" in message
    assert "\n" not in message


@pytest.mark.parametrize("organization", ["s0", "s1", "s2", "d0"])
def test_the_smallest_budget_holds_one_request_and_less_does_not(organization: str) -> None:
    memory = settings(organization)
    needed = smallest_budget(memory, 8192)
    share = budget_beside_weights(device("h100"), FALCON)
    require_room(share, memory, 8192, device="h100")
    with pytest.raises(ConfigError, match="do not hold one request of 8,192 tokens") as refused:
        gib = (share.weight_bytes + share.activation_bytes + 44 * 0.98 * needed) / 0.92 / GIB
        small = budget_beside_weights(device("h100"), FALCON, gpu_gib=gib)
        require_room(small, memory, 8192, device="h100")
    least = float(re.findall(r"gpu_gib=([\d.]+)", str(refused.value))[0])
    enough = budget_beside_weights(device("h100"), FALCON, gpu_gib=least)
    require_room(enough, memory, 8192, device="h100")
    assert "\n" not in str(refused.value)
