"""Sums over scheduler steps, shared by the simulator and the engine."""

from collections.abc import Sequence
from dataclasses import dataclass

from hsexp.memory.cache import Cache
from hsexp.memory.pool import PagePool


def stranded_bytes(pools: Sequence[PagePool]) -> int:
    """Free bytes of one pool while another one is exhausted (Appendix B.4)."""
    if all(pool.num_free for pool in pools):
        return 0
    return sum(pool.num_free * pool.spec.page_bytes for pool in pools)


@dataclass(kw_only=True, slots=True)
class StepSums:
    """Sums over steps for the stranded-byte fraction (Appendix B.4) and slab occupancy."""

    stranded_byte_steps: int = 0
    pool_byte_steps: int = 0
    used_slot_steps: int = 0
    slab_slot_steps: int = 0

    def add(self, cache: Cache, num_steps: int) -> None:
        pools = cache.pools
        if len(pools) > 1:
            self.stranded_byte_steps += num_steps * stranded_bytes(pools)
            self.pool_byte_steps += num_steps * sum(pool.spec.usable_bytes for pool in pools)
        used, slots = cache.states.slots()
        if slots:
            self.used_slot_steps += used * num_steps
            self.slab_slot_steps += slots * num_steps

    def counters(self) -> dict[str, int]:
        """The sums that apply to this organization; an absent one is not a measured zero."""
        sums: dict[str, int] = {}
        if self.pool_byte_steps:
            sums |= {
                "stranded_byte_steps": self.stranded_byte_steps,
                "pool_byte_steps": self.pool_byte_steps,
            }
        if self.slab_slot_steps:
            sums |= {
                "used_slot_steps": self.used_slot_steps,
                "slab_slot_steps": self.slab_slot_steps,
            }
        return sums
