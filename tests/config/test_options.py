"""Every option of every group is a value of its typed class."""

from typing import Any

import pytest

from analysis.config import campaigns, listing
from hsexp.config.base import parse_union
from hsexp.config.campaigns import ScaleConfig
from hsexp.config.catalog import CONF, options, read_option
from hsexp.config.device import DeviceConfig
from hsexp.config.engine import EngineConfig
from hsexp.config.launch import AdmissionPins
from hsexp.memory.config import BudgetConfig
from hsexp.memory.geometry import ModelConfig
from hsexp.memory.organizations import OrganizationConfig
from hsexp.memory.policies.eviction import EvictionConfig
from hsexp.memory.policies.leaves import LeavesConfig
from hsexp.memory.policies.pinning import PinningConfig
from hsexp.memory.policies.placement import PlacementConfig
from hsexp.memory.policies.reservation import ReservationConfig
from hsexp.memory.policies.retention import RetentionConfig
from hsexp.memory.policies.states import StatesConfig
from hsexp.memory.policies.waiting import WaitingConfig
from hsexp.sim.config import SchedulerConfig
from hsexp.workload import WorkloadConfig
from hsexp.workload.arrivals import ArrivalsConfig
from hsexp.workload.isolation import IsolationConfig

KINDS: dict[str, Any] = {
    "admission": AdmissionPins,
    "arrivals": ArrivalsConfig,
    "budget": BudgetConfig,
    "device": DeviceConfig,
    "engine": EngineConfig,
    "eviction": EvictionConfig,
    "isolation": IsolationConfig,
    "leaves": LeavesConfig,
    "model": ModelConfig,
    "organization": OrganizationConfig,
    "pinning": PinningConfig,
    "placement": PlacementConfig,
    "reservation": ReservationConfig,
    "retention": RetentionConfig,
    "scale": ScaleConfig,
    "scheduler": SchedulerConfig,
    "states": StatesConfig,
    "waiting": WaitingConfig,
    "workload": WorkloadConfig,
}

FILLED: dict[str, dict[str, Any]] = {
    "arrivals": {"rate_per_s": 3.0},
    "workload": {"sharing": 1.0},
    "budget/bytes": {"name": "bytes_1", "bytes": 1},
    "workload/trace": {"path": "requests.csv"},
}
"""What an axis or the command line supplies, by group or by option."""

EVERY_OPTION = [(group, name) for group in KINDS for name in options(group)]


def filled(group: str, name: str) -> dict[str, Any]:
    """An option as a launch sees it."""
    data = read_option(group, name)
    fixes_sharing = data.get("kind") in ("trace", "conversations")
    axis = {} if fixes_sharing else FILLED.get(group, {})
    return data | axis | FILLED.get(f"{group}/{name}", {})


def test_every_folder_of_conf_is_a_group_with_a_typed_class() -> None:
    # A campaign is whole only once Hydra has composed it: see test_composition.
    groups = {path.name for path in CONF.iterdir() if path.is_dir()}
    assert groups == KINDS.keys() | {"analysis", "campaign"}


@pytest.mark.parametrize("campaign", campaigns())
def test_an_analysis_is_a_value_of_its_class(campaign: str) -> None:
    assert listing(campaign).campaign == campaign


@pytest.mark.parametrize(("group", "name"), EVERY_OPTION)
def test_an_option_is_a_value_of_its_class(group: str, name: str) -> None:
    parse_union(KINDS[group], filled(group, name), path=f"{group}.{name}")


@pytest.mark.parametrize(
    ("group", "name"),
    [pair for pair in EVERY_OPTION if pair[0] not in ("admission", "arrivals", "scheduler")],
)
def test_an_option_carries_the_name_of_its_file(group: str, name: str) -> None:
    declared = filled(group, name)["name"]
    assert declared == ("bytes_1" if name == "bytes" else name)


@pytest.mark.parametrize(("group", "name"), EVERY_OPTION)
def test_an_option_refuses_a_key_that_its_class_does_not_know(group: str, name: str) -> None:
    with pytest.raises(ValueError, match=r"misspelt is not a known setting here \(got 1\)"):
        parse_union(KINDS[group], filled(group, name) | {"misspelt": 1}, path="")
