"""Nothing is found that nobody computed: scenarios, and a referee that plays millions of actions.

The slow part plays 10 million actions on tiny memories:

    python -m pytest -m slow tests/memory/test_oracle.py
"""

import pytest
from oracle import POLICIES, episodes
from toy_memory import (
    MISS,
    admit,
    compute,
    leave_cached,
    leave_free,
    run_steps,
    state_of,
    toy_memory,
    toy_sequence,
)

from hsexp.memory.standing import StandingRefusal

# -- scenarios -----------------------------------------------------------------------------------


@pytest.mark.xfail(strict=True, reason="the reference of a listed copy counts as a writer")
def test_a_block_whose_writer_leaves_is_lost_though_a_listed_copy_reads_it(
    organization: str,
) -> None:
    """The parent writes first and copies; the child is the last holder, writes in place, fills a
    block and its state, and is preempted in that step."""
    memory = toy_memory(organization, 60)
    parent = compute(memory, "parent", 7)
    child = toy_sequence(memory, "child", 7, shared=7)
    memory.fork(parent, child, 7)
    assert memory.extend(parent, 7, 8)
    assert memory.extend(child, 7, 8)
    assert parent.blocks[-1] != child.blocks[-1]

    memory.preempt(child, 7)
    memory.take_copies()
    memory.step += 1

    assert memory.lookup(child, 9) == MISS
    memory.check_integrity()


@pytest.mark.xfail(strict=True, reason="the reference of a listed copy counts as a writer")
def test_a_block_whose_writer_leaves_is_lost_though_a_child_copies_what_was_there(
    organization: str,
) -> None:
    memory = toy_memory(organization, 60)
    parent = compute(memory, "parent", 7)
    child = toy_sequence(memory, "child", 7, shared=7)
    assert memory.branching.fork_by_copying(parent, child, 7)
    assert memory.extend(parent, 7, 8)

    memory.preempt(parent, 7)
    memory.take_copies()
    memory.step += 1

    assert memory.lookup(parent, 9) == MISS
    memory.check_integrity()


@pytest.mark.xfail(strict=True, reason="a copied boundary is published as of the step before")
def test_a_boundary_that_is_copied_is_not_found_when_the_copy_is_dropped(
    organization: str,
) -> None:
    """Fork by copying on a grid boundary, and go on past it: the copy is not done before the step,
    and not at all once the child is gone."""
    memory = toy_memory(organization, 60)
    parent = compute(memory, "parent", 8)
    child = toy_sequence(memory, "child", 8)
    assert memory.branching.fork_by_copying(parent, child, 8)
    copied = state_of(child)
    assert memory.extend(child, 8, 9)

    memory.preempt(child, 8)

    assert memory.take_copies() == []
    assert copied.key is None
    assert [state for _, state in memory.checkpoint_index] == [state_of(parent)]
    memory.check_integrity()


@pytest.mark.xfail(strict=True, reason="a pin holds what the running step has not computed")
def test_a_state_that_its_step_does_not_compute_is_lost_though_another_one_wants_it_pinned(
    organization: str,
) -> None:
    """The younger request's own checkpoint is gone when the older one publishes it again, ahead of
    the step that computes it. Both are preempted in that step, the younger one first."""
    memory = toy_memory(organization, 60, pinning=1)
    younger = compute(memory, "younger", 9)
    run_steps(memory, younger, 10, start=9)  # now its state at 8 is cached, and nobody holds it
    memory.reset_cache()
    older = toy_sequence(memory, "older", 9)
    assert admit(memory, older, 9) == 0
    assert memory.extend(older, 0, 8)

    memory.preempt(younger, 10)
    memory.preempt(older, 0)
    memory.step += 1

    assert memory.lookup(older, 9) == MISS
    assert memory.pinning.num_pins == 0
    memory.check_integrity()


@pytest.mark.xfail(strict=True, reason="listed copies keep what their sources took")
def test_a_request_alone_has_room_though_its_copies_are_not_done(organization: str) -> None:
    """The parent is preempted in the step in which it was forked by copying. Nobody else holds its
    block and its state, so the child can go on with them instead of with copies."""
    memory = toy_memory(organization, 60)
    parent = compute(memory, "parent", 8)
    child = toy_sequence(memory, "child", 8)
    assert memory.branching.fork_by_copying(parent, child, 8)
    blocks, state = parent.blocks, state_of(parent)
    leave_free(memory, 0, 0)
    memory.preempt(parent, 8)

    while not memory.extend(child, 8, 9):
        assert memory.give_way(child)

    assert child.blocks[:-1] == blocks
    assert child.superseded is state
    assert memory.take_copies() == []


@pytest.mark.xfail(strict=True, reason="a reset frees slots that a refusal counted as taken")
def test_a_refusal_ends_when_a_reset_frees_slots_of_a_slab_in_use() -> None:
    memory = toy_memory("s2", 40)
    for name in ("a", "b", "c"):
        compute(memory, name, 7, content=name)
    leave_cached(memory, "d", 8, content="d")  # the last of the slab's four slots
    new = toy_sequence(memory, "new", 8, content="new")
    leave_free(memory, 4, 0)  # a block and three members: what is missing is a page for a slab
    hit = memory.lookup(new, 8)
    assert memory.refusal(new, hit, 8, nothing_runs=False) is not None
    refusal = StandingRefusal(memory, new, hit, 8, losses_matter=False)

    memory.reset_cache()

    assert memory.refusal(new, hit, 8, nothing_runs=False) is None
    assert not refusal.stands(new)


@pytest.mark.xfail(strict=True, reason="what branches owe shrinks without a word")
def test_a_refusal_ends_when_a_branch_takes_a_leaf_over(organization: str) -> None:
    """It owed a copy of the leaf, which every admission counts, until there was no room for it."""
    memory = toy_memory(organization, 40, max_leaves=1)
    parent = compute(memory, "parent", 5)
    assert memory.branching.keep_leaf(parent, 5, "leaf")
    new = toy_sequence(memory, "new", 8, content="Y")
    leave_free(memory, 0, 0)
    assert memory.refusal(new, MISS, 8, nothing_runs=False) is not None
    refusal = StandingRefusal(memory, new, MISS, 8, losses_matter=False)
    owed = memory.branching.owed()

    assert memory.extend(parent, 5, 6)

    assert memory.branching.owed() < owed
    assert not refusal.stands(new)


# -- the referee ---------------------------------------------------------------------------------


@pytest.mark.xfail(reason="the faults above")
@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_wrong_is_ever_found(organization: str, policy: str) -> None:
    num_actions = sum(episodes(organization, policy, seed=0, num_actions=10_000))
    assert num_actions >= 10_000


@pytest.mark.slow
@pytest.mark.xfail(strict=True, reason="the faults above")
@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_wrong_is_found_in_ten_million_actions(organization: str, policy: str) -> None:
    """Of them this is a sixteenth."""
    num_actions = sum(episodes(organization, policy, seed=1, num_actions=625_000))
    assert num_actions >= 625_000
