"""The plugin's settings, as a user writes them and as an engine runs them.

A user writes `ServingSettings`: option names of `conf/`, or values. They are resolved once, where
vLLM's configuration is made, to `EngineSettings`: the same typed values as a cell's. Both travel as
`additional_config={"hsexp": {...}}`, which reaches every process that vLLM starts.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from hsexp.config.axes import MEMORY_AXES, Axes
from hsexp.config.axis import Axis, InServer, holding
from hsexp.config.base import Config, ConfigError, parse_union
from hsexp.config.catalog import read_option, read_root
from hsexp.config.fields import OpenFraction
from hsexp.memory import HybridMemory, MemoryConfig, Observer, build_memory
from hsexp.memory.geometry import AnyModel, ModelShape, ServedModel
from hsexp.memory.organizations import Organization, OrganizationConfig, PoolPlan
from hsexp.memory.policies.admission import AdmissionConfig

KEY = "hsexp"
"""Name of our part of vLLM's additional configuration."""
SCHEDULER = "hsexp.engine.scheduler.HybridScheduler"
"""vLLM's `scheduler_cls` that goes with it."""

_GIB = 2**30

_NOT_SHAPE = {"name", "checkpoint", "max_model_tokens", "d0_attention_fraction", "seeded_width"}
"""Fields that may differ between a model in `conf/model` and the served one."""


class EngineSettings(MemoryConfig):
    """One engine's memory, and how much of it there is."""

    model: ServedModel
    budget_bytes: PositiveInt | None
    """Nominal bytes of state of one attention layer with its recurrent layers; None until the
    engine core knows what vLLM has left for state."""
    max_leaves: NonNegativeInt = 0
    """Most states off the checkpoint grid that are kept for requests that resume from exactly
    there: samples of one prompt, beams. 0 disables forking; `exact` implies 0."""

    @model_validator(mode="after")
    def _states_carry_the_engine(self) -> Self:
        try:
            self.require_states(branches=self.max_leaves > 0)
        except ValueError as error:
            raise ValueError(f"{error}; max_leaves {self.max_leaves} must be 0") from None
        self.require_kernels()
        if self.exact and self.states.copies:
            raise ValueError(
                f"states {self.states.name} cannot be combined with exact on a real engine: it "
                "computes every request alone, and copies states before all of them"
            )
        return self

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
        """The settings as vLLM's additional configuration.

        Each part of the memory is in it: who leaves one out asks for a server's default.
        """
        parts = {axis.name: getattr(self, axis.name) for axis in MEMORY_AXES}
        return {
            KEY: self.model_dump(mode="json")
            | {name: part.model_dump(mode="json") for name, part in parts.items()}
        }

    @property
    def layout(self) -> Organization:
        try:
            return super().layout
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(f"model {self.model.name}: {error}") from None

    @property
    def plan(self) -> PoolPlan:
        """The pools of one attention layer with its recurrent layers."""
        return self.layout.plan(self._budget)

    @property
    def num_blocks(self) -> int:
        """Blocks of vLLM's block tables: pages, or kernels' blocks where a page has several."""
        layout, plan = self.layout, self.plan
        blocks_per_page = layout.block_size // layout.kernel_block_size
        return max(
            plan.pools[0].num_pages * blocks_per_page, *(pool.num_pages for pool in plan.pools)
        )

    @property
    def block_bytes(self) -> int:
        """Bytes from one of the kernels' blocks to the next, padding included."""
        layout = self.layout
        return layout.attention_page_bytes * layout.kernel_block_size // layout.block_size

    @property
    def padded_block_bytes(self) -> int | None:
        """The same where blocks are padded; None where keys and values fill them."""
        payload = self.layout.kernel_block_size * self.layout.geometry.kv_token_bytes
        return self.block_bytes if self.block_bytes > payload else None

    @property
    def pool_bytes(self) -> tuple[int, ...]:
        """Bytes of each pool in all layers. A group without recurrent layers has no pool for their
        states alone."""
        model, (attention, *others) = self.model, self.plan.pools
        num_groups = model.num_attention_layers - model.num_empty_groups
        return (
            model.num_attention_layers * attention.total_bytes,
            *(num_groups * pool.total_bytes for pool in others),
        )

    @property
    def state_bytes(self) -> int:
        """Bytes of all pools in all layers."""
        return sum(self.pool_bytes)

    def within(self, total_bytes: int) -> Self:
        """The settings with the largest budget whose pools take at most this, in all layers.

        Raises:
            ConfigError: the bytes do not hold two pages a pool.
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

    def memory(self, observer: Observer | None = None) -> HybridMemory:
        """A fresh memory with empty pools."""
        return build_memory(
            self,
            self._budget,
            observer=observer,
            max_leaves=self.forked_leaves,
        )

    @property
    def forked_leaves(self) -> int:
        """Most leaves that running requests keep."""
        # A fork ends the chunk of the prompt where an isolated recomputation would not.
        return 0 if self.exact else self.max_leaves

    @property
    def lists_copies(self) -> bool:
        """Whether a step may have pages and states to copy before it computes."""
        return bool(self.max_leaves or self.leaves.max_final or self.states.copies)

    @property
    def _budget(self) -> int:
        if self.budget_bytes is None:
            raise ConfigError("budget_bytes is not known before vLLM has measured its memory")
        return self.budget_bytes


class ServingAdmission(Config):
    """The part of admission that a user decides."""

    headroom: OpenFraction
    """Fraction of all pages that must stay free when a request joins the running ones."""
    cap: PositiveInt | None
    """Most running requests; None uses vLLM's max_num_seqs."""


@holding(
    MEMORY_AXES,
    type_of=lambda axis: str | dict[str, Any],
    default=lambda axis: ...,
)
class ServingSettings(Axes, InServer, Config):
    """What a user of `vllm serve` writes; defaults are in `conf/serve.yaml`.

    An organization or a policy is an option of its group in `conf/`, or a mapping of its values.
    """

    model: AnyModel | None = None
    """The shape that the model must have; None accepts the model's own."""
    budget_bytes: PositiveInt | None
    """Bytes of state of one attention layer with its recurrent layers, as a campaign's budget."""
    budget_gib: Annotated[PositiveFloat | None, Field(allow_inf_nan=False)]
    """GiB of state in all layers of one device. Without either budget: all that vLLM has
    available."""
    admission: ServingAdmission
    max_leaves: NonNegativeInt
    """States kept for requests that resume from exactly there; 0 disables forking."""
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
        """The organization with all its values.

        Raises:
            ConfigError: the option does not exist, or a value is refused.
        """
        organization: OrganizationConfig = _resolve(
            self.organization, OrganizationConfig, group="organization"
        )
        return organization

    def resolve_part(self, axis: Axis) -> Any:
        """The organization or policy with all its values.

        Raises:
            ConfigError: the option does not exist, or a value is refused.
        """
        return _resolve(getattr(self, axis.name), axis.options, group=axis.name)

    def resolve(self, model: ModelShape, *, cap: int) -> EngineSettings:
        """The engine's settings.

        Args:
            model: shape of the served model.
            cap: vLLM's max_num_seqs.

        Raises:
            ConfigError: names what is refused.
        """
        if self.admission.cap not in (None, cap):
            raise ConfigError(f"admission.cap {self.admission.cap} contradicts max_num_seqs {cap}")
        settings = EngineSettings.parse(
            {
                "model": self._agreed(model),
                "budget_bytes": self.budget_bytes,
                "admission": AdmissionConfig(headroom=self.admission.headroom, cap=cap),
                **{axis.name: self.resolve_part(axis) for axis in MEMORY_AXES},
                "max_leaves": self.max_leaves,
                "exact": self.exact,
            }
        )
        if settings.forked_leaves and not settings.layout.allows_branches:
            raise ConfigError(
                f"max_leaves {self.max_leaves} contradicts organization "
                f"{settings.organization.name}, whose sequences cannot branch; set it to 0"
            )
        if self.budget_gib is not None:
            return settings.within(int(self.budget_gib * _GIB))
        if self.budget_bytes is not None:
            try:
                settings.memory()
            except ValueError as error:
                raise ConfigError(f"budget_bytes {self.budget_bytes} a layer: {error}") from None
        return settings

    def _agreed(self, served: ModelShape) -> ModelShape:
        """The shape that was asked for, if the served model has it."""
        if self.model is None:
            return served
        for field in sorted(type(served).model_fields.keys() - _NOT_SHAPE):
            asked, found = getattr(self.model, field, None), getattr(served, field)
            if asked != found:
                raise ConfigError(
                    f"model.{field} {asked} contradicts the served model {served.name}, "
                    f"which has {found}"
                )
        return self.model


def _resolve(choice: str | dict[str, Any], options: Any, *, group: str) -> Any:
    """An option of a group, by its name or by its values."""
    values = read_option(group, choice) if isinstance(choice, str) else choice
    return parse_union(options, values, path=group)


def serving_defaults() -> dict[str, Any]:
    """The defaults of `conf/serve.yaml`."""
    own, chosen = read_root("serve")
    return {name: own[name] for name in ServingSettings.model_fields if name in own} | chosen


def label_text(value: Any) -> str:
    """A setting as the engine reports it: `hsexp:engine_info` carries text."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
