"""A device: the cost of a step on it, its memory, and the settings of a real engine for it."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, PositiveFloat, PositiveInt, Tag

from hsexp.config.base import Config, ConfigError
from hsexp.config.fields import Name
from hsexp.config.roofline import DataSheet, Efficiency, RooflineStepTime, Share


class StepTimeModel(Config):
    """Duration of one step: base + per decode token + per prefill token, and per token of context.

    Kernels that read a recurrent state page by page take longer for a decode token (Appendix B.9).
    """

    name: Name
    base_s: PositiveFloat
    decode_token_s: Annotated[float, Field(ge=0.0)]
    prefill_token_s: Annotated[float, Field(ge=0.0)]
    paged_decode_token_s: Annotated[
        float | None, Field(ge=0.0, exclude_if=lambda value: value is None)
    ] = None
    """Added for a decode token where recurrent states are paged; null where both kernel paths were
    fitted together, or only one was seen. A cell's id contains it only where it is known."""
    context_token_s: Annotated[
        float | None, Field(ge=0.0, exclude_if=lambda value: value is None)
    ] = None
    """Added for each token that decoding requests have in memory before the step; null where the
    data could not tell it from the other terms."""

    @property
    def shared_s(self) -> float:
        """Seconds of a step that its requests share."""
        return self.base_s

    def decode_token_of(self, *, paged: bool) -> float:
        """Seconds of a decode token under one of the kernel paths."""
        return self.decode_token_s + (self.paged_decode_token_s or 0.0 if paged else 0.0)


def _kind(given: Any) -> str:
    kind = given.get("kind") if isinstance(given, Mapping) else getattr(given, "kind", None)
    return "affine" if kind is None else str(kind)


StepTime = Annotated[
    Annotated[StepTimeModel, Tag("affine")] | Annotated[RooflineStepTime, Tag("roofline")],
    Discriminator(_kind),
]
"""Fitted step times need no `kind`."""


class RunnerModel(Config):
    """How long the episode in the ledger of the device's runner is, from the span of its requests.

    The runner asks now and then whether the run is complete, so an episode is a number of polls and
    a constant (Section 4.5, Appendix G.3).
    """

    poll_s: PositiveFloat
    """Time between two polls."""
    lead_s: Annotated[float, Field(ge=0.0)]
    """Orchestration that the polls wait for, in addition to the span."""
    close_s: Annotated[float, Field(ge=0.0)]
    """From the poll that finds the run complete to the end of the episode."""

    def episode_s(self, span_s: float) -> float:
        """Seconds of the episode of a run."""
        return math.ceil((span_s + self.lead_s) / self.poll_s) * self.poll_s + self.close_s


class HardwareConfig(Config):
    """Settings of a real engine for the device that it runs on."""

    platform: Literal["cuda", "cpu"]
    threads: PositiveInt | None
    """Threads of the engine's kernels; null leaves them to the engine."""
    eager: bool
    """Run steps without compiling them; false lets the engine compile and replay graphs."""


class Occupancy(Config):
    """What an engine takes of the memory of a GPU beside weights and states."""

    utilization: Share
    """Share of the memory that the engine takes in all."""
    activations_gib: Annotated[float, Field(ge=0.0)]
    """Of that share: activations of the largest step, workspaces of kernels, recorded graphs."""


class DeviceConfig(Config):
    """A device: the cost of a step on it, and the source of that cost."""

    name: Name
    description: str
    step_time: StepTime | None
    """Null until it is fitted to measured runs: such a device is simulated by its data sheet, if it
    has one."""
    source: str
    """Where the coefficients come from."""
    fitted_model: Name | None = Field(default=None, exclude=True)
    """The model whose steps were timed; null where it is not known. The plan of a simulation of
    another one says so. It changes no number, so cells leave it out."""
    runner: Annotated[RunnerModel | None, Field(exclude_if=lambda value: value is None)] = None
    """The ledger's clock in a simulation; null where it is not known."""
    organization: dict[Name, dict[Name, Any]] = Field(default={}, exclude=True)
    """Fields of organizations with other values in the engine that the device was fitted to, by the
    organization's name. Simulations on the device use them; a cell has them in its organization."""
    sheet: DataSheet | None = Field(default=None, exclude=True)
    """Prices the steps of any model where `step_time` is null. The plan of a simulation reckons the
    step time from it (`hsexp.plan.devices`), so cells have that."""
    efficiency: Efficiency | None = Field(default=None, exclude=True)
    """How much of the data sheet kernels reach."""
    gpu_gib: PositiveFloat | None = Field(default=None, exclude=True)
    """Memory of the GPU as the driver reports it; null where it is not known. Only the budget that
    is left beside weights is reckoned from it."""
    gpu: str | None = Field(default=None, exclude=True)
    """A regular expression that the GPU's name has to match, as its driver reports it; null takes
    any. A real run on another GPU is refused, since its rows would name this device."""
    occupancy: Occupancy | None = Field(default=None, exclude=True)
    """What of that memory states cannot have."""
    hardware: HardwareConfig | None = Field(default=None, exclude=True)
    """Null for a device that is only simulated. Simulations do not read this field, so their cells
    leave it out."""

    @property
    def is_prior(self) -> bool:
        """Whether its step times are reckoned from a data sheet, and no step was timed."""
        return isinstance(self.step_time, RooflineStepTime)

    def doubt(self, model: str) -> str | None:
        """Why its step times may be wrong for a model; None if they are that model's."""
        if self.is_prior:
            return (
                f"device {self.name} is a prior: its step times are reckoned from the data sheet "
                "and were never measured (docs/devices.md)"
            )
        if self.step_time is None or self.fitted_model in (None, model):
            return None
        return (
            f"device {self.name} has the step times of {self.fitted_model}; those of {model} are "
            "not known: compare organizations, not seconds"
        )

    @property
    def known_step_time(self) -> StepTimeModel | RooflineStepTime:
        """The step-time model, which a simulation needs.

        Raises:
            ConfigError: the device was never fitted, and nothing was reckoned from a data sheet.
        """
        if self.step_time is None:
            raise ConfigError(
                f"device.step_time is required to simulate, got null for device {self.name}: "
                "`python -m analysis calibrate` fits one to recorded steps"
            )
        return self.step_time
