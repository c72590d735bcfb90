"""No lookup finds content that was never computed: scenarios, and random play under an oracle.

The slow tests play 10 million actions on tiny memories:

    python -m pytest -m slow tests/memory/test_oracle.py
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from cores import replace_method
from oracle import POLICIES, PromiseBroken, Referee, episodes
from toy_memory import (
    MISS,
    ORGANIZATIONS,
    WHOLE_PAGES,
    admit,
    compute,
    leave_free,
    run_steps,
    state_of,
    toy_memory,
    toy_sequence,
)

from hsexp.memory import Hit, HybridMemory, MemoryFault, SequenceMemory
from hsexp.memory.checkpoint import Checkpoint

FORKS = pytest.mark.parametrize("organization", WHOLE_PAGES)

# -- scenarios -----------------------------------------------------------------------------------


@FORKS
def test_a_block_whose_writer_leaves_is_lost_though_a_listed_copy_reads_it(
    organization: str,
) -> None:
    """The parent writes first and copies. The child is then the last holder: it writes in place,
    completes a block and a checkpoint, and is preempted in the same step."""
    memory = toy_memory(organization, 60)
    parent = compute(memory, "parent", 7)
    child = toy_sequence(memory, "child", 7, shared=7)
    memory.fork(parent, child, 7)
    assert memory.extend(parent, 7, 8)
    assert memory.extend(child, 7, 8)
    assert parent.blocks[-1] != child.blocks[-1]

    memory.preempt(child, 7)
    memory.take_copies()
    memory.cache.step += 1

    assert memory.lookup(child, 9) == MISS
    assert child.keys.attention[8 // memory.block_size - 1] not in memory.cache.block_index.oldest
    assert child.keys.checkpoints[0] not in memory.cache.checkpoint_index.oldest
    memory.check_integrity()


@FORKS
def test_a_block_whose_writer_leaves_is_lost_though_a_child_copies_what_was_there(
    organization: str,
) -> None:
    memory = toy_memory(organization, 60)
    parent = compute(memory, "parent", 7)
    child = toy_sequence(memory, "child", 7, shared=7)
    assert memory.fork_by_copying(parent, child, 7)
    assert memory.extend(parent, 7, 8)

    memory.preempt(parent, 7)
    memory.take_copies()
    memory.cache.step += 1

    assert memory.lookup(parent, 9) == MISS
    assert parent.keys.attention[8 // memory.block_size - 1] not in memory.cache.block_index.oldest
    assert parent.keys.checkpoints[0] not in memory.cache.checkpoint_index.oldest
    memory.check_integrity()


@FORKS
def test_a_boundary_that_is_copied_is_not_found_when_the_copy_is_dropped(
    organization: str,
) -> None:
    """A child is forked by copying on a grid boundary and goes past it. The copy is carried out at
    the start of the step, or never if the child leaves before."""
    memory = toy_memory(organization, 60)
    parent = compute(memory, "parent", 8)
    child = toy_sequence(memory, "child", 8)
    assert memory.fork_by_copying(parent, child, 8)
    copied = state_of(child)
    assert memory.extend(child, 8, 9)

    memory.preempt(child, 8)

    assert memory.take_copies() == []
    assert copied.key is None
    assert [state for _, state in memory.cache.checkpoint_index] == [state_of(parent)]
    memory.check_integrity()


@FORKS
def test_a_boundary_that_was_copied_is_found(organization: str) -> None:
    memory = toy_memory(organization, 60)
    parent = compute(memory, "parent", 8)
    child = toy_sequence(memory, "child", 8)
    assert memory.fork_by_copying(parent, child, 8)
    copied = state_of(child)
    assert memory.take_copies()
    memory.cache.step += 1

    assert memory.extend(child, 8, 9)

    assert copied.key == child.keys.checkpoints[0]
    assert memory.cache.is_computed(copied)


@FORKS
def test_a_state_that_its_step_does_not_compute_is_lost_though_another_one_wants_it_pinned(
    organization: str,
) -> None:
    """The younger request's own checkpoint is lost, and the older request publishes it again, ahead
    of the step that computes it. Both are preempted in that step, the younger one first."""
    memory = toy_memory(organization, 60, pinning=1)
    younger = compute(memory, "younger", 9)
    run_steps(memory, younger, 10, start=9)  # now its state at 8 is cached, and nobody holds it
    memory.cache.reset()
    older = toy_sequence(memory, "older", 9)
    assert admit(memory, older, 9) == 0
    assert memory.extend(older, 0, 8)

    memory.preempt(younger, 10)
    memory.preempt(older, 0)
    memory.cache.step += 1

    assert memory.lookup(older, 9) == MISS
    assert memory.pinning.num_pins == 0
    memory.check_integrity()


@FORKS
def test_a_pin_prefers_what_its_request_computed_to_what_another_one_will_compute(
    organization: str,
) -> None:
    """The younger request learns the key of its state after the older one has published it."""
    memory = toy_memory(organization, 60, pinning=1)
    younger, older = (toy_sequence(memory, name, 9) for name in ("younger", "older"))
    keys = younger.keys.checkpoints
    assert isinstance(keys, list)
    late, keys[:] = keys[:], []
    memory.admit(younger, MISS)
    run_steps(memory, younger, 8)
    computed = state_of(younger)
    assert admit(memory, older, 9) == 0
    assert memory.extend(older, 0, 8)

    keys += late
    memory.preempt(younger, 8)

    assert memory.pinning.pins() == {"younger": computed}


# -- copies that nobody needs any more -----------------------------------------------------------


def fill_and_leave_alone(
    memory: HybridMemory, leaving: Sequence[SequenceMemory], staying: SequenceMemory, end: int
) -> None:
    """Fill the pools, preempt the others, and check that the last request has no room to grow."""
    leave_free(memory, 0, 0)
    for sequence in leaving:
        memory.preempt(sequence, end)
    assert not memory.extend(staying, end, 9)


@FORKS
def test_a_request_alone_has_room_though_its_copies_are_not_done(organization: str) -> None:
    """The parent is preempted in the step in which it was forked by copying. Nothing but the listed
    copies holds its block and its state, so the child can use them instead of copies."""
    memory = toy_memory(organization, 60)
    parent = compute(memory, "parent", 8)
    child = toy_sequence(memory, "child", 8)
    assert memory.fork_by_copying(parent, child, 8)
    blocks, state = parent.blocks, state_of(parent)
    fill_and_leave_alone(memory, [parent], child, 8)

    while not memory.extend(child, 8, 9):
        assert memory.give_way(child)

    assert child.blocks[:-1] == blocks
    assert child.superseded is state
    assert memory.take_copies() == []


@FORKS
def test_a_copy_of_a_copy_that_nobody_needs_leads_back_to_what_was_copied_first(
    organization: str,
) -> None:
    memory = toy_memory(organization, 60)
    parent = compute(memory, "parent", 7)
    child, grandchild = (toy_sequence(memory, name, 7) for name in ("child", "grandchild"))
    assert memory.fork_by_copying(parent, child, 7)
    memory.fork(child, grandchild, 7)
    assert memory.branching.make_private(grandchild)
    blocks, state = parent.blocks, state_of(parent)
    fill_and_leave_alone(memory, [parent, child], grandchild, 7)

    assert memory.give_way(grandchild)

    assert (grandchild.blocks, grandchild.state) == (blocks, state)
    assert memory.take_copies() == []


@FORKS
def test_a_leaf_that_a_request_uses_instead_of_a_copy_is_forgotten(
    organization: str,
) -> None:
    memory = toy_memory(organization, 60, max_leaves=1)
    parent = compute(memory, "parent", 7)
    child = toy_sequence(memory, "child", 7)
    assert memory.branching.keep_leaf(parent, 7, "leaf")
    assert memory.fork_by_copying(parent, child, 7)
    fill_and_leave_alone(memory, [parent], child, 7)
    assert memory.branching.leaves.find(child, "leaf") is not None

    assert memory.give_way(child)

    assert memory.branching.leaves.find(child, "leaf") is None
    memory.branching.check_integrity()
    assert memory.extend(child, 7, 9)


@FORKS
def test_a_request_alone_still_copies_what_a_copy_in_flight_reads(organization: str) -> None:
    """Otherwise it would overwrite the source before that copy is complete."""
    memory = toy_memory(organization, 60)
    parent = compute(memory, "parent", 7)
    sibling, child = (toy_sequence(memory, name, 7) for name in ("sibling", "child"))
    memory.fork(parent, sibling, 7)
    assert memory.branching.begin_copy(parent)
    assert memory.fork_by_copying(parent, child, 7)
    tail, state = child.blocks[-1], child.state
    fill_and_leave_alone(memory, [parent, sibling], child, 7)

    while memory.give_way(child):
        pass

    assert (child.blocks[-1], child.state) == (tail, state)
    assert [copy.target[0] for copy in memory.take_copies()][-2:] == [
        tail,
        state_of(child).pages[0],
    ]


@FORKS
def test_what_a_sibling_shares_stays_a_copy(organization: str) -> None:
    memory = toy_memory(organization, 60)
    parent = compute(memory, "parent", 7)
    child, sibling = (toy_sequence(memory, name, 7) for name in ("child", "sibling"))
    assert memory.fork_by_copying(parent, child, 7)
    memory.fork(child, sibling, 7)
    memory.preempt(parent, 7)

    assert not memory.branching.forgo_copies(child)
    assert memory.take_copies()


@FORKS
def test_a_copy_is_not_begun_from_what_is_not_copied_yet(organization: str) -> None:
    """The copy in flight would read its source before a copy of the current step writes it."""
    memory = toy_memory(organization, 60)
    parent = compute(memory, "parent", 7)
    child, grandchild = (toy_sequence(memory, name, 7) for name in ("child", "grandchild"))
    assert memory.fork_by_copying(parent, child, 7)
    memory.fork(child, grandchild, 7)

    with pytest.raises(MemoryFault, match="before its listed copies are done"):
        memory.branching.begin_copy(grandchild)

    memory.take_copies()
    assert memory.branching.begin_copy(grandchild)


# -- the referee ---------------------------------------------------------------------------------


def play(organization: str, policy: str, *, seed: int, num_actions: int) -> int:
    """Number of actions that were played without a broken promise."""
    return sum(
        referee.num_actions
        for referee in episodes(organization, policy, seed=seed, num_actions=num_actions)
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_random_play_breaks_no_promise(organization: str, policy: str) -> None:
    assert play(organization, policy, seed=0, num_actions=10_000) >= 10_000


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_ten_million_random_actions_break_no_promise(organization: str, policy: str) -> None:
    """Each of the 20 cases plays a twentieth of them."""
    assert play(organization, policy, seed=1, num_actions=500_000) >= 500_000


def drop_copies(referee: Referee) -> None:
    """Do not carry out the copies of a step."""
    take = referee.calls.take_copies
    referee.calls.take_copies = lambda: take()[:0]


def reverse_copies(referee: Referee) -> None:
    """Carry out the copies of a step in reverse order."""
    take = referee.calls.take_copies
    referee.calls.take_copies = lambda: take()[::-1]


def call_everything_ready(referee: Referee) -> None:
    """Let requests hit entries that the current step has yet to compute."""
    lookup = referee.memory.lookup

    def lookup_early(sequence: SequenceMemory, num_tokens: int) -> Hit:
        return replace(lookup(sequence, num_tokens), ready=True)

    replace_method(referee.memory, "lookup", lookup_early)


def keep_the_step(referee: Referee) -> None:
    """Let a preempted request count the current step as computed."""
    preempt = referee.memory.preempt

    def keep(sequence: SequenceMemory, computed: int) -> None:
        ends = [each.end for each in referee.running if each.sequence is sequence]
        preempt(sequence, max(computed, *ends))

    replace_method(referee.memory, "preempt", keep)


def forget_a_member(referee: Referee) -> None:
    """Do not write the last page of a state."""
    write = referee.places.write_state

    def write_some(state: Checkpoint, word: int) -> None:
        pages = state.pages
        state.pages = pages[:-1]
        write(state, word)
        state.pages = pages

    referee.places.write_state = write_some  # type: ignore[method-assign]


def give_a_slot_twice(referee: Referee) -> None:
    """Give a request the first tail block of another one."""
    attention = referee.memory.cache.attention
    take = attention.take

    def take_anothers(sequence: SequenceMemory, end: int) -> None:
        before = len(sequence.tail)
        take(sequence, end)
        others = (each.tail for each in referee.memory.cache.sequences.values() if each.tail)
        if len(sequence.tail) > before:
            sequence.tail[-1] = next(others)[0]

    replace_method(attention, "take", take_anothers)


COMMON_FAULTS = (call_everything_ready, keep_the_step, forget_a_member)
FAULTS = [
    *((name, fault) for name in ORGANIZATIONS for fault in COMMON_FAULTS),
    *((name, fault) for name in WHOLE_PAGES for fault in (drop_copies, reverse_copies)),
    ("s3", give_a_slot_twice),
]


@pytest.mark.parametrize(("organization", "fault"), FAULTS)
def test_the_referee_notices_a_broken_memory(
    organization: str, fault: Callable[[Referee], None]
) -> None:
    with pytest.raises(PromiseBroken):
        for _ in episodes(organization, "none", seed=0, num_actions=100_000, prepare=fault):
            pass


@pytest.mark.parametrize("episode", ["5.64", "5.421"])
def test_a_refusal_by_price_is_asked_again_when_it_would_need_less(episode: str) -> None:
    """Somebody takes a tail slab that has room for the refused request too, or what that request
    would have to leave them. As many fewer pages are free, and each that it takes is worth more."""
    Referee("s3", "retention", episode).run()
