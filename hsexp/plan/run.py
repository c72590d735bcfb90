"""The configuration of one run: everything that decides its outcome."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from hsexp.config.base import Config
from hsexp.config.device import DeviceConfig, HardwareConfig
from hsexp.config.fields import Seed
from hsexp.memory.config import BudgetConfig
from hsexp.memory.geometry import ModelConfig
from hsexp.memory.organizations import OrganizationConfig
from hsexp.memory.policies.admission import AdmissionConfig
from hsexp.memory.policies.pinning import PinningConfig
from hsexp.memory.policies.retention import RetentionConfig
from hsexp.sim.config import SchedulerConfig
from hsexp.workload import WorkloadConfig
from hsexp.workload.arrivals import ArrivalsConfig
from hsexp.workload.isolation import IsolationConfig


class RunConfig(Config):
    """Everything that decides the outcome of one run."""

    model: ModelConfig
    organization: OrganizationConfig
    budget: BudgetConfig
    admission: AdmissionConfig
    retention: RetentionConfig
    pinning: PinningConfig
    isolation: IsolationConfig
    trace: bool
    """Record state depths of every request (never changes what happens)."""
    workload: WorkloadConfig
    arrivals: ArrivalsConfig | None
    """None replays the arrival times of a trace."""
    scheduler: SchedulerConfig
    device: DeviceConfig
    engine: Literal["sim", "vllm"]
    exact: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """Canonical chunks; left out of the names of cells that have none."""
    seed: Seed


class VllmRunConfig(RunConfig):
    """A run on real vLLM: also what serves it. Its device has no step-time model: it measures."""

    engine: Literal["vllm"]
    hardware: HardwareConfig
    checkpoint: str | None
    """Null: seeded weights."""
    transport: Literal["http", "inproc"]
    num_warmup_requests: Annotated[int, Field(ge=0)]
    max_retries: Annotated[int, Field(ge=0)]


def parse_run(data: Mapping[str, Any]) -> RunConfig:
    """A cell's configuration, by its engine.

    Raises:
        ConfigError: names the field and the value.
    """
    return (VllmRunConfig if data["engine"] == "vllm" else RunConfig).parse(data)
