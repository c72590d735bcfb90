"""One command, typed: Hydra's composed configuration becomes a `Launch`; DictConfig ends here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt

from hsexp.config.axes import AXES, Axes
from hsexp.config.axis import InLaunch, InSection, holding
from hsexp.config.base import Config, ConfigError
from hsexp.config.campaigns import (
    CampaignConfig,
    ScaleConfig,
    ServingCampaign,
)
from hsexp.config.device import DeviceConfig
from hsexp.config.engine import EngineConfig
from hsexp.memory.geometry import AnyModel
from hsexp.sim.config import SchedulerConfig


def _typed_as_text(value: object) -> object:
    """Refuse 1e-3 and true: Hydra reads them as values, and the text that was typed is lost."""
    if not isinstance(value, str | Path):
        raise ValueError("must be text; a second pair of quotes keeps it one: name=\"'1e-3'\"")
    return value


def _not_empty(value: object) -> object:
    if not str(value):
        raise ValueError("must not be empty")
    return value


Text = Annotated[str, BeforeValidator(_typed_as_text)]


@holding(
    tuple(axis for axis in AXES if axis.path[0] == "admission"),
    type_of=lambda axis: axis.pin | None,
    default=lambda axis: ...,
)
class AdmissionPins(Axes, InSection, Config):
    """Admission axes that the command line can pin."""


@holding(
    tuple(axis for axis in AXES if len(axis.path) == 1),
    type_of=lambda axis: axis.pin | None,
    default=lambda axis: ...,
)
class Launch(Axes, InLaunch, Config):
    """A composed configuration. An axis that the command line pinned is not None."""

    campaign: CampaignConfig | None
    stage: Literal["plan", "status", "run", "all"]
    """plan only prints the cells, or the settings of a counted campaign; status prints where the
    ledgers stand; run stops after the ledger, or after printing counted tables; all also writes
    the files of tables and figures."""
    ledger: Annotated[Path, BeforeValidator(_not_empty), BeforeValidator(_typed_as_text)] | None
    """Folder of the ledger; null uses ledgers/<campaign>/<engine>."""
    note: Text | None
    """Free text that the ledger keeps with this launch."""
    gpu_gib: PositiveFloat | None = None
    """Memory of the GPU, for advice; null uses what the device has."""
    target: Text | None = None
    """What the advised arm must keep, such as ttft_p99_s<2."""
    amend: Annotated[Text, Field(min_length=1)] | None
    """Why the campaign's preregistered fields may differ from those in the ledger."""
    workers: PositiveInt | None
    """Processes; null uses every core, or one process if jobs of a sweep share the machine."""
    objective: Text | None
    """Metric whose mean over the launch's cells a launch returns, for a sweeper that searches."""
    record_steps: bool
    """Keep the step table of every run (for calibration)."""
    model: AnyModel
    device: DeviceConfig
    scheduler: SchedulerConfig
    engine: EngineConfig
    scale: ScaleConfig | None
    """Another size of the campaign; null uses the paper's."""
    workload: dict[str, Any]
    """Plain data: the planner fills in the axes and checks it."""
    arrivals: dict[str, Any]
    """Plain data: the planner fills in the axes and checks it."""
    admission: AdmissionPins
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
