"""What the plugin is told: the same typed values as a cell's, carried in vLLM's configuration.

They travel as `additional_config={"hsexp": {...}}`, which reaches every process vLLM starts.
"""

from typing import Any

from pydantic import PositiveInt

from hsexp.config.base import Config, ConfigError
from hsexp.config.schema import (
    AdmissionConfig,
    ModelConfig,
    OrganizationConfig,
    PinningConfig,
    RetentionConfig,
)
from hsexp.memory import HybridMemory, Observer, Policies, build_memory
from hsexp.memory.organizations import Organization, create

KEY = "hsexp"
"""Name of our part of vLLM's additional configuration."""


class EngineSettings(Config):
    """One engine's organization, budget and policies."""

    model: ModelConfig
    """Shape of one layer; checked against the served model."""
    organization: OrganizationConfig
    budget_bytes: PositiveInt
    """Nominal bytes of state of one layer."""
    admission: AdmissionConfig
    retention: RetentionConfig
    pinning: PinningConfig

    @classmethod
    def of(cls, additional_config: Any) -> "EngineSettings":
        """Read the settings from vLLM's additional configuration.

        Raises:
            ConfigError: they are missing, or a field is refused.
        """
        if not isinstance(additional_config, dict) or KEY not in additional_config:
            raise ConfigError(f"additional_config.{KEY} is required by the hsexp scheduler")
        return cls.parse(additional_config[KEY], path=f"additional_config.{KEY}")

    def additional_config(self) -> dict[str, Any]:
        """What to give vLLM."""
        return {KEY: self.model_dump(mode="json")}

    @property
    def layout(self) -> Organization:
        return create(self.organization, self.model)

    def memory(self, observer: Observer | None = None) -> HybridMemory:
        """A fresh memory with empty pools."""
        policies = Policies(
            admission=self.admission, retention=self.retention, pinning=self.pinning
        )
        return build_memory(self.layout, self.organization, self.budget_bytes, policies, observer)
