"""Engines of countable size, and the paper's, for tests of the simulator.

Toy sizes in bytes: one KV token is 1, a recurrent state 12, a convolution state 1.

    S0  page 13: a block of 4 tokens, or a whole state        grid 4 tokens
    S1  page 4:  a block of 4 tokens; a state is 3 + 1 pages  grid 4 tokens
    S2  page 4:  a state is 3 pages and one of a slab's 4 slots
    S3  page 4:  as S2; a page holds two tail blocks of 2 tokens as well
    D0  unit 2:  a block of 2 tokens; a state has a pool of its own, grid 14 tokens
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from hsexp.config.base import parse_union
from hsexp.config.catalog import read_option
from hsexp.config.device import DeviceConfig, StepTimeModel
from hsexp.measure.records import RunRecord
from hsexp.memory import HybridMemory, MemoryConfig, Observer, build_memory
from hsexp.memory.geometry import ModelConfig, StateGeometry
from hsexp.memory.organizations import D0, S0, S1, S2, S3, Organization, OrganizationConfig
from hsexp.memory.organizations.d0 import D0Config
from hsexp.memory.policies.admission import AdmissionConfig
from hsexp.memory.policies.eviction import EvictionConfig
from hsexp.memory.policies.leaves import LeavesConfig
from hsexp.memory.policies.pinning import PinningConfig
from hsexp.memory.policies.placement import PlacementConfig
from hsexp.memory.policies.pricing import PricedRetention
from hsexp.memory.policies.reservation import ReservationConfig
from hsexp.memory.policies.retention import DemandedRetention, RetentionConfig
from hsexp.memory.policies.states import StatesConfig
from hsexp.memory.policies.waiting import FIRST_COME, WaitingConfig
from hsexp.memory.policies.waiting.hit_first import HitFirst
from hsexp.sim.config import SchedulerConfig
from hsexp.sim.engine import simulate
from hsexp.trace import TraceRecorder
from hsexp.workload import Request, Segment, Workload, generate, isolate
from hsexp.workload.arrivals import PoissonArrivals
from hsexp.workload.synthetic import SyntheticWorkload

ORGANIZATIONS = ("s0", "s1", "s2", "s3", "d0")

TOY = StateGeometry(kv_token_bytes=1, ssm_bytes=12, conv_bytes=1, composites=1)

SLOW_STEPS = DeviceConfig(
    name="toy",
    description="10 ms a step, 1 ms a decode token, 0.1 ms a prefill token: sums fit in the head",
    step_time=StepTimeModel(name="toy", base_s=0.010, decode_token_s=0.001, prefill_token_s=0.0001),
    source="made up",
)

FALCON = ModelConfig.parse(read_option("model", "falcon_h1_7b"))


def toy_memory(
    name: str,
    num_pages: int,
    *,
    num_states: int = 20,
    grid: int = 4,
    multiple: int = 2,
    composites: int = 1,
    headroom: float = 0.0,
    reserve: float = 0.0,
    admission_states: int | None = None,
    retention: int | None = None,
    price: float | None = None,
    pinning: int | None = None,
    protected: float = 1.0,
    eviction: str = "paper",
    placement: str = "chunk_ends",
    reservation: str = "full_prompt",
    states: str = "per_boundary",
    leaves: str = "off",
    observer: Observer | None = None,
) -> HybridMemory:
    """`num_pages` usable pages; D0's are attention pages, and `num_states` its recurrent units.

    A step costs as much as `price` prefill tokens with priced retention; None keeps `retention`.
    A checkpoint consists of `composites` states. D0's grid is that `multiple` of tokens which holds
    one; the others have the `grid`.
    """
    kept: RetentionConfig = DemandedRetention(name="toy", requesters=retention)
    if price is not None:
        kept = PricedRetention(
            kind="priced", name="toy", step_s=price, prefill_token_s=1.0, output_tokens=20
        )
    geometry = replace(TOY, composites=composites)
    fields: dict[str, Any] = read_option("organization", name) | {
        "block_size": 2 if name == "d0" else 4,
        "reserve_fraction": reserve,
    }
    if admission_states is not None:
        fields["num_admission_states"] = admission_states
    organization: Organization
    if name == "d0":
        # Half a unit of slack in each pool, so that the split is floored to what was asked for.
        attention, recurrent = 2 * (num_pages + 1) + 1, 13 * (num_states + 1) + 6
        num_bytes = attention + recurrent
        fields["checkpoint_multiple"] = multiple
        config = D0Config.parse(fields)
        organization = D0(config, geometry, attention_fraction=attention / num_bytes)
    else:
        fields["checkpoint_grid"] = grid
        fields |= {"slot_bytes": composites} if name in ("s2", "s3") else {}
        fields |= {"tail_block_size": 2} if name == "s3" else {}
        config = parse_union(OrganizationConfig, fields, path="organization")
        organization = {"s0": S0, "s1": S1, "s2": S2, "s3": S3}[name](config, geometry)
        num_bytes = (num_pages + 1) * organization.page_bytes
    settings = MemoryConfig(
        model=FALCON,  # the layout has a geometry of its own
        organization=config,
        admission=AdmissionConfig(headroom=headroom, cap=1),
        retention=kept,
        pinning=PinningConfig(name="toy", requesters=pinning, protected_fraction=protected),
        eviction=eviction_of(eviction),
        placement=placement_of(placement),
        reservation=reservation_of(reservation),
        states=states_of(states),
        leaves=leaves_of(leaves),
    )
    memory = build_memory(settings, num_bytes, layout=organization, observer=observer)
    assert memory.cache.attention_pool.spec.num_usable == num_pages
    return memory


def falcon_settings(
    name: str,
    *,
    headroom: float = 0.0,
    retention: str = "off",
    pinning: str = "off",
    eviction: str = "paper",
    placement: str = "chunk_ends",
    reservation: str = "full_prompt",
    states: str = "per_boundary",
    leaves: str = "off",
) -> MemoryConfig:
    """The paper's memory without its budget, as the configuration has it."""
    return MemoryConfig(
        model=FALCON,
        organization=parse_union(OrganizationConfig, read_option("organization", name), path=name),
        admission=AdmissionConfig(headroom=headroom, cap=1),
        retention=parse_union(
            RetentionConfig, read_option("retention", retention), path="retention"
        ),
        pinning=PinningConfig.parse(read_option("pinning", pinning)),
        eviction=eviction_of(eviction),
        placement=placement_of(placement),
        reservation=reservation_of(reservation),
        states=states_of(states),
        leaves=leaves_of(leaves),
    )


def falcon_memory(
    name: str,
    budget: str,
    *,
    headroom: float = 0.0,
    retention: str = "off",
    pinning: str = "off",
    eviction: str = "paper",
    placement: str = "chunk_ends",
    reservation: str = "full_prompt",
    states: str = "per_boundary",
    leaves: str = "off",
    observer: Observer | None = None,
) -> HybridMemory:
    """The paper's memory."""
    settings = falcon_settings(
        name,
        headroom=headroom,
        retention=retention,
        pinning=pinning,
        eviction=eviction,
        placement=placement,
        reservation=reservation,
        states=states,
        leaves=leaves,
    )
    num_bytes = read_option("budget", budget)["bytes"]
    return build_memory(settings, num_bytes, observer=observer)


def eviction_of(name: str) -> EvictionConfig:
    option: EvictionConfig = parse_union(
        EvictionConfig, read_option("eviction", name), path="eviction"
    )
    return option


def placement_of(name: str) -> PlacementConfig:
    option: PlacementConfig = parse_union(
        PlacementConfig, read_option("placement", name), path="placement"
    )
    return option


def reservation_of(name: str) -> ReservationConfig:
    option: ReservationConfig = parse_union(
        ReservationConfig, read_option("reservation", name), path="reservation"
    )
    return option


def states_of(name: str) -> StatesConfig:
    option: StatesConfig = parse_union(StatesConfig, read_option("states", name), path="states")
    return option


def leaves_of(name: str) -> LeavesConfig:
    option: LeavesConfig = parse_union(LeavesConfig, read_option("leaves", name), path="leaves")
    return option


def hit_first(window_s: float) -> HitFirst:
    return HitFirst.parse(read_option("waiting", "hit_first") | {"window_s": window_s})


def falcon_workload(
    seed: int, *, rate: float = 3.0, sharing: float = 1.0, isolated: bool = False, **changes: Any
) -> Workload:
    """300 requests of the twelve-seed campaigns."""
    fields = read_option("workload", "extension") | {"sharing": sharing} | changes
    arrivals = PoissonArrivals(kind="poisson", rate_per_s=rate)
    workload = generate(SyntheticWorkload.parse(fields), arrivals, seed)
    return isolate(workload) if isolated else workload


def request(
    prompt: int,
    output: int,
    *,
    at: float = 0.0,
    shared: int = 0,
    content: int = 0,
    salt: str | None = None,
) -> Mapping[str, Any]:
    """A request by its lengths; the first `shared` tokens are those of `content`."""
    segments = (Segment(end_tokens=shared, content_id=content),) if shared else ()
    return {
        "prompt_tokens": prompt,
        "output_tokens": output,
        "arrival_s": at,
        "segments": segments,
        "cache_salt": salt,
    }


def talk(turns: Iterable[tuple[int, int, float]], content: int) -> list[Mapping[str, Any]]:
    """A conversation: message, answer and arrival of each turn. The next prompt holds them all."""
    segments: list[Segment] = []
    requests = []
    for number, (message, answer, at) in enumerate(turns):
        prompt = message + (segments[-1].end_tokens if segments else 0)
        for speaker, end in enumerate((prompt, prompt + answer)):
            segments.append(
                Segment(
                    end_tokens=end,
                    content_id=1000 * content + 2 * number + speaker,
                    generated=speaker == 1,
                )
            )
        requests.append(request(prompt, answer, at=at) | {"segments": tuple(segments)})
    return requests


def workload_of(requests: Iterable[Mapping[str, Any]]) -> Workload:
    return Workload(
        name="toy",
        requests=tuple(Request(request_id=i, **fields) for i, fields in enumerate(requests)),
    )


def scheduler_config(**changes: Any) -> SchedulerConfig:
    return SchedulerConfig.parse(read_option("scheduler", "v1") | changes)


def play(
    requests: Iterable[Mapping[str, Any]] | Workload,
    memory: HybridMemory,
    *,
    cap: int = 8,
    token_budget: int = 16,
    fast_forward: bool = True,
    separate: bool = False,
    stall_steps: int = 50,
    max_model_tokens: int = 100_000,
    exact: bool = False,
    waiting: WaitingConfig = FIRST_COME,
    device: DeviceConfig = SLOW_STEPS,
    trace: TraceRecorder | None = None,
) -> RunRecord:
    """Run to the end."""
    return simulate(
        requests if isinstance(requests, Workload) else workload_of(requests),
        memory,
        scheduler=scheduler_config(
            token_budget=token_budget,
            fast_forward=fast_forward,
            separate=separate,
            stall_steps=stall_steps,
        ),
        device=device,
        cap=cap,
        max_model_tokens=max_model_tokens,
        exact=exact,
        waiting=waiting,
        trace=trace,
    )


def play_falcon(
    workload: Workload,
    memory: HybridMemory,
    *,
    cap: int = 63,
    fast_forward: bool = True,
    separate: bool = False,
    waiting: WaitingConfig = FIRST_COME,
    paged: bool = False,
    trace: TraceRecorder | None = None,
) -> RunRecord:
    """Run to the end on the paper's device."""
    return simulate(
        workload,
        memory,
        scheduler=scheduler_config(fast_forward=fast_forward, separate=separate),
        device=DeviceConfig.parse(read_option("device", "a100_40gb")),
        cap=cap,
        max_model_tokens=FALCON.max_model_tokens,
        waiting=waiting,
        paged=paged,
        trace=trace,
    )
