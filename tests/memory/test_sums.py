"""Sums over steps, counted by hand: stranded bytes of two pools, slots of slabs."""

import pytest
from toy_memory import toy_memory

from hsexp.memory.sums import StepSums, stranded_bytes


def test_bytes_are_stranded_while_one_pool_is_exhausted_and_another_is_not() -> None:
    memory = toy_memory("d0", 30, num_states=10)  # pages of 256 B in both
    attention, recurrent = memory.cache.pools
    assert stranded_bytes(memory.cache.pools) == 0
    attention.take(29)
    assert stranded_bytes(memory.cache.pools) == 0
    attention.take(1)
    assert stranded_bytes(memory.cache.pools) == 10 * 256
    recurrent.take(10)
    assert stranded_bytes(memory.cache.pools) == 0


def test_stranded_bytes_are_summed_over_steps_and_so_are_the_bytes_of_both_pools() -> None:
    memory, sums = toy_memory("d0", 30, num_states=10), StepSums()
    sums.add(memory.cache, 2)
    memory.cache.attention_pool.take(30)
    sums.add(memory.cache, 3)
    assert sums.counters() == {
        "stranded_byte_steps": 3 * 10 * 256,
        "pool_byte_steps": 5 * 40 * 256,
    }


def test_slots_are_summed_over_steps_used_ones_and_those_of_all_slabs() -> None:
    memory, sums = toy_memory("s2", 60), StepSums()
    sums.add(memory.cache, 7)  # no slab yet
    for _ in range(5):  # two slabs of four slots
        memory.cache.states.allocate()
    sums.add(memory.cache, 3)
    assert sums.counters() == {"used_slot_steps": 15, "slab_slot_steps": 24}


@pytest.mark.parametrize("organization", ["s0", "s1"])
def test_one_pool_without_slabs_has_neither_sum(organization: str) -> None:
    memory, sums = toy_memory(organization, 30), StepSums()
    sums.add(memory.cache, 5)
    assert sums.counters() == {}
