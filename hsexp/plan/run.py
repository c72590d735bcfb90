"""The configuration of one run: everything that decides its outcome."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from hsexp.config.device import DeviceConfig, HardwareConfig
from hsexp.config.fields import Seed
from hsexp.memory import HybridMemory, MemoryConfig, Observer, build_memory
from hsexp.memory.config import BudgetConfig
from hsexp.memory.geometry import ServedModel
from hsexp.memory.weights import SeededWidth
from hsexp.sim.config import SchedulerConfig
from hsexp.workload import WorkloadConfig
from hsexp.workload.arrivals import ArrivalsConfig
from hsexp.workload.isolation import IsolationConfig


class RunConfig(MemoryConfig):
    """Everything that decides the outcome of one run."""

    budget: BudgetConfig
    isolation: IsolationConfig
    trace: bool
    """Record state depths of every request, without changing the run."""
    step_time_factor: Annotated[PositiveFloat, Field(exclude_if=lambda value: value == 1.0)] = 1.0
    """Factor on every step time of the device; a cell's id contains it only where it is not 1."""
    workload: WorkloadConfig
    arrivals: ArrivalsConfig | None
    """None replays the arrival times of a trace."""
    scheduler: SchedulerConfig
    device: DeviceConfig
    engine: Literal["sim", "vllm"]
    seed: Seed

    def memory(self, observer: Observer | None = None) -> HybridMemory:
        """A new memory with the run's settings.

        Raises:
            ValueError: the budget is too small, or the organization cannot carry the model.
        """
        return build_memory(self, self.budget.bytes, observer=observer)


class VllmRunConfig(RunConfig):
    """A run on real vLLM and its serving settings. It measures its steps, so its device has no
    step-time model."""

    engine: Literal["vllm"]
    model: ServedModel
    hardware: HardwareConfig
    checkpoint: str | None
    """Weights that vLLM can load; null uses seeded weights."""
    seeded_width: Annotated[SeededWidth | None, Field(exclude_if=lambda value: value is None)] = (
        None
    )
    """How wide seeded weights are; null makes them as small as the states allow."""
    checkpoint_revision: Annotated[str | None, Field(exclude_if=lambda value: value is None)] = None
    checkpoint_sha256: Annotated[
        dict[str, str] | None, Field(exclude_if=lambda value: value is None)
    ] = None
    """SHA-256 that files of the weights must have, by name."""
    transport: Literal["http", "inproc"]
    num_warmup_requests: Annotated[int, Field(ge=0)]
    max_retries: Annotated[int, Field(ge=0)]

    @model_validator(mode="after")
    def _kernels_read_the_states(self) -> Self:
        self.require_kernels()
        return self

    @model_validator(mode="after")
    def _steps_are_measured(self) -> Self:
        if self.step_time_factor != 1.0:
            raise ValueError(
                "step_time_factor must be 1 on a real engine, which measures its steps, got "
                f"{self.step_time_factor}"
            )
        return self


def parse_run(data: Mapping[str, Any]) -> RunConfig:
    """A cell's configuration, by its engine.

    Raises:
        ConfigError: names the field and the value.
    """
    return (VllmRunConfig if data["engine"] == "vllm" else RunConfig).parse(data)
