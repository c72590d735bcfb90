"""The memory's own statistics, taken in the engine core and sent with vLLM's to the front ends.

A message holds states as they are and counters as increments since the last message, so that any
number of front ends can share the messages. Making one takes a few operations a pool. Only cached
pages take a count over the pool: at most once a second, and when the engine runs out of work.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields

from vllm.v1.metrics.stats import SchedulerStats

from hsexp.engine.manager import HybridCacheManager
from hsexp.memory import MemoryCounters
from hsexp.memory.sums import StepSums, stranded_bytes

CENSUS_S = 1.0
"""Shortest time between two counts of cached pages, while there is work."""

COUNTERS = {
    "preemptions": "Requests whose memory was taken while they ran.",
    "refusals": "Admissions refused, counted at each try.",
    "headroom_refusals": "Admissions refused although the pages were there, counted at each try.",
    "published_checkpoints": "Checkpoints that became reusable.",
    "lost_checkpoints": "Reusable checkpoints that were invalidated.",
    "lost_blocks": "Reusable attention blocks that were invalidated.",
    "reclaimed_slabs": "Slabs whose page got another owner.",
    "retained_checkpoints": "Superseded checkpoints that were kept for others.",
    "pinned_checkpoints": "Checkpoints that were pinned at a preemption.",
}
"""Counters of the memory and its manager."""

SUMS = {
    "stranded_byte_steps": "Stranded bytes, summed over steps (D0).",
    "pool_byte_steps": "Bytes of both pools, summed over steps (D0).",
    "used_slot_steps": "Slots that hold a state, summed over steps (S2).",
    "slab_slot_steps": "Slots of all slabs, summed over steps (S2).",
}
"""Sums over steps, for organizations that have the quantity."""


_MEMORY_COUNTERS = tuple(name.name for name in fields(MemoryCounters))


@dataclass
class PoolState:
    """Pages of one pool, without the null page."""

    name: str
    free: int
    """Not referenced, cached or not."""
    cached: int
    """Not referenced, and still found by a cache key; as of the last count."""
    referenced: int


@dataclass
class MemoryState:
    """A memory after a step. What an organization does not have is None, never zero."""

    pools: list[PoolState]
    slabs: int | None
    slab_slots: int | None
    used_slab_slots: int | None
    pinned: int
    """Checkpoints that a pin holds."""
    stranded_bytes: int | None
    """Free bytes, of one layer, in one pool while another one is exhausted."""
    increments: dict[str, int]
    """Growth of counters since the last message."""


@dataclass
class HybridStats(SchedulerStats):
    """vLLM's scheduler statistics, with the memory's own."""

    hsexp: MemoryState | None = None


class MemoryMonitor:
    """Observes one scheduler's memory for as long as it lives."""

    def __init__(
        self, manager: HybridCacheManager, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._manager = manager
        self.sums = StepSums()
        """Over the scheduled steps so far."""
        self._clock = clock
        self._last: dict[str, int] = {}
        self._cached = [0] * len(manager.memory.cache.pools)
        self._census_at = float("-inf")

    def add_step(self) -> None:
        """Count a scheduled step."""
        self.sums.add(self._manager.memory.cache, 1)

    def observe(self, *, is_idle: bool) -> MemoryState:
        """The state now, and the counts since the last call.

        Args:
            is_idle: no request is left, so that this is the last message for a while.
        """
        memory, now = self._manager.memory, self._clock()
        cache = memory.cache
        if is_idle or now - self._census_at >= CENSUS_S:
            self._census_at = now
            self._cached = [pool.num_cached for pool in cache.pools]
        used_slots, num_slots = cache.states.slots()
        slabs = cache.states.num_slabs()
        return MemoryState(
            pools=[
                PoolState(
                    name=pool.spec.name,
                    free=pool.num_free,
                    cached=min(cached, pool.num_free),
                    referenced=pool.spec.num_usable - pool.num_free,
                )
                for pool, cached in zip(cache.pools, self._cached, strict=True)
            ],
            slabs=slabs,
            slab_slots=None if slabs is None else num_slots,
            used_slab_slots=None if slabs is None else used_slots,
            pinned=memory.pinning.num_pins,
            stranded_bytes=stranded_bytes(cache.pools) if len(cache.pools) > 1 else None,
            increments=self._increments(),
        )

    def _increments(self) -> dict[str, int]:
        manager = self._manager
        totals = {name: getattr(manager.memory.cache.counters, name) for name in _MEMORY_COUNTERS}
        totals["headroom_refusals"] = manager.headroom_refusals
        totals |= self.sums.counters()
        increments = {name: total - self._last.get(name, 0) for name, total in totals.items()}
        self._last = totals
        return increments
