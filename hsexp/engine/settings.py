"""What the plugin is told, and what becomes of it.

A user writes `ServingSettings`: option names of `conf/`, or values. They are resolved once, where
vLLM's configuration is made, to `EngineSettings`: the same typed values as a cell's. Both travel as
`additional_config={"hsexp": {...}}`, which reaches every process that vLLM starts.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

import yaml
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from hsexp.config.base import Config, ConfigError, parse_union
from hsexp.config.catalog import CONF, read_option
from hsexp.config.fields import OpenFraction
from hsexp.memory import HybridMemory, Observer, Policies, build_memory
from hsexp.memory.chunking import Chunking, chunking
from hsexp.memory.geometry import ModelConfig
from hsexp.memory.organizations import Organization, OrganizationConfig, PoolPlan, create
from hsexp.memory.policies.admission import AdmissionConfig
from hsexp.memory.policies.pinning import PinningConfig
from hsexp.memory.policies.retention import RetentionConfig

KEY = "hsexp"
"""Name of our part of vLLM's additional configuration."""
SCHEDULER = "hsexp.engine.scheduler.HybridScheduler"
"""What goes with it: vLLM's `scheduler_cls`."""

_GIB = 2**30

_NOT_SHAPE = {"name", "checkpoint", "max_model_tokens", "d0_attention_fraction"}
"""What may differ between a model as it is named in `conf/model` and as it is served."""


class EngineSettings(Config):
    """One engine's organization, budget and policies."""

    model: ModelConfig
    """Shape of one layer; checked against the served model."""
    organization: OrganizationConfig
    budget_bytes: PositiveInt | None
    """Nominal bytes of state of one attention layer with its recurrent layers; None until the
    engine core knows what vLLM has left for state."""
    admission: AdmissionConfig
    retention: RetentionConfig
    pinning: PinningConfig
    max_leaves: NonNegativeInt = 0
    """Most states off the checkpoint grid that are kept for requests which go on from exactly
    there: samples of one prompt, beams. 0 keeps none, and nothing is forked; so it is where
    `exact`."""
    exact: bool = False
    """Continue with the bits of an isolated recomputation whatever else runs: canonical chunks,
    and every request goes through the model alone (docs/continuation.md)."""

    @classmethod
    def of(cls, additional_config: Any) -> Self:
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
        try:
            return create(self.organization, self.model)
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(f"model {self.model.name}: {error}") from None

    @property
    def plan(self) -> PoolPlan:
        """The pools of one attention layer with its recurrent layers."""
        return self.layout.plan(self._budget)

    def within(self, total_bytes: int) -> Self:
        """The settings with the largest budget whose pools take at most this, in all layers.

        Raises:
            ConfigError: it does not hold two pages a pool.
        """
        budget, layout = total_bytes // self.model.num_attention_layers, self.layout
        try:
            plan = layout.plan(budget)
            if plan.total_bytes > budget:  # the planner takes the nearest page, not the one below
                budget -= max(pool.page_bytes for pool in plan.pools)
            settings = self.model_copy(update={"budget_bytes": budget})
            settings.memory()
        except ValueError as error:
            raise ConfigError(
                f"{total_bytes:,} bytes of state for {self.model.num_attention_layers} layers are "
                f"too few for {self.organization.name}: {error}"
            ) from None
        return settings

    @property
    def chunking(self) -> Chunking:
        layout = self.layout
        return chunking(
            block_size=layout.block_size,
            checkpoint_grid=layout.checkpoint_grid,
            exact=self.exact,
        )

    def memory(self, observer: Observer | None = None) -> HybridMemory:
        """A fresh memory with empty pools."""
        policies = Policies(
            admission=self.admission, retention=self.retention, pinning=self.pinning
        )
        return build_memory(
            self.layout,
            self.organization,
            self._budget,
            policies,
            observer,
            # A fork ends the chunk of the prompt where an isolated recomputation would not.
            max_leaves=0 if self.exact else self.max_leaves,
        )

    @property
    def _budget(self) -> int:
        if self.budget_bytes is None:
            raise ConfigError("budget_bytes is not known before vLLM has measured its memory")
        return self.budget_bytes


class ServingAdmission(Config):
    """Admission, as far as a user decides it."""

    headroom: OpenFraction
    """Fraction of all pages that must stay free when a request joins the running ones."""
    cap: PositiveInt | None
    """Most running requests; None takes vLLM's max_num_seqs."""


class ServingSettings(Config):
    """What a user of `vllm serve` writes; what is left out stands in `conf/serve.yaml`."""

    organization: str | dict[str, Any]
    """An option of `conf/organization`, or a whole organization."""
    model: ModelConfig | None = None
    """The shape that the model must have; None takes the model's own."""
    budget_bytes: PositiveInt | None
    """Bytes of state of one attention layer with its recurrent layers, as a campaign's budget."""
    budget_gib: Annotated[PositiveFloat | None, Field(allow_inf_nan=False)]
    """GiB of state in all layers of one device. Neither: what vLLM has available."""
    admission: ServingAdmission
    retention: str | dict[str, Any]
    """An option of `conf/retention`, or its values."""
    pinning: str | dict[str, Any]
    """An option of `conf/pinning`, or its values."""
    max_leaves: NonNegativeInt
    """States kept for requests that go on from exactly there; 0 forks nothing."""
    exact: bool

    @classmethod
    def of(cls, data: Any) -> Self:
        """Read what a user wrote.

        Raises:
            ConfigError: names the field and its value.
        """
        path = f"additional_config.{KEY}"
        if not isinstance(data, Mapping):
            raise ConfigError(f"{path} must be a mapping, got {data!r}")
        defaults = serving_defaults()
        written = {"admission": {}} | dict(data)
        if isinstance(written["admission"], Mapping):
            written["admission"] = defaults["admission"] | dict(written["admission"])
        settings = cls.parse(defaults | written, path=path)
        if settings.budget_bytes is not None and settings.budget_gib is not None:
            raise ConfigError(
                f"{path}: budget_bytes {settings.budget_bytes} and budget_gib "
                f"{settings.budget_gib} are two budgets; give one"
            )
        return settings

    def resolve_organization(self) -> OrganizationConfig:
        """The whole organization.

        Raises:
            ConfigError: the option does not exist, or a value is refused.
        """
        chosen: OrganizationConfig = parse_union(
            OrganizationConfig, _option("organization", self.organization), path="organization"
        )
        return chosen

    def resolve(self, model: ModelConfig, *, cap: int) -> EngineSettings:
        """The engine's settings.

        Args:
            model: shape of the served model.
            cap: vLLM's max_num_seqs.

        Raises:
            ConfigError: names what is refused.
        """
        if self.admission.cap not in (None, cap):
            raise ConfigError(f"admission.cap {self.admission.cap} contradicts max_num_seqs {cap}")
        settings = EngineSettings(
            model=self._agreed(model),
            organization=self.resolve_organization(),
            budget_bytes=self.budget_bytes,
            admission=AdmissionConfig(headroom=self.admission.headroom, cap=cap),
            retention=RetentionConfig.parse(_option("retention", self.retention), path="retention"),
            pinning=PinningConfig.parse(_option("pinning", self.pinning), path="pinning"),
            max_leaves=self.max_leaves,
            exact=self.exact,
        )
        if self.budget_gib is not None:
            return settings.within(int(self.budget_gib * _GIB))
        if self.budget_bytes is not None:
            try:
                settings.memory()
            except ValueError as error:
                raise ConfigError(f"budget_bytes {self.budget_bytes} a layer: {error}") from None
        return settings

    def _agreed(self, served: ModelConfig) -> ModelConfig:
        """The shape that was asked for, if the served model has it."""
        if self.model is None:
            return served
        for field in sorted(ModelConfig.model_fields.keys() - _NOT_SHAPE):
            asked, found = getattr(self.model, field), getattr(served, field)
            if asked != found:
                raise ConfigError(
                    f"model.{field} {asked} contradicts the served model {served.name}, "
                    f"which has {found}"
                )
        return self.model


def serving_defaults() -> dict[str, Any]:
    """What `conf/serve.yaml` says where a user says nothing."""
    root: dict[str, Any] = yaml.safe_load((CONF / "serve.yaml").read_text(encoding="utf-8"))
    groups = {
        group: option
        for entry in root["defaults"]
        if isinstance(entry, dict)
        for group, option in entry.items()
        if option is not None and not group.startswith("override ")
    }
    names = ("budget_bytes", "budget_gib", "admission", "max_leaves", "exact")
    own = {name: root[name] for name in names}
    return own | groups


def _option(group: str, choice: str | dict[str, Any]) -> dict[str, Any]:
    return read_option(group, choice) if isinstance(choice, str) else choice
