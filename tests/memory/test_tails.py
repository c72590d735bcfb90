"""S3's packed tails: which tokens share pages, which slot a block gets, and when a page comes back.

A page holds 8 tokens, or 4 tail blocks of 2.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_memory import (
    MISS,
    RESERVATIONS,
    TINY,
    admit,
    all_free,
    cached_boundaries,
    compute,
    free_pages,
    leave_cached,
    leave_free,
    run_steps,
    snapshot,
    tail_store,
    toy_config,
    toy_memory,
    toy_sequence,
)

from hsexp.memory import HybridMemory, MemoryConfig, MemoryFault, SequenceMemory
from hsexp.memory.organizations import StateMix, create
from hsexp.memory.standing import StandingRefusal

SLOTS = 4


def started(
    memory: HybridMemory, request_id: int | str, num_prompt_tokens: int, num_tokens: int
) -> SequenceMemory:
    """A request of its own content that has computed its prompt, then generated one by one."""
    sequence = toy_sequence(memory, request_id, num_prompt_tokens, content=request_id)
    memory.admit(sequence, MISS)
    grid = memory.checkpoint_grid
    ends = [*range(grid, num_prompt_tokens, grid), *range(num_prompt_tokens, num_tokens + 1)]
    run_steps(memory, sequence, *ends)
    return sequence


def pages_of(sequence: SequenceMemory) -> list[int]:
    """The slab of each tail block."""
    return [block_id // SLOTS for block_id in sequence.tail]


# -- which tokens ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "num_tokens", "num_pages", "num_slots"),
    [(20, 20, 2, 2), (20, 21, 2, 3), (20, 27, 2, 6), (16, 16, 2, 0), (16, 17, 2, 1), (5, 5, 0, 3)],
)
def test_whole_pages_of_the_prompt_are_pages_and_the_rest_is_slots(
    prompt: int, num_tokens: int, num_pages: int, num_slots: int
) -> None:
    sequence = started(toy_memory("s3", 60), 1, prompt, num_tokens)
    assert (len(sequence.blocks), len(sequence.tail)) == (num_pages, num_slots)


def test_block_ids_are_in_token_order_and_those_of_a_page_follow_each_other() -> None:
    memory = toy_memory("s3", 60)
    sequence = started(memory, 1, 20, 21)
    first, second = sequence.blocks
    ids = memory.cache.attention.block_ids(sequence)
    whole = [*range(4 * first, 4 * first + 4), *range(4 * second, 4 * second + 4)]
    assert ids == whole + sequence.tail
    assert len(set(ids)) == len(ids) == 11  # of 21 tokens


def test_nothing_beyond_the_prompts_whole_pages_is_cached() -> None:
    memory = toy_memory("s3", 60)
    sequence = started(memory, 1, 20, 33)
    assert cached_boundaries(memory, sequence) == [8, 16]
    assert sorted(memory.cache.block_index.oldest) == sorted(sequence.keys.attention[:2])
    memory.release(sequence, 33)
    assert cached_boundaries(memory, sequence) == [8, 16]
    memory.check_integrity()


def test_a_request_that_comes_back_puts_its_generated_tokens_into_a_tail_again() -> None:
    memory = toy_memory("s3", 60)
    sequence = started(memory, 1, 12, 26)
    memory.preempt(sequence, 26)
    assert not sequence.tail and not tail_store(memory).num_slabs
    # Another prompt contains what it generated, in pages.
    leave_cached(memory, 2, 24, content=1)
    assert memory.lookup(toy_sequence(memory, 3, 40, content=1), 26).tokens == 24
    assert admit(memory, sequence, 26) == 8
    run_steps(memory, sequence, 26, start=8)
    assert (len(sequence.blocks), len(sequence.tail)) == (1, 9)
    memory.check_integrity()


# -- which slot ------------------------------------------------------------------------------------


def test_requests_share_slabs_and_a_slab_goes_with_its_last_slot() -> None:
    memory = toy_memory("s3", 60)
    first, second = started(memory, "a", 3, 3), started(memory, "b", 4, 4)
    assert pages_of(first) == pages_of(second) and first.tail + second.tail == [
        4 * pages_of(first)[0] + slot for slot in range(4)
    ]
    (page,) = set(pages_of(first))
    memory.release(first, 3)
    assert memory.cache.attention_pool.refs[page] == 1
    memory.release(second, 4)
    assert memory.cache.attention_pool.refs[page] == 0 and all_free(memory)
    memory.check_integrity()


def test_a_block_goes_to_the_fullest_slab_so_that_others_empty() -> None:
    memory = toy_memory("s3", 60)
    requests = [started(memory, name, 1, 1) for name in range(12)]  # three full slabs
    first, second, third = (pages_of(requests[place])[0] for place in (0, 4, 8))
    for gone in (0, 1, 4, 8, 9, 10):  # two, three and one of their slots stay
        memory.release(requests[gone], 1)
    placed = [pages_of(started(memory, name, 1, 1))[0] for name in ("x", "y", "z")]
    assert placed == [second, first, first]
    memory.release(requests[11], 1)
    assert third not in tail_store(memory).free_slots()
    memory.check_integrity()


# -- room ------------------------------------------------------------------------------------------


def test_a_tail_grows_without_a_free_page_while_slabs_have_slots() -> None:
    memory = toy_memory("s3", 60)
    sequence, other = started(memory, 1, 1, 1), started(memory, 2, 1, 1)
    leave_free(memory, 0, 0)
    run_steps(memory, sequence, 2, 3, start=1)
    run_steps(memory, other, 2, 3, start=1)
    assert tail_store(memory).num_free_slots == 0
    run_steps(memory, other, 4, start=3)
    before = snapshot(memory)
    assert not memory.extend(other, 4, 5)
    assert snapshot(memory) == before
    memory.release(sequence, 3)
    run_steps(memory, other, 5, start=4)


requests = st.tuples(
    st.integers(min_value=1, max_value=30),  # prompt
    st.integers(min_value=0, max_value=20),  # generated before a preemption
)


@given(st.lists(requests, min_size=1, max_size=8), st.integers(0, 7))
@settings(max_examples=150, deadline=None)
def test_an_admission_takes_exactly_its_need(sizes: list[tuple[int, int]], gone: int) -> None:
    memory = toy_memory("s3", 200)
    for request_id, (prompt, generated) in enumerate(sizes):
        sequence = toy_sequence(memory, request_id, prompt, content=request_id)
        num_tokens = prompt + generated
        need = memory.admission_need(MISS, num_tokens, num_prompt_tokens=prompt)
        (free,) = free_pages(memory)
        memory.admit(sequence, MISS)
        run_steps(memory, sequence, num_tokens)
        assert [free - memory.cache.attention_pool.num_free] == need
        memory.check_integrity()
        if request_id == gone:  # leaves holes in slabs
            memory.release(memory.cache.sequences[request_id // 2], 0)


def test_an_admission_is_refused_for_one_slot_and_the_refusal_ends_when_it_is_freed() -> None:
    memory = toy_memory("s3", 60)
    holder, other = started(memory, 1, 2, 2), started(memory, 2, 3, 3)  # one slot is left
    new = toy_sequence(memory, 3, 4)  # wants two
    leave_free(memory, 3, 0)  # the members of its state; its slot is in a slab in use
    assert memory.admission_need(MISS, 2) == [3]
    assert memory.admission_need(MISS, 4) == [3 + 1]
    assert memory.refusal(new, MISS, 4, nothing_runs=False) is not None
    refusal = StandingRefusal(memory.cache, new, MISS, 4, losses_matter=False)
    assert refusal.stands(new)

    memory.release(holder, 2)

    assert not refusal.stands(new)
    assert memory.refusal(new, MISS, 4, nothing_runs=False) is None
    assert other.tail


def test_a_request_that_comes_back_is_admitted_into_slots_alone() -> None:
    memory = toy_memory("s3", 60)
    others = [started(memory, name, 1, 1) for name in range(8)]  # two full slabs
    for other in others[1:4] + others[5:]:
        memory.release(other, 1)
    assert tail_store(memory).num_free_slots == 6
    returning = toy_sequence(memory, "returning", 3)
    leave_free(memory, 3, 0)  # the members of its state; its slot is in a slab in use
    # 11 tokens would be a page and two slots if they were its prompt. They are 6 slots.
    assert memory.admission_need(MISS, 11) == [1 + 3]
    assert memory.refusal(returning, MISS, 11, nothing_runs=False) is None
    memory.admit(returning, MISS)
    run_steps(memory, returning, 8)
    assert free_pages(memory) == [0] and tail_store(memory).num_free_slots == 2


def test_promises_of_tails_are_counted_in_slots() -> None:
    memory = toy_memory("s3", 60, reservation="promised")
    spare = RESERVATIONS["promised"].spare_pages
    for name in ("a", "b"):  # of three slots each has taken one
        sequence = toy_sequence(memory, name, 5, content=name)
        admit(memory, sequence, 5)
        run_steps(memory, sequence, 1)
    assert tail_store(memory).num_free_slots == 2
    # 4 slots are promised, and two more are asked for: a slab beside the two free slots.
    assert memory.admission_need(MISS, 4) == [1 + 3 + spare]
    assert memory.admission_need(MISS, 5) == [2 + 3 + spare]


def test_a_request_alone_whose_tail_is_scattered_has_room_once_it_was_preempted() -> None:
    memory = toy_memory("s3", 60)
    sequences = [started(memory, name, 1, 2) for name in "abcd"]
    for start in (2, 4):  # a slab for every two tokens of each
        for sequence in sequences:
            run_steps(memory, sequence, start + 1, start + 2, start=start)
    alone, *others = sequences
    for sequence in others:
        memory.release(sequence, 6)
    assert len(set(pages_of(alone))) == 3
    run_steps(memory, alone, 7, 8, start=6)
    # With these it has as many pages as a request of 9 tokens takes alone.
    leave_free(memory, memory.max_need(9)[0] - 3 - 4, 0)
    assert not memory.extend(alone, 8, 9) and not memory.give_way(alone)

    memory.preempt(alone, 8)

    assert memory.refusal(alone, MISS, 9, nothing_runs=True) is None
    memory.admit(alone, MISS)
    run_steps(memory, alone, 8, 9)


# -- steps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [8, 16])
def test_a_quiet_step_in_a_tail_changes_nothing_and_the_next_one_does(grid: int) -> None:
    memory = toy_memory("s3", 60, grid=grid)
    sequence = toy_sequence(memory, 1, 3)
    memory.admit(sequence, MISS)
    num_quiet = 0
    for end in range(1, 41):
        memory.cache.step += 1
        promised, before = sequence.quiet_end, snapshot(memory)
        if end <= promised:
            num_quiet += 1
            assert memory.extend(sequence, end - 1, end)
            assert snapshot(memory) == before
            sequence.quiet_end = 0  # now the long way round
        assert memory.extend(sequence, end - 1, end)
        assert (snapshot(memory) == before) == (end <= promised)
        memory.check_integrity()
    # Every second token takes a block, and after each boundary one more step has to act.
    assert num_quiet == 20 - (40 // grid - (40 % grid == 0))


# -- refusals and sizes ----------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["max_leaves", "max_drafts"])
def test_leaves_and_drafts_are_refused_by_name(limit: str) -> None:
    with pytest.raises(ValueError, match=f"{limit} 2 contradicts organization s3"):
        toy_memory("s3", 60, **{limit: 2})


def test_a_running_request_is_not_forked() -> None:
    memory = toy_memory("s3", 60)
    parent, child = compute(memory, 1, 16), toy_sequence(memory, 2, 16)
    with pytest.raises(MemoryFault, match="request 1 cannot be forked or kept"):
        memory.fork(parent, child, 16)
    with pytest.raises(MemoryFault, match="request 1 cannot be forked or kept"):
        memory.branching.keep_leaf(parent, 16, "leaf")


def test_tail_blocks_fill_a_page() -> None:
    with pytest.raises(ValueError, match="tail_block_size 3 must divide block_size 8"):
        create(toy_config("s3", tail_block_size=3), TINY)


def test_a_mix_is_packed_to_the_tail_block() -> None:
    s2, s3 = (create(toy_config(name), TINY) for name in ("s2", "s3"))
    ragged = StateMix(attention_tokens=9, checkpoints=0)
    assert s2.mix_bytes(ragged) == s3.mix_bytes(ragged) == 2 * 1024
    # 9 tokens are 5 tail blocks of 2: eight requests take 10 pages of 8 tokens, and not 16.
    assert s2.fits(16 * 1024, ragged, 8) and not s2.fits(16 * 1024 - 1, ragged, 8)
    assert s3.fits(10 * 1024, ragged, 8) and not s3.fits(10 * 1024 - 1, ragged, 8)


def test_s3_is_a_layout_of_its_own_with_the_pools_of_s2() -> None:
    shared = {"model": TINY}
    pools = [
        MemoryConfig.without_policies(organization=toy_config(name), **shared)
        .layout.plan(1 << 16)
        .pools
        for name in ("s2", "s3")
    ]
    assert pools[0] == pools[1]
