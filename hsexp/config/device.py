"""A device: what a step costs there, and how a real engine runs on it."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from hsexp.config.base import Config, ConfigError
from hsexp.config.fields import Name


class StepTimeModel(Config):
    """Duration of one step: base + per decode token + per prefill token."""

    name: Name
    base_s: PositiveFloat
    decode_token_s: Annotated[float, Field(ge=0.0)]
    prefill_token_s: Annotated[float, Field(ge=0.0)]


class HardwareConfig(Config):
    """What a real engine is told of the device it runs on."""

    platform: Literal["cuda", "cpu"]
    threads: PositiveInt | None
    """Threads of the engine's kernels; null leaves them to the engine."""
    eager: bool
    """Run every step as it comes; false lets the engine compile and replay graphs."""


class DeviceConfig(Config):
    """A device: what a step costs there, and where that is known from."""

    name: Name
    description: str
    step_time: StepTimeModel | None
    """Null where no run has been fitted yet: such a device cannot be simulated."""
    source: str
    """Where the coefficients come from."""
    hardware: HardwareConfig | None = Field(default=None, exclude=True)
    """Null for a device that is only simulated. A simulation does not read it, so its cells do not
    name it."""

    @property
    def known_step_time(self) -> StepTimeModel:
        """What a simulation needs.

        Raises:
            ConfigError: the device was never fitted.
        """
        if self.step_time is None:
            raise ConfigError(
                f"device.step_time is required to simulate, got null for device {self.name}: "
                "`python -m analysis calibrate` fits one to recorded steps"
            )
        return self.step_time
