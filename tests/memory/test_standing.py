"""A refusal that stands would be repeated; what can turn it ends it."""

import pytest
from cores import require_physical
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test
from test_memory_stateful import MemoryMachine, chunks, index
from toy_memory import (
    MISS,
    NATIVE_ORDER,
    ORGANIZATIONS,
    WHOLE_PAGES,
    admit,
    cached_checkpoints,
    compute,
    leave_cached,
    leave_free,
    put_first,
    reassign,
    run_steps,
    toy_memory,
    toy_sequence,
)
from toy_model import ToyRequest

from hsexp.memory import Hit, HybridMemory, SequenceMemory, exact_prefix
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
                        by_price=refusal.by_price,
                    )
                    for losses_matter in {
                        True,
                        fits_without_hit or memory.reservation.makes_promises,
                    }
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
    other = toy_sequence(memory, "other", 32)
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

    # The other request computes the tokens of the lost block, and holds its page.
    run_steps(memory, other, 24, start=23)

    assert not refusal.stands(new)
    assert memory.lookup(new, 40).tokens == 32
    assert not is_refused(memory, new, 40)


@pytest.mark.parametrize("organization", WHOLE_PAGES)
def test_a_refusal_ends_when_the_block_comes_that_a_leaf_waits_for(organization: str) -> None:
    memory, tokens = toy_memory(organization, 80, grid=16, max_leaves=1), list(range(40))

    def find(sequence: SequenceMemory) -> Hit:
        leaves = memory.branching.leaves
        leaf = leaves.find_deepest(sequence, tokens, num_tokens=39)
        return memory.lookup(sequence, 40).or_deeper(leaf)

    def refuses(sequence: SequenceMemory, hit: Hit) -> bool:
        return memory.refusal(sequence, hit, 40, nothing_runs=False) is not None

    old = compute(memory, "old", 13)
    other = compute(memory, "other", 7)
    key = exact_prefix(old.keys, memory.block_size, tokens, num_tokens=13)
    memory.release(old, 13, leaf=key)
    # D0's other request holds the first three blocks of the eight tokens, and not the fourth.
    lost = 8 // memory.block_size - 1
    reassign(
        memory.cache.attention_pool, memory.cache.block_index.oldest[other.keys.attention[lost]]
    )
    new = toy_sequence(memory, "new", 40)
    hit = find(new)
    assert (hit.tokens, hit.gap) == (0, new.keys.attention[lost])
    attention, *recurrent = memory.admission_need(hit, 40)
    leave_free(memory, attention - 1, sum(recurrent))
    refusal = StandingRefusal(memory.cache, new, hit, 40, losses_matter=True)
    assert refuses(new, hit) and refusal.stands(new)

    run_steps(memory, other, 8, start=7)

    assert find(new).tokens == 13
    assert not refusal.stands(new)


def test_a_refusal_ends_when_a_reset_frees_slots_of_a_slab_in_use() -> None:
    memory = toy_memory("s2", 40)
    for name in ("a", "b", "c"):
        compute(memory, name, 7, content=name)
    leave_cached(memory, "d", 8, content="d")  # the last of the slab's four slots
    new = toy_sequence(memory, "new", 8, content="new")
    leave_free(memory, 4, 0)  # a block and three members: what is missing is a page for a slab
    hit = memory.lookup(new, 8)
    assert memory.refusal(new, hit, 8, nothing_runs=False) is not None
    refusal = StandingRefusal(memory.cache, new, hit, 8, losses_matter=False)

    memory.cache.reset()

    assert memory.refusal(new, hit, 8, nothing_runs=False) is None
    assert not refusal.stands(new)


def test_a_refusal_with_a_leaf_may_end_when_the_leaf_is_lost() -> None:
    """With it the request copies the last block, and needs a slot beside the leaf's own: two pages
    more than what holding the leaf takes."""
    memory = toy_memory("s2", 40, max_final=1)
    for name in ("a", "b", "c"):
        compute(memory, name, 7, content=name)
    memory.release(compute(memory, "d", 7, content="d"), 7, leaf="d")  # the last of four slots
    memory.cache.step += 1
    new = toy_sequence(memory, "new", 8, content="d")
    leave_free(memory, 5, 0)

    hit = memory.branching.leaves.find(new, "d")
    assert hit is not None and hit.checkpoint is not None
    refused = memory.refusal(new, hit, 8, nothing_runs=False)
    held = memory.cache.states.pages_to_hold(hit.checkpoint)
    assert refused is not None and refused.need - held > refused.free
    refusal = StandingRefusal(memory.cache, new, hit, 8, losses_matter=True)
    put_first(memory.cache.attention_pool, hit.checkpoint.pages[0])
    memory.cache.attention_pool.take(1)

    assert memory.refusal(new, MISS, 8, nothing_runs=False) is None
    assert not refusal.stands(new)


@pytest.mark.parametrize("organization", WHOLE_PAGES)
def test_a_refusal_ends_when_a_branch_takes_a_leaf_over(organization: str) -> None:
    """It owed a copy of the leaf, which every admission counts, until there was no room for it."""
    memory = toy_memory(organization, 40, max_leaves=1)
    parent = compute(memory, "parent", 5)
    assert memory.branching.keep_leaf(parent, 5, "leaf")
    new = toy_sequence(memory, "new", 8, content="Y")
    leave_free(memory, 0, 0)
    assert memory.refusal(new, MISS, 8, nothing_runs=False) is not None
    refusal = StandingRefusal(memory.cache, new, MISS, 8, losses_matter=False)
    owed = memory.branching.owed()

    assert memory.extend(parent, 5, 6)

    assert memory.branching.owed() < owed
    assert not refusal.stands(new)


def test_a_refusal_stands_for_the_request_that_was_refused() -> None:
    memory = toy_memory("s0", 20)
    first, second = toy_sequence(memory, 1, 24), toy_sequence(memory, 2, 24)
    refusal = leave_one_page_too_few(memory, first, 24)
    assert refusal.stands(first)
    assert not refusal.stands(second)
    assert not refusal.stands(None)


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_no_sequence_of_actions_turns_a_refusal_that_stands(organization: str) -> None:
    require_physical(organization)
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
