"""Promises: an admission counts what it will take, and what those before it have yet to take.

Block and grid are 8 tokens (D0: block 2), as in `toy_memory`.
"""

from typing import Any

import pytest
from toy_memory import (
    MISS,
    RESERVATIONS,
    WHOLE_PAGES,
    admit,
    compute,
    leave_free,
    run_steps,
    snapshot,
    toy_memory,
    toy_sequence,
)

from hsexp.memory import HybridMemory, SequenceMemory
from hsexp.memory.policies.reservation.rule import NOTHING
from hsexp.memory.standing import StandingRefusal

SPARE = RESERVATIONS["promised"].spare_pages


def promising(organization: str, *, states: str = "in_place", **settings: Any) -> HybridMemory:
    return toy_memory(organization, 60, reservation="promised", states=states, **settings)


def need_of(memory: HybridMemory, num_blocks: int, num_states: int) -> list[int]:
    """Pages of so many tokens in blocks of 8, and of so many states, with the spare ones."""
    blocks = num_blocks * 8 // memory.block_size
    pages = memory.cache.by_pool(blocks, memory.cache.states.pages_needed(num_states))
    return [count + SPARE for count in pages]


def leave_attention(memory: HybridMemory) -> None:
    """32 tokens in one chunk, of which the first 20 are shared: no state inside them is left."""
    first = toy_sequence(memory, "first", 32, shared=20)
    memory.admit(first, MISS)
    run_steps(memory, first, 32)
    memory.release(first, 32)


def is_refused(memory: HybridMemory, sequence: SequenceMemory, num_tokens: int) -> bool:
    hit = memory.lookup(sequence, num_tokens)
    return memory.refusal(sequence, hit, num_tokens, nothing_runs=False) is not None


@pytest.mark.parametrize(("states", "num_states"), [("per_boundary", 2), ("in_place", 1)])
def test_an_admission_needs_its_prompt_its_states_and_the_spare_pages(
    organization: str, states: str, num_states: int
) -> None:
    memory = promising(organization, states=states, num_admission_states=3, reserve_fraction=0.08)
    assert memory.admission_need(MISS, 24) == need_of(memory, 3, num_states)
    assert memory.admission_need(MISS, 8) == need_of(memory, 1, 1)


def test_the_state_of_a_crossing_is_promised_until_the_request_holds_two(
    organization: str,
) -> None:
    memory = promising(organization, states="per_boundary")
    first = toy_sequence(memory, "first", 40)
    admit(memory, first, 40)
    run_steps(memory, first, 8)
    assert memory.admission_need(MISS, 8) == need_of(memory, 1 + 4, 2)
    run_steps(memory, first, 16, start=8)
    assert memory.admission_need(MISS, 8) == need_of(memory, 1 + 3, 1)


def test_a_crossing_promises_two_states_while_another_request_holds_what_it_hit(
    organization: str,
) -> None:
    """What it hit stays referenced when it goes on, so that nothing becomes free for its second
    state."""
    memory = promising(organization, states="per_boundary")
    holder = compute(memory, "holder", 8)
    second = toy_sequence(memory, "second", 40)
    assert admit(memory, second, 40) == 8
    run_steps(memory, second, 16, start=8)
    assert second.num_planned == 1
    run_steps(memory, second, 24, start=16)
    assert second.num_planned == 0
    assert holder.state is not None


def test_no_fixed_fraction_stays_free_but_the_headroom(organization: str) -> None:
    plain = promising(organization, reserve_fraction=0.08)
    assert set(plain.admission.headroom_pages) == {0}
    given = promising(organization, reserve_fraction=0.08, headroom=0.1)
    assert (
        given.admission.headroom_pages
        == toy_memory(organization, 60, headroom=0.1).admission.headroom_pages
    )


def test_a_planned_checkpoint_is_counted(organization: str) -> None:
    memory = promising(organization, placement="junction")
    leave_attention(memory)
    second = toy_sequence(memory, "second", 32, shared=20)
    hit = memory.lookup(second, 32)
    assert (hit.tokens, hit.stops) == (0, (16,))
    assert memory.admission_need(hit, 32) == need_of(memory, 4, 2)


def test_what_others_have_yet_to_take_is_counted(organization: str) -> None:
    memory = promising(organization)
    first = toy_sequence(memory, "first", 40)
    admit(memory, first, 40)
    run_steps(memory, first, 8)
    assert memory.admission_need(MISS, 24) == need_of(memory, 3 + 4, 1)
    run_steps(memory, first, 24, start=8)
    assert memory.admission_need(MISS, 24) == need_of(memory, 3 + 2, 1)
    run_steps(memory, first, 40, start=24)
    assert memory.admission_need(MISS, 24) == need_of(memory, 3, 1)


def test_a_planned_checkpoint_is_promised_until_its_stop_is_passed(organization: str) -> None:
    memory = promising(organization, placement="junction")
    leave_attention(memory)
    second = toy_sequence(memory, "second", 32, shared=20)
    admit(memory, second, 32)
    run_steps(memory, second, 16)
    assert memory.admission_need(MISS, 8) == need_of(memory, 1 + 2, 2)
    run_steps(memory, second, 24, start=16)
    assert memory.admission_need(MISS, 8) == need_of(memory, 1 + 1, 1)


@pytest.mark.parametrize("leave", ["preempt", "release"])
def test_who_leaves_is_promised_nothing(organization: str, leave: str) -> None:
    memory = promising(organization)
    first = toy_sequence(memory, "first", 40)
    admit(memory, first, 40)
    run_steps(memory, first, 8)
    getattr(memory, leave)(first, 8)
    assert first.num_admitted_tokens == 0
    assert memory.admission_need(MISS, 24) == need_of(memory, 3, 1)


@pytest.mark.parametrize("organization", WHOLE_PAGES)
def test_a_branch_is_promised_nothing(organization: str) -> None:
    memory = promising(organization, states="per_boundary")
    parent = compute(memory, "parent", 12)
    child = toy_sequence(memory, "child", 40, shared=12)
    memory.fork(parent, child, 12)
    assert memory.reservation.outstanding(memory.cache.sequences.values()) == NOTHING


def test_a_request_is_refused_for_what_another_was_promised(organization: str) -> None:
    memory = promising(organization)
    first, second = (toy_sequence(memory, name, 40, content=name) for name in ("first", "second"))
    admit(memory, first, 40)
    run_steps(memory, first, 8)
    need = need_of(memory, 4 + 5, 1)
    leave_free(memory, need[0] - 1, need[1] if len(need) > 1 else 0)  # one page too few for both
    before = snapshot(memory)
    refused = is_refused(memory, second, 40)
    assert snapshot(memory) == before
    assert refused
    memory.preempt(first, 8)
    assert not is_refused(memory, second, 40)


def test_a_request_alone_needs_neither_spare_pages_nor_its_checkpoints(organization: str) -> None:
    memory = promising(organization, placement="junction")
    leave_attention(memory)
    second = toy_sequence(memory, "second", 32, shared=20)
    need = memory.cache.by_pool(4 * 8 // memory.block_size, memory.cache.states.pages_needed(1))
    leave_free(memory, need[0], need[1] if len(need) > 1 else 0)
    hit = memory.lookup(second, 32)
    assert memory.refusal(second, hit, 32, nothing_runs=False) is not None
    assert memory.refusal(second, hit, 32, nothing_runs=True) is None


def test_a_refusal_stands_no_longer_than_the_promise_it_met(organization: str) -> None:
    """The step takes its planned state, frees nothing, and publishes no state."""
    memory = promising(organization, states="per_boundary")
    second, third = (toy_sequence(memory, name, 32, content=name) for name in ("second", "third"))
    admit(memory, second, 32)
    run_steps(memory, second, 8)
    assert second.num_planned == 1
    refusal = StandingRefusal(memory.cache, third, MISS, 32, losses_matter=True)
    assert memory.extend(second, 8, 12)
    assert second.num_planned == 0
    assert not refusal.stands(third)
