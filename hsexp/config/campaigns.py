"""The kinds of campaign, and what each may say."""

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from hsexp.config.axes import AXES
from hsexp.config.base import Config
from hsexp.config.fields import Fraction, Name, OpenFraction, Seed


class Block(Config):
    """A full factorial of axes; a campaign is a sum of blocks. Names select Hydra groups."""

    workload: Name | None = None
    """Workload of this block; null takes the launch's."""
    arrivals: Name | None = None
    """Arrivals of this block; null takes the launch's."""
    separate: bool | None = None
    """Whether this block's steps keep prefill and decode apart; null takes what the launch's
    scheduler says."""
    exact: bool | None = None
    """Whether this block's requests continue exactly; null takes what the launch's engine says."""

    organization: tuple[Name, ...]
    budget: tuple[Name, ...]
    rate_per_s: tuple[PositiveFloat | None, ...]
    """Offered requests per second; null replays a trace's own arrivals."""
    cap: tuple[PositiveInt, ...]
    sharing: tuple[Fraction | None, ...]
    """Fraction q of requests that share their context; null leaves it to a trace."""
    headroom: tuple[OpenFraction, ...]
    retention: tuple[Name, ...]
    pinning: tuple[Name, ...]
    isolation: tuple[Name, ...]
    trace: tuple[bool, ...] = (False,)
    """Whether state depths are recorded at queue entry and admission (Q7)."""
    seeds: tuple[Seed, ...]

    @model_validator(mode="after")
    def _axes_are_sets(self) -> "Block":
        for axis in AXES:
            values = getattr(self, axis)
            if not values:
                raise ValueError(f"axis {axis} must not be empty")
            if len(set(values)) != len(values):
                raise ValueError(f"axis {axis} names a value twice: {values}")
        return self


class RegisteredConfig(Config):
    """What a campaign states in words before its first run, beside its seeds and its tests."""

    primary: str
    """The contrast that decides."""
    exclusions: tuple[str, ...]
    """Rules by which a run is kept out of the analysis; empty keeps every planned one."""


class ServingCampaign(Config):
    """Cells on an engine, and which question of the paper they answer."""

    kind: Literal["serving"]
    name: Name
    title: str
    section: str
    """Where the paper describes it."""
    blocks: Annotated[dict[Name, Block], Field(min_length=1)]
    reuses: tuple[Name, ...] = ()
    """Campaigns whose accepted runs of equal cells are taken over by reference, never re-run."""
    record_steps: bool = False
    """Its tables read the step tables of its runs, so every launch keeps them."""
    registered: RegisteredConfig | None = None
    """Frozen in the ledger with the seeds and the tests; null states nothing beside those."""


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


class CapacityCampaign(Config):
    """Storage arithmetic: no engine runs (Section 3, Appendix A)."""

    kind: Literal["capacity"]
    name: Name
    title: str
    section: str
    organizations: Annotated[tuple[Name, ...], Field(min_length=1)]
    budgets: Annotated[tuple[Name, ...], Field(min_length=1)]
    mixes: Annotated[tuple[MixConfig, ...], Field(min_length=1)]
    """State sets whose storage is compared (Table A-1)."""
    capacity_bytes: PositiveInt
    """Budget that the capacities of A8 and D2 are computed for."""
    feasibility: FeasibilityConfig


class MixedChunkConfig(Config):
    """An input chunk that runs beside decodes or before them."""

    prefill_tokens: PositiveInt
    published: str
    """What the running text (ledgers/paper/text.csv) calls the time that separation saves."""


class FixedWorkCampaign(Config):
    """The same work in steps of another shape, by the device's step-time model; no engine runs."""

    kind: Literal["fixed_work"]
    name: Name
    title: str
    section: str
    context_tokens: PositiveInt
    """Tokens before each decode; a step-time model without a context term does not use it."""
    num_wide: PositiveInt
    """Decodes of one wide step."""
    num_narrow: PositiveInt
    """Decodes of each narrow step; together these do the wide step's work."""
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


class EngineCampaign(Config):
    """A campaign about the engine itself: a simulation has no answer to it."""

    kind: Literal["engine"]
    name: Name
    title: str
    section: str
    needs_engine: Literal["vllm"]
    why: str
    """What a simulation lacks, as the end of a sentence."""
    design: dict[Name, tuple[str | float, ...] | None]
    """Factors and their levels as published; null where the paper does not state them."""
    num_runs: PositiveInt | None
    """Runs that the paper states; null where it does not."""


class ContinuationCampaign(Config):
    """Whether treated requests continue as their isolated recomputations do, on a real engine."""

    kind: Literal["continuation"]
    name: Name
    title: str
    section: str
    needs_engine: Literal["vllm"]
    why: str
    """What a simulation lacks, as the end of a sentence."""
    design: dict[Name, tuple[str | float, ...] | None]
    """Factors and their levels as published; null where the paper does not state them."""
    num_runs: PositiveInt | None
    """Runs that the paper states; null where it does not."""
    organizations: Annotated[tuple[Name, ...], Field(min_length=1)]
    dtype_bytes: Annotated[tuple[Literal[2, 4], ...], Field(min_length=1)]
    """Bytes of an element of weights, activations and states: bfloat16 or float32."""
    exact: Annotated[tuple[bool, ...], Field(min_length=1)]
    depths_tokens: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    """Lengths of the shared prefix."""
    treatments: Annotated[tuple[Name, ...], Field(min_length=1)]
    """What is done to the requests, by name."""
    cap: PositiveInt
    """Most running requests."""
    slots_per_slab: PositiveInt
    """S2's slots follow the size of a page, which depends on the element."""
    limit_s: PositiveFloat
    """Longest time for one check; a slower one is a failed attempt."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)]


class ScaleConfig(Config):
    """Another size of the campaigns, for a small model on a slow device.

    The laws and the memory a request needs, in pages, stay those of the paper.
    """

    name: Name
    budget_factor: PositiveFloat
    """Times the bytes of every named budget."""
    workload: dict[Name, Any]
    """Fields of every workload law that have other values at this scale."""
    organization: dict[Name, dict[Name, Any]]
    """Fields of an organization that have other values, by its name."""
    campaigns: dict[Name, Annotated[dict[Name, Block], Field(min_length=1)]]
    """Blocks that a campaign has at this scale, by its name."""


class CollectionCampaign(Config):
    """Several campaigns, one after the other, each with its own ledger."""

    kind: Literal["collection"]
    name: Name
    title: str
    section: str
    campaigns: Annotated[tuple[Name, ...], Field(min_length=1)]
    compare: Name | None = None
    """Comparison page that ends it (`python -m analysis compare=NAME`)."""


class BranchingCampaign(Config):
    """Forks and beams on the memory core alone: copies, pages and tokens of several ways."""

    kind: Literal["branching"]
    name: Name
    title: str
    section: str
    organizations: Annotated[tuple[Name, ...], Field(min_length=1)]
    budget: Name
    """Wide enough for the way that copies everything."""
    prefix_tokens: PositiveInt
    """The prompt up to a checkpoint boundary of every organization."""
    tail_tokens: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]
    """What the prompt has behind it."""
    branches: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(min_length=1)]
    """Samples of one prompt."""
    output_tokens: PositiveInt
    """Of each sample."""
    beam_tail_tokens: Annotated[int, Field(ge=0)]
    """Tail of the prompt that beams are searched over."""
    beam_widths: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(min_length=1)]
    beam_steps: PositiveInt
    """Tokens that a beam search generates."""
    seed: Seed
    """Draws which beams go on."""


class SpeculationCampaign(Config):
    """Draft-and-verify with known drafters, over the memory core alone."""

    kind: Literal["speculation"]
    name: Name
    title: str
    section: str
    organizations: Annotated[tuple[Name, ...], Field(min_length=1)]
    budget: Name
    prompt_tokens: PositiveInt
    acceptances: Annotated[tuple[Fraction, ...], Field(min_length=1)]
    """Probability that a draft is accepted."""
    drafts: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    """Draft tokens of a pass."""
    passes: PositiveInt
    """Of each drafter."""
    vocabulary: Annotated[int, Field(ge=3)]
    """Tokens of the models."""
    seed: Seed


class CacheLabCampaign(Config):
    """A cyclic working set against caches of several capacities."""

    kind: Literal["cachelab"]
    name: Name
    title: str
    section: str
    capacities: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    """Entries that fit."""
    strides: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    """Request i asks for identity stride * i mod identities."""
    identities: PositiveInt
    times_s: Annotated[tuple[Annotated[float, Field(ge=0.0)], ...], Field(min_length=1)]
    """When the cache is looked at."""
    first_requests: PositiveInt
    """That have come at the start."""
    rate_per_s: PositiveFloat
    """Of those that follow."""
    max_requests: PositiveInt
    """Most that come at all."""


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
