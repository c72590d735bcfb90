"""What the facade checks of the scheduler that asks it."""

from pathlib import Path
from typing import Any

import pytest
from toy_core import toy_settings
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.metrics.stats import PrefixCacheStats
from vllm.v1.request import Request
from vllm_scheduler import build_scheduler, vllm_config

from hsexp.engine.manager import NOTHING_NEW, HybridCacheManager
from hsexp.memory import MemoryFault


@pytest.fixture
def manager(tmp_path: Path) -> HybridCacheManager:
    """S2 with 30 pages of 8 tokens; a state is 3 pages and a slot. A preempted request pins."""
    chosen = toy_settings("s2", 30, pinning=1)
    built: HybridCacheManager = build_scheduler(
        chosen, vllm_config(chosen, tmp_path)
    ).kv_cache_manager
    built.new_step_starts()
    return built


def request(request_id: str, num_tokens: int, **changes: Any) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=list(range(num_tokens)),
        sampling_params=SamplingParams(max_tokens=10, **changes),
        pooling_params=None,
        block_hasher=get_request_block_hasher(8, sha256),
    )


def admit(manager: HybridCacheManager, admitted: Request, num_new_tokens: int) -> Any:
    _, hit_tokens, _ = manager.get_computed_blocks(admitted)
    return manager.allocate_slots(admitted, num_new_tokens, hit_tokens, has_scheduled_reqs=False)


def test_an_admission_without_a_lookup_is_refused(manager: HybridCacheManager) -> None:
    with pytest.raises(MemoryFault, match="request a is admitted without a lookup"):
        manager.allocate_slots(request("a", 20), 20)
    manager.get_computed_blocks(request("b", 20))
    with pytest.raises(MemoryFault, match="request a is admitted without a lookup"):
        manager.allocate_slots(request("a", 20), 20)


def test_a_hit_that_may_be_lost_since_its_lookup_is_not_adopted(
    manager: HybridCacheManager,
) -> None:
    first = request("first", 20)
    assert admit(manager, first, 16) is not None
    first.num_computed_tokens = 16
    manager.free(first)  # preempted; 16 tokens stay cached
    manager.new_step_starts()
    second = request("second", 20)
    assert manager.get_computed_blocks(second)[1] == 16
    manager.memory.cache.reset()
    with pytest.raises(MemoryFault, match="second was looked up before entries were lost"):
        manager.allocate_slots(second, 4, 16)
    assert admit(manager, second, 20) is not None  # a new lookup finds nothing, and is right


def test_a_hit_of_this_very_step_is_not_admitted(manager: HybridCacheManager) -> None:
    admit(manager, request("first", 20), 16)
    second = request("second", 20)
    assert manager.get_computed_blocks(second)[1] == 16
    assert manager.allocate_slots(second, 4, 16) is None
    manager.new_step_starts()
    assert admit(manager, second, 4) is not None


def test_the_last_token_of_a_cached_prompt_is_computed(manager: HybridCacheManager) -> None:
    admit(manager, request("first", 16), 16)
    manager.new_step_starts()
    assert manager.get_computed_blocks(request("second", 16))[1] == 0  # there is no state at 8
    assert manager.get_computed_blocks(request("third", 17))[1] == 16


def test_a_token_on_its_way_has_no_key_when_its_request_is_preempted(
    manager: HybridCacheManager,
) -> None:
    ahead = request("a", 23)
    admit(manager, ahead, 16)
    for computed, scheduled in ((16, 7), (23, 1)):  # an asynchronous step over the 24th token
        manager.new_step_starts()
        ahead.num_computed_tokens = computed
        assert manager.allocate_slots(ahead, scheduled) is not None
    ahead.num_computed_tokens = 24
    manager.free(ahead)
    manager.new_step_starts()
    assert manager.get_computed_blocks(ahead)[1] == 16


def test_a_decode_that_needs_nothing_gets_one_and_the_same_answer(
    manager: HybridCacheManager,
) -> None:
    running = request("a", 12)
    ids = admit(manager, running, 12).get_block_ids()
    assert [len(group) for group in ids] == [2, 2]  # two blocks; no state at 8, one at 12
    for computed in (12, 13):
        running.num_computed_tokens = computed
        assert manager.allocate_slots(running, 1) is NOTHING_NEW
    assert NOTHING_NEW.get_block_ids(allow_none=True) is None
    assert NOTHING_NEW.get_block_ids() == ((), ())


@pytest.mark.parametrize("enable_caching", [True, False])
def test_only_lookups_are_counted_as_hits_and_misses(
    enable_caching: bool, manager: HybridCacheManager
) -> None:
    # As in stock vLLM, whose scheduler asks for every request: without a cache nothing is missed.
    manager.enable_caching, manager.prefix_cache_stats = enable_caching, PrefixCacheStats()
    for asked in (request("a", 20), request("b", 20, prompt_logprobs=1)):
        admit(manager, asked, 16)
        manager.record_prefix_cache_stats(asked, 0)
    stats = manager.make_prefix_cache_stats()
    assert stats is not None
    assert (stats.requests, stats.queries, stats.hits) == (
        (1, 20, 0) if enable_caching else (0, 0, 0)
    )


def test_a_request_that_reads_no_cache_stays_refused_and_then_gets_in(
    manager: HybridCacheManager,
) -> None:
    runs = request("runs", 120)
    assert admit(manager, runs, 120) is not None  # 15 blocks, 3 + 1 pages
    waits = request("waits", 100, prompt_logprobs=1)  # 13 + 3: more than the 11 that are left
    assert waits.skip_reading_prefix_cache
    for tries in (1, 2):
        manager.new_step_starts()
        assert manager.get_computed_blocks(waits)[1] == 0
        assert manager.allocate_slots(waits, 96) is None
        assert manager.memory.cache.counters.refusals == tries
    runs.num_computed_tokens = 120
    manager.free(runs)
    manager.new_step_starts()
    assert admit(manager, waits, 96) is not None


def test_a_reset_drops_pins_and_entries_and_is_told_in_the_next_statistics(
    manager: HybridCacheManager,
) -> None:
    manager.prefix_cache_stats = PrefixCacheStats()
    pinned = request("pinned", 20)
    admit(manager, pinned, 16)
    assert not manager.reset_prefix_cache()  # it runs
    manager.new_step_starts()
    pinned.num_computed_tokens = 16
    manager.free(pinned)
    memory = manager.memory
    assert memory.pinning.num_pins == 1
    manager.new_step_starts()
    assert manager.reset_prefix_cache()
    assert memory.pinning.num_pins == 0
    assert all(pool.num_free == pool.spec.num_usable for pool in memory.cache.pools)
    assert manager.get_computed_blocks(pinned)[1] == 0
    resets = [manager.make_prefix_cache_stats() for _ in range(2)]
    assert [stats is not None and stats.reset for stats in resets] == [True, False]


def test_a_request_that_is_cancelled_while_it_waits_gives_up_its_pin(
    manager: HybridCacheManager,
) -> None:
    cancelled = request("a", 20)
    admit(manager, cancelled, 16)
    manager.new_step_starts()
    cancelled.num_computed_tokens = 16
    manager.free(cancelled)
    assert manager.memory.pinning.num_pins == 1
    manager.free(cancelled)
    assert manager.memory.pinning.num_pins == 0


def test_the_estimate_of_cached_tokens_counts_whole_published_blocks_of_a_running_request(
    manager: HybridCacheManager,
) -> None:
    running = request("a", 20)
    assert manager.estimate_cached_tokens(running) == 0
    admit(manager, running, 20)
    assert manager.estimate_cached_tokens(running) == 16  # of three blocks, two are full


def test_a_request_asks_for_its_prefix_when_it_joins_the_queue_and_only_then(
    tmp_path: Path,
) -> None:
    chosen = toy_settings("s2", 30, eviction="restart_point")
    manager: HybridCacheManager = build_scheduler(
        chosen, vllm_config(chosen, tmp_path)
    ).kv_cache_manager
    prefixes = manager.memory.cache.prefixes
    assert prefixes is not None
    first = request("first", 20)
    manager.enter(first)
    boundary = manager._sequence(first).keys.checkpoints[0]
    assert prefixes.demand.of(boundary) == 1 and not prefixes.demand.is_proven(boundary)
    manager.new_step_starts()
    assert admit(manager, first, 16) is not None
    first.num_computed_tokens = 16
    manager.free(first)  # preempted: it joins the queue again
    assert prefixes.demand.of(boundary) == 1
    manager.enter(request("unread", 20, prompt_logprobs=1))
    assert not prefixes.demand.is_proven(boundary)
    manager.enter(request("second", 20))
    assert prefixes.demand.is_proven(boundary)
