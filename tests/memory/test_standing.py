"""A refusal that stands would be repeated; what can turn it ends it."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test
from test_memory_stateful import MemoryMachine, chunks, index
from toy_memory import (
    NATIVE_ORDER,
    ORGANIZATIONS,
    admit,
    cached_checkpoints,
    leave_cached,
    leave_free,
    reassign,
    run_steps,
    toy_memory,
    toy_sequence,
)
from toy_model import ToyRequest

from hsexp.memory import HybridMemory, SequenceMemory
from hsexp.memory.standing import StandingRefusal


class RefusalMachine(MemoryMachine):
    """The same client, that remembers whom it refused. Outputs are shared: equal prompts get
    equal tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[int, tuple[ToyRequest, list[StandingRefusal]]] = {}

    @precondition(lambda self: self.waiting and self.running)
    @rule(which=index, num_tokens=chunks)
    def admit(self, which: int, num_tokens: int) -> None:
        request = self.chosen(self.waiting, which)
        memory = self.engine.memory
        hit = self.engine.lookup(request)
        refusal = memory.refusal(request.sequence, hit, request.num_tokens, nothing_runs=False)
        if refusal is None:
            super().admit(which, num_tokens)
        elif hit.ready:
            held = (
                0 if hit.checkpoint is None else memory.cache.states.pages_to_hold(hit.checkpoint)
            )
            fits_without_hit = refusal.need - held + refusal.headroom <= refusal.free
            self.refused[request.request_id] = (
                request,
                [
                    StandingRefusal(
                        memory.cache,
                        request.sequence,
                        hit,
                        request.num_tokens,
                        losses_matter=losses_matter,
                    )
                    for losses_matter in {True, fits_without_hit}
                ],
            )

    @invariant()
    def what_stands_is_refused_again(self) -> None:
        engine = self.engine
        for request, refusals in self.refused.values():
            if request not in self.waiting or not any(
                refusal.stands(request.sequence) for refusal in refusals
            ):
                continue
            assert self.running, "an empty engine takes the first request"
            hit = engine.lookup(request)
            assert not hit.ready or engine.memory.refusal(
                request.sequence, hit, request.num_tokens, nothing_runs=False
            )


def leave_one_page_too_few(
    memory: HybridMemory, sequence: SequenceMemory, num_tokens: int
) -> StandingRefusal:
    """A refusal for want of the last page that the admission counts."""
    hit = memory.lookup(sequence, num_tokens)
    need = memory.admission_need(hit, num_tokens)
    if len(need) == 1:
        leave_free(memory, need[0] - 1, 0)
    else:
        # The pool in which the loss or the deeper hit of these tests makes a difference.
        attention, recurrent = need
        leave_free(memory, attention - (hit.gap is not None), recurrent - (hit.gap is None))
    assert memory.refusal(sequence, hit, num_tokens, nothing_runs=False) is not None
    return StandingRefusal(memory.cache, sequence, hit, num_tokens, losses_matter=True)


def is_refused(memory: HybridMemory, sequence: SequenceMemory, num_tokens: int) -> bool:
    hit = memory.lookup(sequence, num_tokens)
    assert hit.ready
    return memory.refusal(sequence, hit, num_tokens, nothing_runs=False) is not None


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_a_refusal_ends_when_its_hit_is_lost(organization: str) -> None:
    # Idle slabs last: first, filling the pool would take the only one.
    order = NATIVE_ORDER.model_copy(update={"idle_slab": "tail"})
    memory = toy_memory(organization, 60, release_order=order)
    leave_cached(memory, "old", 16)
    new = toy_sequence(memory, "new", 24)
    refusal = leave_one_page_too_few(memory, new, 24)
    assert refusal.hit.tokens == 16
    assert refusal.stands(new)

    # Without a checkpoint to take out of the queue the same request fits.
    for states in cached_checkpoints(memory).values():
        reassign(memory.cache.states.pool, states[0].pages[0])

    assert not refusal.stands(new)
    assert not is_refused(memory, new, 24)


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_a_refusal_ends_when_the_block_comes_that_a_deeper_checkpoint_waits_for(
    organization: str,
) -> None:
    memory = toy_memory(organization, 80, grid=16)
    leave_cached(memory, "old", 32)
    other = toy_sequence(memory, "other", 17)
    assert admit(memory, other, 17) == 16
    lost = 24 // memory.block_size - 1
    reassign(
        memory.cache.attention_pool, memory.cache.block_index.oldest[other.keys.attention[lost]]
    )
    run_steps(memory, other, *range(17, 24), start=16)
    new = toy_sequence(memory, "new", 40)
    refusal = leave_one_page_too_few(memory, new, 40)
    assert (refusal.hit.tokens, refusal.hit.gap) == (16, new.keys.attention[lost])
    assert refusal.stands(new)

    # The other request generates the tokens of the lost block, and holds its page.
    run_steps(memory, other, 24, start=23)

    assert not refusal.stands(new)
    assert memory.lookup(new, 40).tokens == 32
    assert not is_refused(memory, new, 40)


def test_a_refusal_stands_for_the_request_that_was_refused() -> None:
    memory = toy_memory("s0", 20)
    first, second = toy_sequence(memory, 1, 24), toy_sequence(memory, 2, 24)
    refusal = leave_one_page_too_few(memory, first, 24)
    assert refusal.stands(first)
    assert not refusal.stands(second)
    assert not refusal.stands(None)


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_no_sequence_of_actions_turns_a_refusal_that_stands(organization: str) -> None:
    machine = type(
        f"{organization.upper()}Machine", (RefusalMachine,), {"organization": organization}
    )
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
