"""The memory's statistics of real schedules: complete, incremental, and cheap."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from vllm_scheduler import Drive, build_scheduler, drive, settings, vllm_config

from hsexp.config.catalog import read_option
from hsexp.config.device import DeviceConfig
from hsexp.engine.monitor import CENSUS_S, COUNTERS, SUMS, MemoryMonitor
from hsexp.memory import MemoryCounters
from hsexp.sim.steptime import StepClock
from hsexp.workload import generate
from hsexp.workload.arrivals import PoissonArrivals
from hsexp.workload.synthetic import SyntheticWorkload


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def scheduler_of(organization: str, budget: str, folder: Path, **policies: Any) -> Any:
    chosen = settings(organization, budget, **policies)
    return build_scheduler(chosen, vllm_config(chosen, folder))


def run(scheduler: Any) -> Drive:
    """A busy minute: more requests than fit."""
    law = read_option("workload", "extension") | {"sharing": 1.0, "num_requests": 60}
    workload = generate(
        SyntheticWorkload.parse(law), PoissonArrivals(kind="poisson", rate_per_s=6.0), seed=7
    )
    device = DeviceConfig.parse(read_option("device", "a100_40gb"))
    return drive(scheduler, workload, StepClock.of(device.known_step_time))


def test_every_counter_of_the_memory_is_published() -> None:
    counted = {field.name for field in fields(MemoryCounters)}
    assert set(COUNTERS) == counted | {"headroom_refusals"}
    assert not set(COUNTERS) & set(SUMS)


@pytest.mark.parametrize("organization", ["s0", "s1", "s2", "s3", "d0"])
def test_increments_add_up_to_the_totals_and_pages_to_the_pools(
    organization: str, tmp_path: Path
) -> None:
    scheduler = scheduler_of(organization, "b63", tmp_path)
    monitor = MemoryMonitor(scheduler.kv_cache_manager, Clock())
    scheduler._monitor = monitor
    first = monitor.observe(is_idle=False)
    assert not any(first.increments.values())
    driven = run(scheduler)
    last = monitor.observe(is_idle=True)
    memory = scheduler.kv_cache_manager.memory
    for name in (field.name for field in fields(MemoryCounters)):
        assert last.increments[name] == getattr(memory.cache.counters, name)
    assert last.increments["published_checkpoints"] > 0
    assert not any(monitor.observe(is_idle=True).increments.values())
    for state, pool in zip(last.pools, memory.cache.pools, strict=True):
        assert state.free + state.referenced == pool.spec.num_usable
        assert state.cached == sum(pool.entries[page] is not None for page in pool.free_pages())
        assert state.cached > 0
    two_pools = len(memory.cache.pools) > 1
    assert (last.stranded_bytes is not None) == two_pools
    assert ("stranded_byte_steps" in last.increments) == two_pools
    if two_pools:
        usable = sum(pool.spec.usable_bytes for pool in memory.cache.pools)
        assert last.increments["pool_byte_steps"] == len(driven.steps) * usable
    assert (last.slabs is not None) == ("slab_slot_steps" in last.increments)


def test_cached_pages_are_counted_once_a_second_and_when_work_ends(tmp_path: Path) -> None:
    scheduler, clock = scheduler_of("s2", "b63", tmp_path), Clock()
    monitor = MemoryMonitor(scheduler.kv_cache_manager, clock)
    assert monitor.observe(is_idle=False).pools[0].cached == 0
    run(scheduler)
    clock.now = 0.9 * CENSUS_S
    assert monitor.observe(is_idle=False).pools[0].cached == 0
    clock.now = 1.1 * CENSUS_S
    assert monitor.observe(is_idle=False).pools[0].cached > 0
    scheduler.kv_cache_manager.reset_prefix_cache()
    assert monitor.observe(is_idle=False).pools[0].cached > 0
    assert monitor.observe(is_idle=True).pools[0].cached == 0


def test_the_message_that_ends_the_last_request_has_counted_the_cached_pages(
    tmp_path: Path,
) -> None:
    chosen, messages = settings("s2", "b63"), []
    scheduler = build_scheduler(chosen, vllm_config(chosen, tmp_path), log_stats=True)
    scheduler._monitor = MemoryMonitor(scheduler.kv_cache_manager, Clock())
    make_stats = scheduler.make_stats

    def kept(*args: Any) -> Any:
        messages.append(make_stats(*args))
        return messages[-1]

    scheduler.make_stats = kept
    run(scheduler)
    (pool,) = scheduler.kv_cache_manager.memory.cache.pools
    assert messages[-1].hsexp.pools[0].cached == pool.num_cached > 0


def test_refusals_by_headroom_are_told_apart_from_those_for_want_of_pages(tmp_path: Path) -> None:
    # D0 keeps no reserve: without headroom only missing pages refuse.
    without = scheduler_of("d0", "b63", tmp_path)
    run(without)
    assert without.kv_cache_manager.memory.cache.counters.refusals > 0
    assert without.kv_cache_manager.headroom_refusals == 0
    with_headroom = scheduler_of("d0", "b63", tmp_path, headroom=0.4)
    run(with_headroom)
    manager = with_headroom.kv_cache_manager
    assert 0 < manager.headroom_refusals <= manager.memory.cache.counters.refusals
