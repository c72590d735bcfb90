"""One state in place: checkpoints are copies, made where a prefill stands at a boundary.

Block and grid are 8 tokens (D0: block 2), as in `toy_memory`.
"""

from typing import Any

import pytest
from toy_memory import (
    MISS,
    STATES,
    WHOLE_PAGES,
    all_free,
    cached_boundaries,
    cached_checkpoints,
    free_pages,
    leave_free,
    snapshot,
    state_of,
    toy_memory,
    toy_sequence,
)

from hsexp.memory import Copy, HybridMemory, MemoryFault, SequenceMemory


def in_place(organization: str, **settings: Any) -> HybridMemory:
    return toy_memory(organization, 60, states="in_place", **settings)


def start(memory: HybridMemory, sequence: SequenceMemory, num_tokens: int) -> int:
    hit = memory.lookup(sequence, num_tokens)
    nothing_runs = not memory.cache.sequences
    assert memory.refusal(sequence, hit, num_tokens, nothing_runs=nothing_runs) is None
    memory.admit(sequence, hit, num_tokens)
    return hit.tokens


def steps(memory: HybridMemory, sequence: SequenceMemory, begin: int, *ends: int) -> list[Copy]:
    """Extend to each end in a step of its own. Returns the copies of the last step."""
    copies: list[Copy] = []
    for end in ends:
        assert memory.extend(sequence, begin, end), f"no room for tokens {begin} to {end}"
        copies = memory.take_copies()
        memory.cache.step += 1
        begin = end
    return copies


def leave_prefix(memory: HybridMemory, num_tokens: int = 20) -> None:
    """A request that computes so many tokens, one grid interval a step, and finishes."""
    sequence = toy_sequence(memory, "before", num_tokens)
    start(memory, sequence, num_tokens)
    steps(memory, sequence, 0, *range(8, num_tokens, 8), num_tokens)
    memory.release(sequence, num_tokens)


# -- one state -------------------------------------------------------------------------------------


def test_a_request_has_one_state_from_its_first_step_to_its_last(organization: str) -> None:
    memory = in_place(organization)
    sequence = toy_sequence(memory, 1, 20)
    start(memory, sequence, 20)
    steps(memory, sequence, 0, 8)
    state = state_of(sequence)
    for end in range(9, 41):
        free = sum(free_pages(memory))
        steps(memory, sequence, end - 1, end)
        assert sequence.states == (state,) and state.refs == 1
        assert sequence.state_index == (end - 1) // 8
        memory.check_integrity()
        # A page for each new block, and nothing for a crossing.
        assert free - sum(free_pages(memory)) == ((end - 1) % memory.block_size == 0)


def test_a_request_alone_never_needs_a_second_state(organization: str) -> None:
    memory = in_place(organization)
    pages = memory.cache.by_pool(40 // memory.block_size, memory.cache.states.pages_alone(1))
    assert memory.max_need(40) == pages


def test_a_hit_is_copied_and_held_until_the_copy_is_done(organization: str) -> None:
    memory = in_place(organization)
    leave_prefix(memory)
    sequence = toy_sequence(memory, 2, 40)
    assert start(memory, sequence, 40) == 16
    (checkpoint,) = cached_checkpoints(memory)[sequence.keys.checkpoints[1]]
    assert memory.extend(sequence, 16, 24)
    assert checkpoint.refs == 1 and state_of(sequence) is not checkpoint
    memory.check_integrity()
    (copy,) = memory.take_copies()
    assert (copy.kind, copy.num_tokens) == ("state", 16)
    assert copy.source == tuple(checkpoint.pages) and copy.target == tuple(state_of(sequence).pages)
    assert checkpoint.refs == 0 and checkpoint.key is not None
    memory.check_integrity()


def test_a_request_that_leaves_before_its_hit_is_copied_leaves_the_checkpoint(
    organization: str,
) -> None:
    memory = in_place(organization)
    leave_prefix(memory)
    sequence = toy_sequence(memory, 2, 40)
    start(memory, sequence, 40)
    assert memory.extend(sequence, 16, 24)
    memory.preempt(sequence, 16)
    assert memory.take_copies() == [] and all_free(memory)
    assert cached_boundaries(memory, sequence) == [8, 16]
    memory.check_integrity()


# -- checkpoints -----------------------------------------------------------------------------------


def test_a_prefill_copies_its_state_before_it_goes_on_from_a_boundary(organization: str) -> None:
    memory = in_place(organization)
    sequence = toy_sequence(memory, 1, 20)
    start(memory, sequence, 20)
    assert steps(memory, sequence, 0, 16) == []
    assert cached_boundaries(memory, sequence) == []
    assert memory.extend(sequence, 16, 20)
    ((checkpoint,),) = cached_checkpoints(memory).values()
    assert not memory.lookup(toy_sequence(memory, 2), 40).ready
    (copy,) = memory.take_copies()
    assert copy.source == tuple(state_of(sequence).pages)
    assert copy.target == tuple(checkpoint.pages) and copy.num_tokens == 16
    assert checkpoint.refs == 0
    memory.cache.step += 1
    hit = memory.lookup(toy_sequence(memory, 2), 40)
    assert (hit.tokens, hit.ready, hit.checkpoint) == (16, True, checkpoint)


def test_a_prompt_that_ends_at_a_boundary_leaves_a_checkpoint_there(organization: str) -> None:
    memory = in_place(organization)
    sequence = toy_sequence(memory, 1, 16)
    start(memory, sequence, 16)
    assert steps(memory, sequence, 0, 16) == []
    assert len(steps(memory, sequence, 16, 17)) == 1
    assert cached_boundaries(memory, sequence) == [16]


def test_output_that_reaches_a_boundary_leaves_no_checkpoint(organization: str) -> None:
    memory = in_place(organization)
    sequence = toy_sequence(memory, 1, 20)
    start(memory, sequence, 20)
    steps(memory, sequence, 0, 16, *range(20, 34))
    assert cached_boundaries(memory, sequence) == [16]


@pytest.mark.parametrize("organization", WHOLE_PAGES)
def test_a_resumed_prefill_leaves_checkpoints_in_its_output(organization: str) -> None:
    memory = in_place(organization)
    sequence = toy_sequence(memory, 1, 12)
    start(memory, sequence, 30)
    steps(memory, sequence, 0, 8, 24, 30)
    assert cached_boundaries(memory, sequence) == [8, 24]


def test_a_boundary_that_is_cached_is_not_copied_again(organization: str) -> None:
    memory = in_place(organization)
    first, second = (toy_sequence(memory, name, 20) for name in ("first", "second"))
    memory.admit(first, MISS, 20)
    assert len(steps(memory, first, 0, 16, 20)) == 1
    memory.admit(second, MISS, 20)
    assert steps(memory, second, 0, 16, 20) == []
    assert [len(each) for each in cached_checkpoints(memory).values()] == [1]


def test_no_checkpoint_is_made_where_a_page_is_missing(organization: str) -> None:
    for missing in (0, 1):
        memory = in_place(organization)
        sequence = toy_sequence(memory, 1, 24)
        start(memory, sequence, 24)
        steps(memory, sequence, 0, 16)
        blocks = 8 // memory.block_size
        leave_free(memory, blocks, memory.cache.states.pages_needed(1) - missing)
        assert len(steps(memory, sequence, 16, 24)) == 1 - missing
        assert cached_boundaries(memory, sequence) == [16][missing:]


def test_no_checkpoint_takes_pages_that_were_promised(organization: str) -> None:
    for missing in (0, 1):
        memory = in_place(organization, reservation="promised")
        first, other = (toy_sequence(memory, name, 24, content=name) for name in ("first", "other"))
        for sequence in (first, other):
            start(memory, sequence, 24)
            steps(memory, sequence, 0, 16 if sequence is first else 8)
        blocks = 8 // memory.block_size
        need = memory.cache.states.pages_needed(1) - missing
        leave_free(memory, 3 * blocks, need)  # one block of grid size for `first`, two for `other`
        assert len(steps(memory, first, 16, 24)) == 1 - missing


def test_a_checkpoint_is_given_up_for_whoever_needs_its_pages_in_the_step(
    organization: str,
) -> None:
    memory = in_place(organization)
    first, other = (toy_sequence(memory, name, 24, content=name) for name in ("first", "other"))
    for sequence, end in ((first, 16), (other, 8)):
        start(memory, sequence, 24)
        steps(memory, sequence, 0, end)
    leave_free(memory, 8 // memory.block_size, memory.cache.states.pages_needed(1))
    assert memory.extend(first, 16, 24)
    assert cached_boundaries(memory, first) == [16]
    before = memory.cache.attention_pool.num_free
    assert memory.extend(other, 8, 16) == (len(memory.cache.pools) == 1)
    assert before == 0 and memory.take_copies() == []
    assert cached_boundaries(memory, first) == []


@pytest.mark.parametrize("leave", ["preempt", "release"])
def test_a_checkpoint_is_withdrawn_when_its_step_is_not_computed(
    organization: str, leave: str
) -> None:
    memory = in_place(organization)
    sequence = toy_sequence(memory, 1, 24)
    start(memory, sequence, 24)
    steps(memory, sequence, 0, 16)
    assert memory.extend(sequence, 16, 24)
    getattr(memory, leave)(sequence, 16)
    assert memory.take_copies() == [] and all_free(memory)
    assert cached_boundaries(memory, sequence) == []
    memory.check_integrity()


def test_a_copy_is_done_though_its_request_leaves_after_the_step(organization: str) -> None:
    memory = in_place(organization)
    sequence = toy_sequence(memory, 1, 24)
    start(memory, sequence, 24)
    steps(memory, sequence, 0, 16, 24)
    memory.preempt(sequence, 24)
    assert cached_boundaries(memory, sequence) == [16, 24] and all_free(memory)


# -- the end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("organization", WHOLE_PAGES)
@pytest.mark.parametrize("leave", ["preempt", "release"])
@pytest.mark.parametrize(("end", "kept"), [(24, [8, 24]), (25, [8]), (23, [8])])
def test_who_leaves_at_a_boundary_leaves_its_state_there(
    organization: str, leave: str, end: int, kept: list[int]
) -> None:
    memory = in_place(organization)
    sequence = toy_sequence(memory, 1, 12)
    start(memory, sequence, 12)
    steps(memory, sequence, 0, 8, *range(12, end + 1))
    state = state_of(sequence)
    getattr(memory, leave)(sequence, end)
    assert cached_boundaries(memory, sequence) == kept
    assert (state.key is not None) == (end == 24)
    hit = memory.lookup(toy_sequence(memory, 2, 40), 40)
    assert (hit.tokens, hit.ready) == (kept[-1], True)


def test_who_leaves_in_a_step_from_a_boundary_on_may_have_overwritten_it(
    organization: str,
) -> None:
    """An engine that runs ahead tells the tokens before the step in flight, which is computed."""
    memory = in_place(organization)
    sequence = toy_sequence(memory, 1, 12)
    start(memory, sequence, 12)
    steps(memory, sequence, 0, 8, *range(12, 26))
    memory.release(sequence, 24)
    assert cached_boundaries(memory, sequence) == [8]


def test_the_final_state_is_kept_only_if_it_is_asked_for(
    organization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = STATES["in_place"].model_copy(update={"keep_final": False})
    monkeypatch.setitem(STATES, "in_place", without)
    memory = in_place(organization)
    sequence = toy_sequence(memory, 1, 12)
    start(memory, sequence, 12)
    steps(memory, sequence, 0, 8, *range(12, 25))
    memory.release(sequence, 24)
    assert cached_boundaries(memory, sequence) == [8]
    memory.check_integrity()


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", [{"retention": 2}, {"max_leaves": 1}, {"max_drafts": 1}])
def test_what_it_cannot_carry_is_refused_by_name(organization: str, what: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="states in_place cannot be combined"):
        in_place(organization, **what)


def test_a_fork_is_refused_and_moves_nothing(organization: str) -> None:
    memory = in_place(organization)
    parent = toy_sequence(memory, "parent", 12)
    start(memory, parent, 12)
    steps(memory, parent, 0, 8, 12)
    before = snapshot(memory)
    with pytest.raises(MemoryFault, match="parent cannot be forked"):
        memory.fork(parent, toy_sequence(memory, "child", 12), 12)
    assert snapshot(memory) == before
