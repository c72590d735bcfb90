"""What can be configured: one frozen class per Hydra group, with meaning, unit and range.

Numbers live in `conf/`, each with its source in a comment; this file says what they mean and
which are refused. Nothing here knows Hydra: `hsexp.config.load` turns a composed configuration
into these classes in one place.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from hsexp.config.base import Config, ConfigError

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
OpenFraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]+$")]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


# -- model ---------------------------------------------------------------------------------------


class ModelConfig(Config):
    """The shape of one hybrid layer stack; every state size follows from it (Section 3)."""

    name: Name
    num_attention_layers: PositiveInt
    num_recurrent_layers: PositiveInt
    """A multiple of the attention layers: that many layer groups, each with its own states."""
    num_kv_heads: PositiveInt
    head_dim: PositiveInt
    """Elements of one attention head."""
    ssm_heads: PositiveInt
    ssm_head_dim: PositiveInt
    d_state: PositiveInt
    """Recurrent (SSM) state elements per head and channel."""
    ssm_groups: PositiveInt
    """Groups that share B and C; they widen the convolution."""
    conv_width: Annotated[int, Field(ge=2)]
    """Taps of the causal convolution; its state keeps `conv_width - 1` of them."""
    dtype_bytes: Literal[2, 4]
    """Bytes of one state element (2 for BF16)."""
    ssm_dtype_bytes: Annotated[
        Literal[2, 4] | None, Field(exclude_if=lambda value: value is None)
    ] = None
    """Bytes of one recurrent state element where they differ from `dtype_bytes`."""
    max_model_tokens: PositiveInt
    """Longest prompt plus output that is served."""
    d0_attention_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] | None
    """Attention's share of the budget in D0's static split (Table B-3); null where no split was
    screened for the model, and D0 must then be given one."""
    checkpoint: str | None = Field(default=None, exclude=True)
    """Weights that a real engine loads: a folder or a name on the Hugging Face hub; null makes
    small ones of this shape from a seed. A simulation has none, so its cells do not name them."""

    @model_validator(mode="after")
    def _layers_divide(self) -> "ModelConfig":
        if self.num_recurrent_layers % self.num_attention_layers:
            raise ValueError(
                f"num_recurrent_layers {self.num_recurrent_layers} must be a multiple of "
                f"num_attention_layers {self.num_attention_layers}"
            )
        return self

    @property
    def conv_channels(self) -> int:
        """Channels of the causal convolution: the inner width, and B and C of every group."""
        return self.ssm_heads * self.ssm_head_dim + 2 * self.ssm_groups * self.d_state

    @property
    def ssm_element_bytes(self) -> int:
        return self.ssm_dtype_bytes or self.dtype_bytes

    @property
    def composites_per_checkpoint(self) -> int:
        """Recurrent composites that one checkpoint consists of, per attention layer."""
        return self.num_recurrent_layers // self.num_attention_layers


# -- organization --------------------------------------------------------------------------------


class ReleaseOrder(Config):
    """Which end of the free queue a released page joins; pages are reassigned from the head."""

    hashed: Literal["head", "tail"]
    """An attention page or checkpoint that stays in the cache."""
    plain_attention: Literal["head", "tail"]
    """An attention page without a cache key."""
    plain_representative: Literal["head", "tail"]
    """The first page of a recurrent state without a cache key."""
    plain_members: Literal["head", "tail"]
    """The other pages of a recurrent state without a cache key."""
    idle_slab: Literal["head", "tail", "like_state"]
    """A slab whose slots are all cached or free (S2 only); like_state: with the first page of the
    state whose release made it idle."""


class _Organization(Config):
    name: Name
    """What a campaign's axis calls it; variants of one kind differ in name."""
    block_size: PositiveInt
    """Tokens of one attention block."""
    reserve_fraction: OpenFraction
    """Fraction of blocks that admission always keeps free, beside the headroom."""
    num_admission_states: PositiveInt
    """Recurrent states that an admission counts for the request itself."""
    release_order: ReleaseOrder


class S0Config(_Organization):
    """S0: coarse shared pages (Section 3.2)."""

    kind: Literal["s0"]
    checkpoint_grid: PositiveInt
    """Tokens between checkpoint boundaries."""


class S1Config(_Organization):
    """S1: paged recurrent checkpoints (Section 3.3)."""

    kind: Literal["s1"]
    checkpoint_grid: PositiveInt
    """Tokens between checkpoint boundaries."""


class S2Config(_Organization):
    """S2: S1 with convolution slots packed in slabs (Section 3.4)."""

    kind: Literal["s2"]
    checkpoint_grid: PositiveInt
    """Tokens between checkpoint boundaries."""
    slot_bytes: PositiveInt
    """Bytes of one convolution slot; the convolution states of a checkpoint must fit."""


class D0Config(_Organization):
    """D0: native units in two static pools (Section 3.5)."""

    kind: Literal["d0"]
    checkpoint_multiple: PositiveInt
    """The native checkpoint grid is the smallest multiple of this many tokens whose KV is at least
    as large as one recurrent composite (Falcon: 1,792)."""
    checkpoint_grid: PositiveInt | None
    """Tokens between checkpoint boundaries; null is the native grid."""
    attention_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] | None
    """Attention's share of the budget; null takes the model's screened split."""


OrganizationConfig = Annotated[
    S0Config | S1Config | S2Config | D0Config, Field(discriminator="kind")
]


class BudgetConfig(Config):
    """Nominal bytes for all state of one layer (Section 4.1, Table B-2)."""

    name: Name
    bytes: PositiveInt


# -- policies ------------------------------------------------------------------------------------


class AdmissionConfig(Config):
    """When a waiting or preempted request may join the running ones (Section 4.4)."""

    headroom: OpenFraction
    """Fraction f of all blocks that must stay free: H = floor(f B)."""
    cap: PositiveInt
    """Most running requests."""


DemandKeys = Annotated[PositiveInt | None, Field(exclude_if=lambda value: value is None)]
"""Keys whose requesters are remembered, those asked for longest ago being forgotten first; null
remembers all of them, for ever."""


class RetentionConfig(Config):
    """Producer-side checkpoint lifetime (Section 4.5, Q8)."""

    name: Name
    requesters: PositiveInt | None
    """Distinct requests that must have asked for a checkpoint before its holder keeps it while
    running; null releases every superseded checkpoint."""
    demand_keys: DemandKeys = None


class PinningConfig(Config):
    """Extra references taken at preemption (Appendix B.2)."""

    name: Name
    requesters: PositiveInt | None
    """Distinct-requester threshold K of the rightmost boundary; null is Roff."""
    protected_fraction: Fraction
    """Most blocks of the recurrent pool that pins may hold."""
    demand_keys: DemandKeys = None


class IsolationConfig(Config):
    """SHARE omits the cache salt; ISOLATE gives each request its own (Section 4.5, Q9)."""

    name: Literal["share", "isolate"]


# -- workload ------------------------------------------------------------------------------------


class SyntheticWorkload(Config):
    """The paper's workload law: shared contexts, lognormal suffixes, gamma outputs."""

    kind: Literal["synthetic"]
    name: Name
    num_requests: PositiveInt
    num_contexts: PositiveInt
    """Shared contexts (Section 4.2: eight)."""
    zipf_exponent: Annotated[float, Field(ge=0.0)]
    """Popularity of the contexts: weight of rank k is k**-exponent."""
    shared_tokens: Annotated[int, Field(ge=0)]
    """Length of a shared context."""
    sharing: Fraction
    """Fraction q of requests whose context is really shared; the others get private content of
    the same lengths."""
    suffix_median_tokens: PositiveFloat
    suffix_sigma: PositiveFloat
    """Standard deviation of the log suffix length."""
    suffix_min_tokens: PositiveInt
    suffix_max_tokens: PositiveInt
    prompt_mean_tokens: PositiveFloat
    """Mean prompt length after rescaling the suffixes (clip, multiply, round, at least 1)."""
    output_shape: PositiveFloat
    """Shape of the gamma law of output lengths."""
    output_min_tokens: PositiveInt
    output_max_tokens: PositiveInt
    output_mean_tokens: PositiveFloat
    """Mean output length after rescaling."""

    @model_validator(mode="after")
    def _bounds_are_ordered(self) -> "SyntheticWorkload":
        if self.suffix_min_tokens > self.suffix_max_tokens:
            raise ValueError("suffix_min_tokens must not exceed suffix_max_tokens")
        if self.output_min_tokens > self.output_max_tokens:
            raise ValueError("output_min_tokens must not exceed output_max_tokens")
        if self.prompt_mean_tokens <= self.shared_tokens:
            raise ValueError("prompt_mean_tokens must exceed shared_tokens")
        return self


class TraceWorkload(Config):
    """Requests read from a file (`hsexp.workload.traces`)."""

    kind: Literal["trace"]
    name: Name
    path: str
    """File to read."""
    format: Literal["auto", "azure", "mooncake", "sharegpt", "lengths"]
    max_requests: PositiveInt | None
    """Read only the first ones; null reads the whole file."""
    tokenizer: str | None
    """Tokenizer for ShareGPT text (needs `transformers`); null counts about four characters per
    token."""
    keep_arrivals: bool
    """True replays the trace's own arrival times; false draws them from `arrivals`."""


WorkloadConfig = Annotated[SyntheticWorkload | TraceWorkload, Field(discriminator="kind")]


class PoissonArrivals(Config):
    """Exponential gaps, rescaled so that the last arrival is at num_requests / rate."""

    kind: Literal["poisson"]
    rate_per_s: PositiveFloat


class BurstArrivals(Config):
    """Poisson arrivals squeezed into ON windows (Appendix E.4).

    `rate_per_s` is the mean over whole cycles of ON and OFF time. A run ends in an ON window, and
    nobody waits for the OFF window after it, so its load is higher: 300 requests at 1.7 per second,
    5 s on and 15 s off, arrive in 164.1 s instead of 176.5 s, at 1.83 per second. A row's
    `planned_rate_per_s` and `realised_rate_per_s` say what its run carried.
    """

    kind: Literal["burst"]
    rate_per_s: PositiveFloat
    on_s: PositiveFloat
    off_s: Annotated[float, Field(ge=0.0)]


ArrivalsConfig = Annotated[PoissonArrivals | BurstArrivals, Field(discriminator="kind")]


# -- scheduler, device, engine -------------------------------------------------------------------


class SchedulerConfig(Config):
    """vLLM V1's scheduling as the simulator follows it."""

    token_budget: PositiveInt
    """Most tokens of one step (max_num_batched_tokens)."""
    fast_forward: bool
    """Leap over steps in which nothing but decoding happens; results are identical."""
    separate: bool
    """Prefill and decode never share a step: while anything can be prefilled, the step is that
    prefill and decodes stand still (experiment 10a, Appendix C.1)."""
    stall_steps: PositiveInt
    """Steps or preemptions without progress after which the run fails with a report."""


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


class _Engine(Config):
    exact: bool
    """Continue with the bits of an isolated recomputation, whatever else runs: canonical chunks,
    and on real vLLM every request alone in the model (docs/continuation.md)."""


class SimEngine(_Engine):
    """The discrete-event engine: the same memory code under a step-time model."""

    name: Literal["sim"]


class LimitsConfig(Config):
    """When a real run is given up. They change no number of a run that ends in time."""

    boot_s: PositiveFloat
    """From the start of the server to its readiness."""
    stall_s: PositiveFloat
    """Longest time without a token while a request is outstanding."""
    shutdown_s: PositiveFloat
    """From the request to end until the process group is killed."""
    port_tries: PositiveInt
    """Free ports that are tried, one after the other, where another program was faster."""


class VllmEngine(_Engine):
    """Real vLLM with the plugin; `auto` takes it where a GPU and vllm are present."""

    name: Literal["vllm", "auto"]
    transport: Literal["http", "inproc"]
    """http: a server process and streamed completions; inproc: an engine process fed directly."""
    num_warmup_requests: Annotated[int, Field(ge=0)]
    """Sent one after the other before the run; the prefix cache is emptied behind them."""
    max_retries: Annotated[int, Field(ge=0)]
    """Connections that one request may lose before the run fails."""
    limits: LimitsConfig


EngineConfig = Annotated[SimEngine | VllmEngine, Field(discriminator="name")]


# -- campaign ------------------------------------------------------------------------------------


AXES = (
    "budget",
    "rate_per_s",
    "cap",
    "sharing",
    "headroom",
    "retention",
    "pinning",
    "isolation",
    "trace",
    "organization",
    "seeds",
)
"""What a block may vary."""


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


# -- one run -------------------------------------------------------------------------------------


class RunConfig(Config):
    """Everything that decides the outcome of one run."""

    model: ModelConfig
    organization: OrganizationConfig
    budget: BudgetConfig
    admission: AdmissionConfig
    retention: RetentionConfig
    pinning: PinningConfig
    isolation: IsolationConfig
    trace: bool
    """Record state depths of every request (never changes what happens)."""
    workload: WorkloadConfig
    arrivals: ArrivalsConfig | None
    """None replays the arrival times of a trace."""
    scheduler: SchedulerConfig
    device: DeviceConfig
    engine: Literal["sim", "vllm"]
    exact: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """Canonical chunks; left out of the names of cells that have none."""
    seed: Seed


class ContinuationRun(Config):
    """Everything that decides the outcome of one continuation check."""

    model: ModelConfig
    organization: OrganizationConfig
    exact: bool
    depth_tokens: PositiveInt
    treatment: Name
    token_budget: PositiveInt
    cap: PositiveInt
    hardware: HardwareConfig
    seed: Seed
    """Draws weights and requests."""


class VllmRunConfig(RunConfig):
    """A run on real vLLM: also what serves it. Its device has no step-time model: it measures."""

    engine: Literal["vllm"]
    hardware: HardwareConfig
    checkpoint: str | None
    """Null: seeded weights."""
    transport: Literal["http", "inproc"]
    num_warmup_requests: Annotated[int, Field(ge=0)]
    max_retries: Annotated[int, Field(ge=0)]


def parse_run(data: Mapping[str, Any]) -> RunConfig:
    """A cell's configuration, by its engine.

    Raises:
        ConfigError: names the field and the value.
    """
    return (VllmRunConfig if data["engine"] == "vllm" else RunConfig).parse(data)
