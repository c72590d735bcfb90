"""One command, typed: what Hydra composed becomes a `Launch`, and DictConfig ends here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from pydantic import BeforeValidator, Field, PositiveInt

from hsexp.config.base import Config, ConfigError
from hsexp.config.campaigns import (
    CampaignConfig,
    CapacityCampaign,
    FixedWorkCampaign,
    ScaleConfig,
    ServingCampaign,
)
from hsexp.config.device import DeviceConfig
from hsexp.config.engine import EngineConfig
from hsexp.config.fields import OpenFraction, Seed
from hsexp.memory.config import BudgetConfig
from hsexp.memory.geometry import ModelConfig
from hsexp.memory.organizations import OrganizationConfig
from hsexp.memory.policies.pinning import PinningConfig
from hsexp.memory.policies.retention import RetentionConfig
from hsexp.sim.config import SchedulerConfig
from hsexp.workload.isolation import IsolationConfig


def _typed_as_text(value: object) -> object:
    """Hydra reads 1e-3 and true as what they are; a text is never guessed back from them."""
    if not isinstance(value, str | Path):
        raise ValueError("must be text; a second pair of quotes keeps it one: name=\"'1e-3'\"")
    return value


def _not_empty(value: object) -> object:
    if not str(value):
        raise ValueError("must not be empty")
    return value


Text = Annotated[str, BeforeValidator(_typed_as_text)]


class AdmissionChoice(Config):
    """Axes that the command line may pin."""

    headroom: OpenFraction | None
    cap: PositiveInt | None


class Launch(Config):
    """A composed configuration. An axis that the command line pinned is not None."""

    campaign: CampaignConfig | None
    stage: Literal["plan", "run", "all"]
    """plan prints the cells; run stops after the ledger; all goes on to tables and figures."""
    ledger: Annotated[Path, BeforeValidator(_not_empty), BeforeValidator(_typed_as_text)] | None
    """Folder of the ledger; null is ledgers/<campaign>/<engine>."""
    note: Text | None
    """Free text that the ledger keeps with this launch."""
    amend: Annotated[Text, Field(min_length=1)] | None
    """Why the campaign's preregistered fields may differ from those that the ledger holds."""
    workers: PositiveInt | None
    """Processes; null takes every core, and one beside other jobs of a sweep."""
    record_steps: bool
    """Keep the step table of every run (for calibration)."""
    model: ModelConfig
    device: DeviceConfig
    scheduler: SchedulerConfig
    engine: EngineConfig
    scale: ScaleConfig | None
    """Another size of the campaign; null is the paper's."""
    workload: dict[str, Any]
    """Checked when the axes have filled it."""
    arrivals: dict[str, Any]
    """Checked when the axes have filled it."""
    admission: AdmissionChoice
    organization: OrganizationConfig | None
    budget: BudgetConfig | None
    retention: RetentionConfig | None
    pinning: PinningConfig | None
    isolation: IsolationConfig | None
    trace: bool | None
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] | None
    analysis: dict[str, Any] | None
    """Read by `analysis` itself; composed here so that `--cfg job` shows it."""

    @property
    def keeps_steps(self) -> bool:
        """Whether every run must have a step table: the launch or its campaign asks for them."""
        campaign = self.campaign
        return self.record_steps or (
            isinstance(campaign, ServingCampaign) and campaign.record_steps
        )

    @property
    def serving(self) -> ServingCampaign:
        assert isinstance(self.campaign, ServingCampaign)
        return self.campaign

    @property
    def capacity(self) -> CapacityCampaign:
        assert isinstance(self.campaign, CapacityCampaign)
        return self.campaign

    @property
    def fixed_work(self) -> FixedWorkCampaign:
        assert isinstance(self.campaign, FixedWorkCampaign)
        return self.campaign


def parse_launch(composed: DictConfig | Mapping[str, Any]) -> Launch:
    """Type and check a composed configuration.

    Raises:
        ConfigError: names every refused field and its value.
    """
    if isinstance(composed, DictConfig):
        try:
            data: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
        except MissingMandatoryValue as error:
            raise ConfigError(f"{error.full_key} is required") from None
        except OmegaConfBaseException as error:
            raise ConfigError(f"{error.full_key or 'config'}: {error.msg}") from None
    else:
        data = dict(composed)
    return Launch.parse(data)
