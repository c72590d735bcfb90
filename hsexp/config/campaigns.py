"""The kinds of campaign and their settings."""

from collections.abc import Iterator
from itertools import product
from types import GenericAlias
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, model_validator

from hsexp.config.arm import Arm
from hsexp.config.axes import AXES, Axes
from hsexp.config.axis import Axis, InBlock, holding
from hsexp.config.base import Config
from hsexp.config.fields import Fraction, Name, Seed


@holding(
    AXES,
    type_of=lambda axis: GenericAlias(tuple, (axis.type, ...)),
    default=lambda axis: ... if axis.neutral is None else axis.neutral,
)
class Block(Axes, InBlock, Config):
    """A full factorial of axes; a campaign is a sum of blocks. Names select Hydra groups.

    A block names the axes that it varies, and those that have no neutral value (`AXES`). Axes that
    vary together are named as arms: the block has every combination of the others with each arm.
    """

    workload: Name | None = None
    """Workload of this block; null uses the launch's."""
    arrivals: Name | None = None
    """Arrivals of this block; null uses the launch's."""
    separate: bool | None = None
    """Whether this block's steps separate prefill and decode; null uses the launch's
    scheduler."""
    exact: bool | None = None
    """Whether this block's requests continue exactly; null uses the launch's engine."""
    arms: Annotated[dict[Name, Arm], Field(default_factory=dict, exclude_if=lambda arms: not arms)]
    """Axes that vary together, by the name of the arm. What an arm leaves out has the block's
    value."""

    @model_validator(mode="after")
    def _axes_are_sets(self) -> "Block":
        for axis in AXES:
            values = self._own(axis)
            if not values:
                raise ValueError(f"axis {axis.name} must not be empty")
            if len(set(values)) != len(values):
                raise ValueError(f"axis {axis.name} names a value twice: {values}")
        return self

    @model_validator(mode="after")
    def _arms_differ(self) -> "Block":
        for name, arm in self.arms.items():
            for axis in arm.axes:
                if len(values := getattr(self, axis)) > 1:
                    varied = ", ".join(map(str, values))
                    raise ValueError(f"arm {name} sets {axis}, which the block varies: {varied}")
        wholes: list[Arm] = []
        for name in self.arms:
            whole = self.arm(name)
            if whole in wholes:
                twin = list(self.arms)[wholes.index(whole)]
                raise ValueError(f"arms {twin} and {name} are equal")
            wholes.append(whole)
        return self

    def _own(self, axis: Axis) -> tuple[Any, ...]:
        values: tuple[Any, ...] = getattr(self, axis.name)
        return values

    def values(self, axis: Axis) -> tuple[Any, ...]:
        """The values that the block or its arms give an axis, each once."""
        own = self._own(axis)
        if not self.arms:
            return own
        of_arms = (arm.axes.get(axis.name) for arm in self.arms.values())
        return tuple(
            dict.fromkeys(
                value for of_arm in of_arms for value in (own if of_arm is None else (of_arm,))
            )
        )

    def arm(self, name: str) -> Arm:
        """An arm with all axes that any arm of the block sets."""
        together = dict.fromkeys(axis for arm in self.arms.values() for axis in arm.axes)
        return Arm(**{axis: getattr(self, axis)[0] for axis in together} | self.arms[name].axes)

    def combinations(self) -> Iterator[dict[str, Any]]:
        """The axes of every cell, without its repeat; arms and the last axis vary fastest."""
        inner = [axis for axis in AXES if not axis.is_repeat]
        for values in product(*map(self._own, inner)):
            axes = dict(zip((axis.name for axis in inner), values, strict=True))
            for arm in self.arms.values() or (Arm(),):
                yield axes | arm.axes

    def pinned(self, axis: Axis, chosen: tuple[Any, ...]) -> Self:
        """The block with other values of an axis: it keeps the arms that have one of them. If none
        has, the values hold for all, and of arms that are equal then it keeps the first."""
        whole = {name: self.arm(name).axes for name in self.arms}
        kept = [name for name in whole if whole[name].get(axis.name, chosen[0]) in chosen]
        arms: dict[str, dict[str, Any]] = {}
        for name in kept or whole:
            others = {key: value for key, value in whole[name].items() if key != axis.name}
            if others not in arms.values():
                arms[name] = others
        return self.parse(self.model_dump() | {axis.name: chosen, "arms": arms})


class RegisteredConfig(Config):
    """The part of a registration that is in words; seeds and tests are registered as data."""

    primary: str
    """The primary contrast."""
    exclusions: tuple[str, ...]
    """Rules that exclude a run from the analysis; empty keeps every planned run."""


class Campaign(Config):
    """Settings of every kind of campaign, and the settings of a launch that the kind uses."""

    settings: ClassVar[frozenset[str] | None] = None
    """Settings of a launch that this kind uses, by their names on the command line; any other
    one is refused (`hsexp.plan.resolve`). None uses all of them."""

    kind: str
    name: Name
    title: str
    section: str
    """Section of the paper that describes the campaign; "none" for a campaign of ours."""
    question: str | None = None
    """What the campaign asks, in a sentence; its report begins with it."""

    @property
    def headline(self) -> str:
        """Name and title, and the section of the paper that describes it."""
        where = "" if self.section == "none" else f" (Section {self.section})"
        return f"{self.name}: {self.title}{where}"

    @classmethod
    def uses(cls, setting: str) -> bool:
        """Whether this kind uses a setting. It uses a group if it uses one of its fields, and a
        field if it uses its group."""
        return cls.settings is None or any(
            f"{known}.".startswith(f"{setting}.") or f"{setting}.".startswith(f"{known}.")
            for known in cls.settings
        )

    @property
    def options(self) -> dict[str, tuple[Name, ...]]:
        """Options that the campaign names outside of blocks, by group."""
        return {}


class AdviceConfig(Config):
    """What a campaign advises once its blocks have run, and the runs that it adds before that."""

    default: Arm
    """What the advised arm is compared with. Where it has no run, the arm with the fewest other
    settings takes its place."""
    indifference_percent: Annotated[float, Field(ge=0.0, lt=100.0)]
    """Arms whose throughputs, or whose latencies, are this close count as equal."""
    finalists: PositiveInt
    """Best arms whose neighbours and whose sensitivity are run."""
    step_time_factors: tuple[PositiveFloat, ...]
    """Factors on the device's step times under which the finalists run again."""
    budget_factors: tuple[PositiveFloat, ...]
    """Factors on the budget, likewise."""
    rate_factors: tuple[PositiveFloat, ...]
    """Factors on a rate that is drawn, likewise, where there is a target to keep."""
    bundles: Annotated[dict[Name, Arm], Field(default_factory=dict)]
    """Settings that are printed under one name where an arm has all of them."""


class ServingCampaign(Campaign):
    """Runs of serving workloads on an engine, simulated or real."""

    kind: Literal["serving"]
    blocks: Annotated[dict[Name, Block], Field(min_length=1)]
    reuses: tuple[Name, ...] = ()
    """Campaigns whose accepted runs of equal cells are reused by reference instead of rerun."""
    record_steps: bool = False
    """Its tables read the step tables of its runs, so every launch keeps them."""
    registered: RegisteredConfig | None = None
    """Registered in the ledger with the seeds and the tests; null registers only those two."""
    advice: AdviceConfig | None = None
    """Ends in advice (`hsexp.plan.advice`): its later blocks follow from the runs of the first."""
    own_options: Annotated[dict[Name, dict[Name, dict[str, Any]]], Field(default_factory=dict)]
    """Options that only this campaign has: group -> name -> settings."""

    @property
    def options(self) -> dict[str, tuple[Name, ...]]:
        """The organizations, for advice: one that cannot carry the model is left out of it."""
        if self.advice is None:
            return {}
        every = (axes for block in self.blocks.values() for axes in block.combinations())
        return {"organization": tuple(dict.fromkeys(axes["organization"] for axes in every))}


class MixConfig(Config):
    """A logical set of states (Section 2.2)."""

    attention_tokens: Annotated[int, Field(ge=0)]
    checkpoints: Annotated[int, Field(ge=0)]
    slabs: PositiveInt | None = None
    """Allocated slabs of S2; null packs ideally."""


class FeasibilityConfig(Config):
    """One state set against one budget with a given D0 split (Table A-2)."""

    nominal_bytes: PositiveInt
    attention_fraction: Annotated[float, Field(gt=0.0, lt=1.0)]
    mix: MixConfig


class CountedCampaign(Campaign):
    """A campaign without an engine: its numbers follow from the configuration alone."""

    method: ClassVar[str]
    """Source of its numbers, as printed in its tables."""


_OF_MEMORY = frozenset({"campaign", "stage", "scale", "model", "organization", "budget"})
"""Settings that decide the size of states and of the pools that hold them."""


class CapacityCampaign(CountedCampaign):
    """Storage arithmetic (Section 3, Appendix A)."""

    settings: ClassVar[frozenset[str]] = _OF_MEMORY
    method: ClassVar[str] = "computed from the configured sizes"

    kind: Literal["capacity"]
    organizations: Annotated[tuple[Name, ...], Field(min_length=1)]
    budgets: Annotated[tuple[Name, ...], Field(min_length=1)]
    mixes: Annotated[tuple[MixConfig, ...], Field(min_length=1)]
    """State sets whose storage is compared (Table A-1)."""
    capacity_bytes: PositiveInt
    """Budget for the capacities of A8 and D2."""
    feasibility: FeasibilityConfig

    @property
    def options(self) -> dict[str, tuple[Name, ...]]:
        return {"organization": self.organizations, "budget": self.budgets}


class MixedChunkConfig(Config):
    """An input chunk that runs in one step with decodes, or before them."""

    prefill_tokens: PositiveInt
    published: str
    """Key of the published saving by separation in `analysis/paper/text.csv`."""


class FixedWorkCampaign(CountedCampaign):
    """Equal work in steps of other shapes, by the device's step-time model."""

    settings: ClassVar[frozenset[str]] = frozenset(
        {"campaign", "stage", "device.name", "device.step_time"}
    )
    method: ClassVar[str] = "modelled by step times, not measured"

    kind: Literal["fixed_work"]
    num_wide: PositiveInt
    """Decodes of one wide step."""
    num_narrow: PositiveInt
    """Decodes of each narrow step; together the narrow steps do the wide step's work."""
    num_mixed_decodes: PositiveInt
    """Decodes that share a step with an input chunk, or follow it in a step of their own."""
    chunks: Annotated[tuple[MixedChunkConfig, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _narrow_steps_add_up(self) -> "FixedWorkCampaign":
        if self.num_wide % self.num_narrow:
            raise ValueError(
                f"num_wide {self.num_wide} must be a multiple of num_narrow {self.num_narrow}"
            )
        return self


class AboutTheEngine(Campaign):
    """A campaign about the engine itself, which a simulation cannot answer."""

    needs_engine: Literal["vllm"]
    why: str
    """Reason why a simulation cannot answer it; ends a sentence."""
    design: dict[Name, tuple[str | float, ...] | None]
    """Factors and their levels as published; null where the paper does not state them."""
    num_runs: PositiveInt | None
    """Runs that the paper states; null where it does not."""


class EngineCampaign(AboutTheEngine):
    """A design without a runner yet: every launch of it is refused with the reason."""

    settings: ClassVar[frozenset[str]] = frozenset({"campaign", "stage", "engine.name", "device"})

    kind: Literal["engine"]


class ContinuationCampaign(AboutTheEngine):
    """Checks on a real engine that treated requests continue like isolated recomputations."""

    settings: ClassVar[frozenset[str]] = frozenset(
        {"campaign", "stage", "ledger", "note", "amend", "workers", "seeds"}
        | {"engine.name", "device", "model", "organization", "scheduler.token_budget"}
    )

    kind: Literal["continuation"]
    organizations: Annotated[tuple[Name, ...], Field(min_length=1)]
    dtype_bytes: Annotated[tuple[Literal[2, 4], ...], Field(min_length=1)]
    """Bytes of an element of weights, activations and states: bfloat16 or float32."""
    exact: Annotated[tuple[bool, ...], Field(min_length=1)]
    depths_tokens: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    """Lengths of the shared prefix."""
    treatments: Annotated[tuple[Name, ...], Field(min_length=1)]
    """Names of the treatments of the requests."""
    cap: PositiveInt
    """Most running requests."""
    slots_per_slab: PositiveInt
    """Slots of an S2 slab; their bytes follow from the page size, which depends on the element."""
    limit_s: PositiveFloat
    """Longest time for one check; a slower one is a failed attempt."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)]


LawGroup = Literal["workload", "arrivals"]
"""Groups whose options are laws of the workload."""


class ScaleConfig(Config):
    """Another size of the campaigns, for a small model on a slow device.

    The laws of the workload and the pages that a request needs stay those of the paper.
    """

    name: Name
    budget_factor: PositiveFloat
    """Factor on the bytes of every named budget."""
    laws: dict[LawGroup, dict[Name, Name]]
    """Laws that replace those of the campaigns, by group and name."""
    workload: dict[Name, Any]
    """Fields of every workload law with other values at this scale."""
    organization: dict[Name, dict[Name, Any]]
    """Fields of an organization with other values at this scale, by its name."""
    campaigns: dict[Name, Annotated[dict[Name, Block], Field(min_length=1)]]
    """Blocks that a campaign has at this scale, by its name."""


def _distinct(seeds: tuple[Seed, ...]) -> tuple[Seed, ...]:
    if len(set(seeds)) < len(seeds):
        raise ValueError("must not name a seed twice")
    return seeds


class CollectionCampaign(Campaign):
    """Several campaigns of any kind, one after the other.

    A setting of the launch applies to the members that use it.
    """

    kind: Literal["collection"]
    campaigns: Annotated[tuple[Name, ...], Field(min_length=1)]
    compare: Name | None = None
    """Comparison page that ends it (`python -m analysis compare=NAME`)."""
    fresh_seeds: Annotated[tuple[Seed, ...], AfterValidator(_distinct)] = ()
    """Seeds that a simulation runs too, in ledgers of their own below `fresh/`, unless the launch
    names seeds; they lead the page. Empty runs none."""


class LabCampaign(CountedCampaign):
    """An experiment on the memory core alone."""

    settings: ClassVar[frozenset[str]] = _OF_MEMORY
    method: ClassVar[str] = "counted on the memory core, nothing is timed"

    organizations: Annotated[tuple[Name, ...], Field(min_length=1)]
    budget: Name
    """Budget; large enough for the way that takes most pages."""

    @property
    def options(self) -> dict[str, tuple[Name, ...]]:
        return {"organization": self.organizations, "budget": (self.budget,)}


class BranchingCampaign(LabCampaign):
    """Forks and beams: copies, pages and tokens of several ways."""

    kind: Literal["branching"]
    prefix_tokens: PositiveInt
    """Prompt tokens up to a boundary that is on the grid of every organization."""
    tail_tokens: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]
    """Further prompt tokens after that boundary."""
    branches: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(min_length=1)]
    """Numbers of samples of one prompt."""
    output_tokens: PositiveInt
    """Output tokens of each sample."""
    beam_tail_tokens: Annotated[int, Field(ge=0)]
    """Tail of the prompt of the beam search."""
    beam_widths: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(min_length=1)]
    beam_steps: PositiveInt
    """Tokens that a beam search generates."""
    seed: Seed
    """Seed of the draws that choose the parents of beams."""


class SpeculationCampaign(LabCampaign):
    """Draft-and-verify with known drafters."""

    kind: Literal["speculation"]
    prompt_tokens: PositiveInt
    acceptances: Annotated[tuple[Fraction, ...], Field(min_length=1)]
    """Probability that a draft is accepted."""
    drafts: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    """Draft tokens of a pass."""
    passes: PositiveInt
    """Passes of each drafter."""
    vocabulary: Annotated[int, Field(ge=3)]
    """Number of distinct tokens of the models."""
    seed: Seed


class CacheLabCampaign(CountedCampaign):
    """A cyclic working set against caches of several capacities."""

    settings: ClassVar[frozenset[str]] = frozenset({"campaign", "stage"})
    method: ClassVar[str] = LabCampaign.method

    kind: Literal["cachelab"]
    capacities: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    """Entries that fit."""
    strides: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    """Request i asks for identity stride * i mod identities."""
    identities: PositiveInt
    times_s: Annotated[tuple[Annotated[float, Field(ge=0.0)], ...], Field(min_length=1)]
    """Times at which hits are counted."""
    first_requests: PositiveInt
    """Requests that arrive at time 0."""
    rate_per_s: PositiveFloat
    """Arrival rate of the requests that follow."""
    max_requests: PositiveInt
    """Most requests that arrive in all."""


CampaignConfig = Annotated[
    ServingCampaign
    | CapacityCampaign
    | FixedWorkCampaign
    | BranchingCampaign
    | SpeculationCampaign
    | CacheLabCampaign
    | ContinuationCampaign
    | EngineCampaign
    | CollectionCampaign,
    Field(discriminator="kind"),
]
