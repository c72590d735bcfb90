"""The configuration of one continuation check."""

from pydantic import PositiveInt

from hsexp.config.base import Config
from hsexp.config.device import HardwareConfig
from hsexp.config.fields import Name, Seed
from hsexp.memory.geometry import ServedMamba2
from hsexp.memory.organizations import OrganizationConfig


class ContinuationRun(Config):
    """Everything that decides the outcome of one continuation check."""

    model: ServedMamba2
    organization: OrganizationConfig
    exact: bool
    depth_tokens: PositiveInt
    treatment: Name
    token_budget: PositiveInt
    cap: PositiveInt
    hardware: HardwareConfig
    seed: Seed
    """Draws weights and requests."""
