"""vLLM's scheduler over the memory core and the simulator schedule the same tokens, step by step.

One difference is intended: the simulator sets a token aside for every decode before it cuts chunks,
vLLM goes by position. It shows only where a prefill leads the running order and takes the whole
token budget, which none of these runs has.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.core.sched.request_queue import FCFSRequestQueue, PriorityRequestQueue
from vllm_scheduler import (
    MAX_MODEL_TOKENS,
    build_scheduler,
    drive,
    settings,
    vllm_config,
    vllm_request,
)

from hsexp.config.base import ConfigError, parse_union
from hsexp.config.catalog import read_option
from hsexp.config.device import DeviceConfig
from hsexp.engine.settings import EngineSettings
from hsexp.sim.config import SchedulerConfig
from hsexp.sim.engine import simulate
from hsexp.sim.steptime import NS_PER_S, StepClock
from hsexp.workload import Request, Segment, Workload, WorkloadConfig, build, generate, isolate
from hsexp.workload.arrivals import PoissonArrivals
from hsexp.workload.synthetic import SyntheticWorkload

CASES: list[tuple[str, str, dict[str, Any], bool]] = [
    ("s0", "b63", {}, False),
    ("s0", "b83", {"headroom": 0.1}, False),
    ("s1", "b108", {"headroom": 0.19}, False),
    ("s2", "b63", {}, False),
    ("s2", "b83", {"retention": "k2", "pinning": "k1"}, False),
    ("s2", "b83", {"headroom": 0.19}, True),
    ("d0", "b63", {}, False),
    ("d0", "b83", {"pinning": "k1", "headroom": 0.1}, False),
    ("s2", "b63", {"exact": True}, False),
    ("d0", "b63", {"exact": True}, False),
    ("d0_m512", "b63", {"exact": True, "pinning": "k1"}, True),
    ("s1", "b63", {"eviction": "lru"}, False),
    ("s2", "b63", {"eviction": "lru", "retention": "k2"}, False),
    ("s2", "b63", {"eviction": "restart_point"}, False),
    ("d0", "b63", {"eviction": "value_per_byte", "pinning": "k1"}, False),
    ("s1", "b63", {"eviction": "replay_length", "placement": "junction"}, False),
    ("s2", "b63", {"eviction": "restart_point", "retention": "priced"}, False),
    ("d0", "b63", {"eviction": "replay_length", "retention": "priced"}, False),
    ("s0", "b63", {"waiting": "hit_first"}, False),
    ("s2", "b63", {"waiting": "hit_first", "pinning": "k1"}, False),
    ("d0", "b63", {"waiting": "hit_first", "eviction": "lru", "headroom": 0.1}, False),
    ("s2", "b63", {"waiting": "hit_first", "exact": True}, False),
    ("s0", "b63", {"placement": "junction"}, False),
    ("s1", "b83", {"placement": "junction", "eviction": "lru", "headroom": 0.1}, False),
    ("s2", "b63", {"placement": "junction", "retention": "k2", "pinning": "k1"}, False),
    ("d0", "b63", {"placement": "junction", "waiting": "hit_first"}, False),
    ("s2", "b63", {"placement": "junction", "exact": True}, False),
    ("s2", "b63", {"placement": "every"}, False),
    ("d0", "b63", {"placement": "dense"}, False),
    ("s2", "b63", {"reservation": "promised", "placement": "junction"}, False),
    ("d0", "b83", {"reservation": "promised", "headroom": 0.1, "pinning": "k1"}, False),
    ("s2", "b63", {"states": "in_place", "placement": "junction"}, False),
    ("s0", "b63", {"states": "in_place", "reservation": "promised", "placement": "dense"}, False),
    ("s3", "b63", {}, False),
    ("s3", "b83", {"headroom": 0.19, "retention": "k2", "pinning": "k1"}, False),
    ("s3", "b63", {"exact": True, "pinning": "k1"}, False),
    ("s3", "b63", {"placement": "junction", "eviction": "lru", "waiting": "hit_first"}, False),
    ("s3", "b63", {"reservation": "promised", "placement": "junction"}, False),
    (
        "s3",
        "b63",
        {
            "eviction": "restart_point",
            "retention": "priced",
            "reservation": "promised",
            "states": "in_place",
            "waiting": "hit_first",
            "placement": "junction",
        },
        False,
    ),
]


@pytest.mark.parametrize(("organization", "budget", "policies", "isolated"), CASES)
def test_vllm_and_the_simulator_schedule_the_same_tokens_in_every_step(
    organization: str, budget: str, policies: dict[str, Any], isolated: bool, tmp_path: Path
) -> None:
    chosen = settings(organization, budget, **policies)
    law = read_option("workload", "extension") | {"sharing": 1.0}
    workload = generate(
        SyntheticWorkload.parse(law), PoissonArrivals(kind="poisson", rate_per_s=3.0), seed=7
    )
    check_one_schedule(chosen, isolate(workload) if isolated else workload, tmp_path)


@pytest.mark.parametrize(
    ("name", "organization", "policies"),
    [
        ("conversations", "s0", {}),
        ("conversations", "s2", {"placement": "junction", "waiting": "hit_first"}),
        ("conversations", "d0", {"retention": "k2"}),
        ("conversations", "s0", {"leaves": "final"}),
        ("conversations", "s1", {"leaves": "final", "states": "in_place", "eviction": "lru"}),
        ("conversations", "s2", {"leaves": "final", "eviction": "restart_point"}),
        ("conversations", "d0", {"leaves": "final", "retention": "k2", "waiting": "hit_first"}),
        (
            "conversations",
            "s2",
            {
                "leaves": "final",
                "eviction": "restart_point",
                "retention": "priced",
                "reservation": "promised",
                "states": "in_place",
                "waiting": "hit_first",
                "placement": "junction",
            },
        ),
        ("nested", "s1", {"placement": "junction"}),
        ("nested", "d0", {"placement": "junction", "eviction": "lru"}),
        ("drifting", "s2", {"waiting": "hit_first"}),
    ],
)
def test_so_they_do_on_conversations_trees_and_drifts(
    name: str, organization: str, policies: dict[str, Any], tmp_path: Path
) -> None:
    law = read_option("workload", name)
    spec = parse_union(
        WorkloadConfig, law | ({"sharing": 1.0} if "sharing" in law else {}), path=""
    )
    workload = build(spec, PoissonArrivals(kind="poisson", rate_per_s=3.0), seed=7)
    check_one_schedule(settings(organization, "b63", **policies), workload, tmp_path)


@pytest.mark.parametrize("states", ["per_boundary", "in_place"])
@pytest.mark.parametrize("organization", ["s0", "s1", "s2", "d0"])
def test_both_let_the_next_turn_go_on_from_the_last_state_of_the_turn_before(
    organization: str, states: str, tmp_path: Path
) -> None:
    first = (Segment(end_tokens=700, content_id=0), Segment(end_tokens=800, content_id=1))
    second = (*first, Segment(end_tokens=1400, content_id=2))
    turns = [
        Request(
            request_id=i,
            arrival_s=10.0 * i,
            prompt_tokens=prompt,
            output_tokens=100,
            segments=segments,
        )
        for i, (prompt, segments) in enumerate([(700, first), (1400, second)])
    ]
    chosen = settings(organization, "b63", leaves="final", states=states)
    adopted = check_one_schedule(chosen, Workload(name="two turns", requests=turns), tmp_path)
    assert adopted == {0: 0, 1: 799}


def check_one_schedule(
    chosen: EngineSettings, workload: Workload, tmp_path: Path
) -> dict[int, int]:
    """Both run the workload, step by step alike. Returns the tokens that each request adopted."""
    device = DeviceConfig.parse(read_option("device", "a100_40gb"))

    scheduler = build_scheduler(chosen, vllm_config(chosen, tmp_path))
    driven = drive(scheduler, workload, StepClock.of(device.known_step_time), exact=chosen.exact)
    record = simulate(
        workload,
        chosen.memory(),
        scheduler=SchedulerConfig.parse(read_option("scheduler", "v1")),
        device=device,
        cap=chosen.admission.cap,
        max_model_tokens=MAX_MODEL_TOKENS,
        exact=chosen.exact,
        waiting=chosen.waiting,
    )

    expected = [
        (row.decode_tokens, row.prefill_tokens, row.running, row.waiting)
        for row in record.steps.itertuples()
        for _ in range(int(row.num_steps))
    ]
    assert driven.steps == expected
    table = record.requests.set_index("request_id")
    for column, times in [
        ("first_scheduled_s", driven.first_scheduled_ns),
        ("first_token_s", driven.first_token_ns),
        ("finish_s", driven.finish_ns),
    ]:
        assert table[column].to_dict() == {key: ns / NS_PER_S for key, ns in times.items()}
    assert table["adopted_tokens"].to_dict() == driven.adopted_tokens
    assert table["num_preemptions"].to_dict() == driven.num_preemptions

    memory = scheduler.kv_cache_manager.memory
    counters = asdict(memory.cache.counters)
    assert counters == {name: record.counters[name] for name in counters}
    memory.check_integrity()
    assert not memory.cache.sequences
    assert all(pool.num_free == pool.spec.num_usable for pool in memory.cache.pools)
    return driven.adopted_tokens


def test_an_order_of_ours_changes_who_is_admitted_next(tmp_path: Path) -> None:
    """The equal schedules above would be worth little if the order were not used at all."""
    law = read_option("workload", "extension") | {"sharing": 1.0, "num_requests": 120}
    workload = generate(
        SyntheticWorkload.parse(law), PoissonArrivals(kind="poisson", rate_per_s=4.5), seed=7
    )
    clock = StepClock.of(DeviceConfig.parse(read_option("device", "a100_40gb")).known_step_time)
    adopted = {}
    for waiting in ("first_come", "hit_first"):
        chosen = settings("s2", "b63", waiting=waiting)
        scheduler = build_scheduler(chosen, vllm_config(chosen, tmp_path))
        adopted[waiting] = sum(drive(scheduler, workload, clock).adopted_tokens.values())
    assert adopted["hit_first"] > 1.2 * adopted["first_come"]


def test_the_default_keeps_the_queues_of_vllm(tmp_path: Path) -> None:
    for policy, queue in [("fcfs", FCFSRequestQueue), ("priority", PriorityRequestQueue)]:
        chosen = settings("s2", "b63")
        config = vllm_config(chosen, tmp_path)
        config.scheduler_config.policy = policy
        scheduler = build_scheduler(chosen, config)
        assert type(scheduler.waiting) is type(scheduler.skipped_waiting) is queue


def test_an_order_of_ours_beside_priorities_does_not_start(tmp_path: Path) -> None:
    chosen = settings("s2", "b63", waiting="hit_first")
    config = vllm_config(chosen, tmp_path)
    config.scheduler_config.policy = "priority"
    with pytest.raises(
        ConfigError, match="scheduling_policy priority contradicts waiting hit_first"
    ):
        build_scheduler(chosen, config)


def test_a_request_that_can_never_fit_is_refused_when_it_is_added(tmp_path: Path) -> None:
    chosen = settings("d0", "b63")
    scheduler = build_scheduler(chosen, vllm_config(chosen, tmp_path))
    # 28 composites are plenty; 3,255 attention units hold 52,080 tokens, and the model 16,384.
    chosen_small = chosen.model_copy(update={"budget_bytes": 8_000_000})
    small = build_scheduler(chosen_small, vllm_config(chosen_small, tmp_path))
    request = Request(request_id=1, arrival_s=0.0, prompt_tokens=9_000, output_tokens=10)
    scheduler.add_request(vllm_request(request, hash_block_size=16))
    with pytest.raises(ValueError, match="request 1 can never be served: needs 564 pages of pool"):
        small.add_request(vllm_request(request, hash_block_size=16))


def test_a_step_that_takes_no_whole_chunk_does_not_start(tmp_path: Path) -> None:
    chosen = settings("s2", "b63")
    config = vllm_config(chosen, tmp_path, token_budget=511)
    with pytest.raises(ConfigError, match="max_num_batched_tokens 511 must hold a chunk of one"):
        build_scheduler(chosen, config)


def test_a_scheduler_without_settings_does_not_start(tmp_path: Path) -> None:
    chosen = settings("s2", "b63")
    config = vllm_config(chosen, tmp_path)
    config.additional_config = {}
    with pytest.raises(ConfigError, match=r"additional_config\.hsexp is required"):
        build_scheduler(chosen, config)
