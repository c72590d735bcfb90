"""Steps of every shape on vLLM's own scheduler: odd budgets, edges of blocks, priorities, resets,
cancellations. A worker that computes exactly shows any state or page that is not the right one."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from toy_core import ToyCore, toy_settings
from toy_memory import GRID, NATIVE_ORDER, ORGANIZATIONS

# A block has 8 tokens and so has the checkpoint grid; in D0 a block has 2, and in S3 one of a tail.
TIGHT_POOLS: dict[str, dict[str, int]] = {
    "s0": {"num_pages": 24},
    "s1": {"num_pages": 40},
    "s2": {"num_pages": 36},
    "s3": {"num_pages": 34},
    "d0": {"num_pages": 90, "num_states": 7},
}
ROOMY_POOLS: dict[str, dict[str, int]] = {
    name: {"num_pages": 400, "num_states": 100} for name in ORGANIZATIONS
}
KEEPING = {"retention": 2, "pinning": 1, "headroom": 0.02}
PLACES = ["waiting", "preempted", "prefill", "decode"]


@pytest.fixture(params=ORGANIZATIONS)
def organization(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=[False, True], ids=["one at a time", "two in flight"])
def asynchronous(request: pytest.FixtureRequest) -> bool:
    flag: bool = request.param
    return flag


def tokens(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(9000) for _ in range(count)]


def roomy_core(organization: str, folder: Path, **choices: Any) -> ToyCore:
    return ToyCore(toy_settings(organization, **ROOMY_POOLS[organization]), folder, **choices)


def place_of(core: ToyCore, request_id: str) -> str:
    """Where a request is; an empty string once it is over."""
    request = core.scheduler.requests.get(request_id)
    if request is None:
        return ""
    status = request.status.name.lower()
    if status != "running":
        return status
    is_prefill = request.num_computed_tokens < request.num_prompt_tokens
    return "prefill" if is_prefill else "decode"


def serve(core: ToyCore, *, num_requests: int, seed: int, priorities: int = 1) -> Counter[str]:
    """Requests over shared prefixes. Some stop early; some are cancelled, between steps or in one.
    Returns where those were."""
    rng = random.Random(seed)
    contexts = [tokens(60, seed=context) for context in range(3)]
    cancelled: Counter[str] = Counter()
    request_ids: list[str] = []
    for i in range(num_requests):
        shared = contexts[rng.randrange(3)][: rng.choice([0, 8, 16, 31, 40, 60])]
        num_output = rng.randrange(1, 24)
        request_ids.append(
            core.add(
                shared + tokens(rng.randrange(1, 20), seed=1000 + i),
                num_output,
                stop_after=rng.choice([None, None, rng.randrange(1, num_output + 1)]),
                priority=rng.randrange(priorities),
            )
        )
        for _ in range(rng.randrange(6)):
            if core.is_busy:
                core.step()
        places = {place_of(core, key): key for key in request_ids}
        if i % 3 == 2 and places.keys() & set(PLACES):
            place = min(places.keys() & set(PLACES), key=lambda name: (cancelled[name], name))
            cancelled[place] += 1
            if core.is_busy and rng.random() < 0.5:
                core.step(places[place])
            else:
                core.abort(places[place])
    core.run()
    return cancelled


ORDERS = {"eviction": "lru", "waiting": "hit_first"}
TIGHTER_POOLS = TIGHT_POOLS | {
    "s1": {"num_pages": 23},
    "s2": {"num_pages": 25},
    "s3": {"num_pages": 22},
    "d0": {"num_pages": 64, "num_states": 7},
}
"""With states in place fewer requests are preempted."""
CASES: list[dict[str, Any]] = [
    {},
    {"policies": KEEPING},
    {"priorities": 3},
    {"policies": KEEPING | ORDERS},
    {"policies": KEEPING | {"placement": "junction"}},
    {"policies": {"states": "in_place", "placement": "junction"}, "pools": TIGHTER_POOLS},
]


@pytest.mark.parametrize(
    "case", CASES, ids=["plain", "keeping", "priority", "orders", "junction", "in place"]
)
def test_whatever_happens_in_a_tight_pool_every_token_is_right(
    case: dict[str, Any], organization: str, asynchronous: bool, tmp_path: Path
) -> None:
    policies, priorities = case.get("policies", {}), case.get("priorities", 1)
    core = ToyCore(
        toy_settings(organization, **case.get("pools", TIGHT_POOLS)[organization], **policies),
        tmp_path,
        token_budget=20,
        asynchronous=asynchronous,
        policy="priority" if priorities > 1 else "fcfs",
    )
    cancelled = serve(core, num_requests=150, seed=5, priorities=priorities)
    finished = [toy for toy in core.requests.values() if toy.delivered == toy.expected]
    assert len(finished) >= 150 - sum(cancelled.values())
    core.assert_drained()
    counters = core.memory.cache.counters
    assert min(counters.preemptions, counters.lost_checkpoints, counters.lost_blocks) > 5
    assert min(cancelled[place] for place in PLACES) > 0
    if policies.keys() >= KEEPING.keys():
        assert min(counters.retained_checkpoints, counters.pinned_checkpoints) > 5
    if organization == "s2" and policies.get("eviction") != "lru":  # lru never takes a used slab
        assert counters.reclaimed_slabs > 5


# -- budgets and lengths ---------------------------------------------------------------------------


@pytest.mark.parametrize("token_budget", [8, 9, 11, 13, 17, 23, 64])
def test_outputs_do_not_depend_on_the_token_budget(
    token_budget: int, organization: str, asynchronous: bool, tmp_path: Path
) -> None:
    core = ToyCore(
        toy_settings(organization, **ROOMY_POOLS[organization], cap=6),
        tmp_path,
        token_budget=token_budget,
        asynchronous=asynchronous,
    )
    for i in range(12):
        core.add(tokens(3 + 5 * i, seed=i % 4), 9)
        core.step()
    core.run()
    assert all(toy.delivered == toy.expected for toy in core.requests.values())
    core.assert_drained()


LENGTHS = [1, 2, GRID - 1, GRID, GRID + 1, 2 * GRID - 1, 2 * GRID, 2 * GRID + 1, 3 * GRID]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_repeated_prompt_reuses_all_whole_intervals_below_its_last_token(
    length: int, organization: str, asynchronous: bool, tmp_path: Path
) -> None:
    # A budget of one interval: a longer chunk would leave a state at its end alone.
    core = roomy_core(organization, tmp_path, token_budget=GRID, asynchronous=asynchronous)
    prompt = tokens(length, seed=1)
    adopted = []
    for _ in range(2):
        request_id = core.add(prompt, 3)
        core.step()
        request = core.requests[request_id].request
        (count,) = core.last_scheduled.values()
        adopted.append(request.num_computed_tokens - count)
        core.run()
    assert adopted == [0, (length - 1) // GRID * GRID]
    assert all(toy.delivered == toy.expected for toy in core.requests.values())


def test_a_prefill_of_exactly_one_token_goes_on_from_its_hit_beside_decodes(
    organization: str, asynchronous: bool, tmp_path: Path
) -> None:
    order = NATIVE_ORDER.model_copy(update={"idle_slab": "tail"})  # S2 keeps what it caches
    core = ToyCore(
        toy_settings(organization, **ROOMY_POOLS[organization], release_order=order),
        tmp_path,
        asynchronous=asynchronous,
    )
    prompt = tokens(2 * GRID + 1, seed=1)
    core.add(prompt, 2)
    core.run()
    decoding = core.add(tokens(5, seed=2), 12)
    core.step()
    core.step()
    hit, miss = core.add(prompt, 6), core.add(tokens(1, seed=3), 6)
    core.step()
    assert core.last_scheduled == {decoding: 1, hit: 1, miss: 1}
    core.run()
    assert all(toy.delivered == toy.expected for toy in core.requests.values())


def test_generation_ends_where_the_model_does(
    organization: str, asynchronous: bool, tmp_path: Path
) -> None:
    core = roomy_core(organization, tmp_path, asynchronous=asynchronous, max_model_len=4 * GRID)
    for room in (1, 2, GRID):
        request_id = core.add(tokens(4 * GRID - room, seed=room), 50)
        core.requests[request_id].num_output = room
    core.run()
    assert all(toy.delivered == toy.expected for toy in core.requests.values())
    core.assert_drained()


def test_a_request_that_reads_no_cache_leaves_one(
    organization: str, asynchronous: bool, tmp_path: Path
) -> None:
    core = roomy_core(organization, tmp_path, asynchronous=asynchronous)
    prompt = tokens(2 * GRID + 3, seed=1)
    scheduled = []
    for skip_reading in (True, True, False):
        core.add(prompt, 2, skip_reading=skip_reading)
        before = core.num_scheduled_tokens
        core.run()
        scheduled.append(core.num_scheduled_tokens - before)
    # The prompt, and one token to get the second output: 20 twice, then 16 fewer.
    assert scheduled == [20, 20, 4]


# -- priorities ------------------------------------------------------------------------------------


def test_the_lowest_priority_is_preempted_and_comes_back(
    organization: str, asynchronous: bool, tmp_path: Path
) -> None:
    # Room for one of them to the end: 24 + 16 tokens, and a bit.
    pools = {"s0": (9, 0), "s1": (16, 0), "s2": (14, 0), "s3": (14, 0), "d0": (30, 4)}
    num_pages, num_states = pools[organization]
    core = ToyCore(
        toy_settings(organization, num_pages, num_states=num_states),
        tmp_path,
        asynchronous=asynchronous,
        policy="priority",
    )
    low = core.add(tokens(17, seed=1), 20, priority=5)
    core.step()
    high = core.add(tokens(17, seed=2), 20, priority=1)
    core.run()
    assert core.requests[low].request.num_preemptions > 0
    assert core.requests[high].request.num_preemptions == 0
    assert all(toy.delivered == toy.expected for toy in core.requests.values())
    core.assert_drained()


# -- resets ----------------------------------------------------------------------------------------


def test_a_reset_while_requests_run_is_refused_or_recomputes_them(
    organization: str, asynchronous: bool, tmp_path: Path
) -> None:
    core = roomy_core(organization, tmp_path, asynchronous=asynchronous)
    for i in range(5):
        core.add(tokens(10 + 7 * i, seed=i), 12)
    for _ in range(6):
        core.step()
    assert not core.scheduler.reset_prefix_cache()
    assert core.memory.cache.counters.preemptions == 0
    assert core.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert core.memory.cache.counters.preemptions == 5
    assert not len(core.memory.cache.block_index) and not len(core.memory.cache.checkpoint_index)
    core.run()
    assert all(toy.delivered == toy.expected for toy in core.requests.values())
    core.assert_drained()


# -- cancellations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("num_steps", [0, 1, 2, 5, 9])
def test_a_storm_of_cancellations_leaves_nothing(
    num_steps: int, organization: str, asynchronous: bool, tmp_path: Path
) -> None:
    core = ToyCore(
        toy_settings(organization, **TIGHT_POOLS[organization], pinning=1),
        tmp_path,
        token_budget=24,
        asynchronous=asynchronous,
    )
    for storm in range(5):
        request_ids = [core.add(tokens(5 + 3 * i, seed=i), 20) for i in range(12)]
        for _ in range(num_steps + storm):
            core.step()
        if storm % 2:
            core.step(*request_ids)
        else:
            core.abort(*request_ids)
        core.run()
        assert not core.memory.cache.sequences and not core.memory.pinning.num_pins
    core.assert_drained()


def test_two_hundred_requests_in_turn_leave_the_pools_as_they_were(
    organization: str, asynchronous: bool, tmp_path: Path
) -> None:
    core = ToyCore(
        toy_settings(organization, **TIGHT_POOLS[organization], **KEEPING),
        tmp_path,
        asynchronous=asynchronous,
    )
    for i in range(200):
        core.add(tokens(1 + i % 30, seed=i % 7), 1 + i % 9)
        core.run()
        assert not core.memory.cache.sequences
        assert all(pool.num_free == pool.spec.num_usable for pool in core.memory.cache.pools)
    core.assert_drained()


# -- progress --------------------------------------------------------------------------------------


@pytest.mark.parametrize("token_budget", [8, 9, 13, 20])
def test_nothing_waits_for_ever_in_a_pool_for_one_request(
    token_budget: int, organization: str, asynchronous: bool, tmp_path: Path
) -> None:
    """vllm #45387, #45406, #40707: `Running 0, Waiting N` until the server is restarted."""
    longest = 5 * GRID
    memory = toy_settings(organization, **ROOMY_POOLS[organization]).memory()
    need = memory.max_need(longest - 1)
    core = ToyCore(
        toy_settings(organization, need[0], num_states=need[-1], **KEEPING, cap=token_budget),
        tmp_path,
        token_budget=token_budget,
        asynchronous=asynchronous,
    )
    rng = random.Random(token_budget)
    for i in range(40):
        length = rng.randrange(1, longest)
        core.add(tokens(length, seed=i % 9), rng.randrange(1, longest - length + 1))
        if i % 3 == 0:
            core.step()
    core.run()
    assert all(toy.delivered == toy.expected for toy in core.requests.values())
    core.assert_drained()


def test_requests_that_take_turns_are_not_preempted_without_end(
    organization: str, asynchronous: bool, tmp_path: Path
) -> None:
    """vllm #25538: two requests in a pool for one and a half preempt each other again and again."""
    need = toy_settings(organization, **ROOMY_POOLS[organization]).memory().max_need(40)
    core = ToyCore(
        toy_settings(organization, need[0] * 3 // 2, num_states=need[-1] * 3 // 2),
        tmp_path,
        asynchronous=asynchronous,
    )
    for seed in (1, 2):
        core.add(tokens(20, seed=seed), 21)
    core.run()
    # They generate 42 tokens. S3 admits to the tail block, so that less is left to grow into.
    most = 8 if organization == "s3" else 4
    assert 1 <= core.memory.cache.counters.preemptions <= most
    assert all(toy.delivered == toy.expected for toy in core.requests.values())
