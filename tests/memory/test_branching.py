"""Forks, beams and leaves, each scene counted by hand: references, copies, pages and tokens.

Block of 8 tokens and a grid of 8 (D0: block of 2), or a grid of 16. Every scene is computed on
physical words, and `BranchEngine.check` compares it with caches of one's own and with the rule.
"""

import itertools
import math
from collections.abc import Sequence

import pytest
from toy_branches import BranchEngine, ToyBranch, next_token
from toy_memory import (
    WHOLE_PAGES,
    admit,
    all_free,
    free_last,
    free_pages,
    leave_free,
    put_first,
    put_last,
    queue_of,
    run_steps,
    snapshot,
    state_of,
    toy_memory,
    toy_sequence,
)

from hsexp.memory import MemoryFault
from hsexp.memory.branching.beams import Beam, Beams
from hsexp.memory.sequence import PrefixKeys, SequenceMemory

CONTEXT = tuple(range(100, 140))
NO_KEYS = PrefixKeys(attention=(), checkpoints=())
OFFSETS = range(1, 18)
"""Fork lengths: every offset within a block, two whole blocks, and one token more."""


@pytest.fixture(params=WHOLE_PAGES)
def organization(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def engine_of(
    organization: str, *, num_pages: int = 120, grid: int = 8, max_leaves: int = 0
) -> BranchEngine:
    return BranchEngine(
        toy_memory(organization, num_pages, num_states=20, grid=grid, max_leaves=max_leaves)
    )


def started(engine: BranchEngine, num_tokens: int, *, salt: str | None = None) -> ToyBranch:
    """A request that has computed its prompt of so many tokens, one grid interval a step."""
    branch = engine.start(CONTEXT[:num_tokens], salt=salt)
    assert branch is not None
    while branch.computed < num_tokens:
        grid = engine.memory.checkpoint_grid
        assert engine.grow(branch, grid - branch.computed % grid)
        engine.step()
    engine.check()
    return branch


def forked(engine: BranchEngine, parent: ToyBranch, num_children: int) -> list[ToyBranch]:
    """Children that go on with tokens of their own."""
    children = []
    for token in range(num_children):
        child = engine.fork(parent, 1000 + token)
        assert child is not None
        children.append(child)
    engine.check()
    return children


def write(engine: BranchEngine, *branches: ToyBranch, reverse: bool = False) -> None:
    """A step in which all of them compute one token."""
    for branch in branches:
        assert engine.grow(branch)
    engine.check()
    engine.step(reverse=reverse)
    engine.check()


def crowd(engine: BranchEngine, attention: int, recurrent: int) -> None:
    """Strangers take all pages but these."""
    leave_free(engine.memory, attention, recurrent)
    engine.is_crowded = True


def copies(engine: BranchEngine) -> tuple[int, int]:
    """(tail pages, states) that were copied so far."""
    return engine.num_copies["attention"], engine.num_copies["state"]


def tail_of(engine: BranchEngine, branch: ToyBranch) -> int:
    return branch.sequence.blocks[branch.computed // engine.memory.block_size]


# -- who copies ------------------------------------------------------------------------------------


def test_a_fork_moves_nothing(organization: str) -> None:
    engine = engine_of(organization)
    parent = started(engine, 13)
    before = free_pages(engine.memory)
    (child,) = forked(engine, parent, 1)
    assert free_pages(engine.memory) == before and copies(engine) == (0, 0)
    assert child.sequence.blocks == parent.sequence.blocks
    assert child.sequence.state is parent.sequence.state
    assert [engine.memory.cache.attention_pool.refs[page] for page in child.sequence.blocks] == [
        2 for _ in child.sequence.blocks
    ]


@pytest.mark.parametrize("num_tokens", OFFSETS)
@pytest.mark.parametrize("grid", [8, 16])
@pytest.mark.parametrize("reverse", [False, True])
def test_all_writers_but_the_last_copy_what_is_written_in_place(
    organization: str, num_tokens: int, grid: int, reverse: bool
) -> None:
    engine = engine_of(organization, grid=grid)
    parent = started(engine, num_tokens)
    branches = [parent, *forked(engine, parent, 2)]
    write(engine, *branches, reverse=reverse)
    tail_is_partial = num_tokens % engine.memory.block_size != 0
    state_goes_on = num_tokens % grid != 0
    assert copies(engine) == (2 * tail_is_partial, 2 * state_goes_on)
    # From here on everything that is written is private.
    for _ in range(10):
        write(engine, *branches)
    assert copies(engine) == (2 * tail_is_partial, 2 * state_goes_on)


def test_the_last_holder_writes_in_place_whatever_became_of_the_others(organization: str) -> None:
    engine = engine_of(organization)
    parent = started(engine, 13)
    tail, state = tail_of(engine, parent), state_of(parent.sequence)
    first, second = forked(engine, parent, 2)
    engine.drop(first)
    write(engine, second)  # shares with its parent
    assert copies(engine) == (1, 1)
    write(engine, parent)
    assert copies(engine) == (1, 1)
    assert tail in parent.sequence.blocks and state_of(parent.sequence) is state


def test_writers_in_later_steps_copy_as_those_of_one_step_do(organization: str) -> None:
    engine = engine_of(organization)
    parent = started(engine, 13)
    branches = [parent, *forked(engine, parent, 3)]
    for writer in branches:
        write(engine, writer)
    assert copies(engine) == (3, 3)


def test_the_child_pays_when_it_copies_at_the_fork(organization: str) -> None:
    engine = engine_of(organization)
    parent = started(engine, 13)
    tail, state = tail_of(engine, parent), state_of(parent.sequence)
    (child,) = forked(engine, parent, 1)
    assert engine.make_private(child)
    write(engine, parent, child)
    assert copies(engine) == (1, 1)
    assert tail in parent.sequence.blocks and state_of(parent.sequence) is state


def test_a_step_across_a_boundary_reads_the_shared_state_and_copies_none(
    organization: str,
) -> None:
    engine = engine_of(organization)
    parent = started(engine, 13)
    (child,) = forked(engine, parent, 1)
    child.tokens += [1001, 1002, 1003]
    child.num_forced += 3
    # The child's chunk ends behind 16; the parent still shares its state while that reads it.
    assert engine.grow(child, 4)
    engine.check()
    assert engine.grow(parent)
    engine.step()
    engine.check()
    assert copies(engine) == (1, 1)  # the child's tail; the parent's state


def test_a_new_block_is_the_writers_own(organization: str) -> None:
    engine = engine_of(organization, grid=16)
    parent = started(engine, 8)
    children = forked(engine, parent, 2)
    write(engine, parent, *children)
    pages = [tail_of(engine, branch) for branch in (parent, *children)]
    assert len(set(pages)) == 3 and copies(engine) == (0, 2)


def test_a_fork_of_a_fork_shares_with_both(organization: str) -> None:
    engine = engine_of(organization)
    parent = started(engine, 11)
    (child,) = forked(engine, parent, 1)
    (grandchild,) = forked(engine, child, 1)
    assert state_of(grandchild.sequence).refs == 3
    engine.drop(child)
    write(engine, grandchild, parent)
    assert copies(engine) == (1, 1)


def test_shared_blocks_are_as_many_as_one_prefix_and_no_more(organization: str) -> None:
    # 8 tokens: with D0 four blocks of two, else one block of eight; three branches hold them once.
    engine = engine_of(organization)
    free = engine.memory.cache.attention_pool.num_free
    parent = started(engine, 8)
    forked(engine, parent, 2)
    blocks = 8 // engine.memory.block_size
    states = len(state_of(parent.sequence).pages) + (organization == "s2")
    in_attention_pool = blocks + (states if len(engine.memory.cache.pools) == 1 else 0)
    assert free - engine.memory.cache.attention_pool.num_free == in_attention_pool


# -- what a listed copy protects -------------------------------------------------------------------


def test_a_source_has_no_new_owner_before_its_copies_are_taken(organization: str) -> None:
    engine = engine_of(organization)
    parent = started(engine, 13)
    tail, state = tail_of(engine, parent), state_of(parent.sequence)
    (child,) = forked(engine, parent, 1)
    assert engine.grow(child)
    engine.drop(parent)  # nobody else holds the sources any more
    assert tail not in engine.memory.cache.attention_pool.free_pages() and state.refs == 1
    engine.check()
    engine.step()
    assert tail in engine.memory.cache.attention_pool.free_pages() and state.refs == 0
    engine.check()


def test_a_copy_for_a_branch_that_left_in_the_same_step_is_not_done(organization: str) -> None:
    engine = engine_of(organization)
    parent = started(engine, 13)
    (child,) = forked(engine, parent, 1)
    before = snapshot(engine.memory)["pools"][0]["refs"]
    assert engine.grow(child)
    engine.drop(child)
    engine.step()
    assert copies(engine) == (0, 0)
    assert sum(before) > sum(snapshot(engine.memory)["pools"][0]["refs"])
    write(engine, parent)
    assert copies(engine) == (0, 0)


def test_a_target_that_somebody_shares_is_filled_though_its_first_owner_left(
    organization: str,
) -> None:
    engine = engine_of(organization)
    parent = started(engine, 13)
    (child,) = forked(engine, parent, 1)
    assert engine.make_private(child)
    (grandchild,) = forked(engine, child, 1)
    engine.drop(child)
    write(engine, grandchild)
    assert copies(engine) == (1, 1)


# -- copies beside the steps -----------------------------------------------------------------------


def test_the_table_names_the_target_only_when_the_copy_is_complete(organization: str) -> None:
    engine = engine_of(organization)
    parent = started(engine, 13)
    (child,) = forked(engine, parent, 1)
    tail, state = tail_of(engine, parent), state_of(parent.sequence)
    page_copy, state_copy = engine.begin_copy(child)
    engine.check()
    assert tail_of(engine, child) == tail and child.sequence.state is state
    with pytest.raises(MemoryFault, match="writes while its copy is in flight"):
        engine.memory.extend(child.sequence, 13, 14)
    with pytest.raises(MemoryFault, match="in flight already"):
        engine.memory.branching.begin_copy(child.sequence)
    engine.complete_copy(page_copy)
    engine.check()
    assert (tail_of(engine, child),) == page_copy.target and child.sequence.state is state
    engine.complete_copy(state_copy)
    with pytest.raises(MemoryFault, match="completed but not in flight"):
        engine.memory.branching.complete_copy(state_copy)
    write(engine, child, parent)
    assert copies(engine) == (1, 1)


def test_nobody_writes_a_source_in_place_while_its_copy_is_in_flight(organization: str) -> None:
    engine = engine_of(organization)
    parent = started(engine, 13)
    (child,) = forked(engine, parent, 1)
    in_flight = engine.begin_copy(child)
    write(engine, parent)  # alone with the copies: it copies too
    for copy in in_flight:
        engine.complete_copy(copy)
    write(engine, child)
    assert copies(engine) == (2, 2)


def test_a_source_outlives_both_branches_while_its_copy_is_in_flight(organization: str) -> None:
    engine = engine_of(organization)
    parent = started(engine, 13)
    (child,) = forked(engine, parent, 1)
    in_flight = engine.begin_copy(child)
    engine.drop(child)
    engine.drop(parent)
    engine.check()
    held = {page for copy in in_flight for page in (*copy.source, *copy.target)}
    for pool in engine.memory.cache.pools:  # whoever comes gets none of them
        pool.take(pool.num_free)
    assert all(any(pool.refs[page] for pool in engine.memory.cache.pools) for page in held)
    assert not any(pool.num_free for pool in engine.memory.cache.pools)
    for copy in in_flight:
        engine.complete_copy(copy)
    freed = {page for pool in engine.memory.cache.pools for page in pool.free_pages()}
    assert held <= freed


def test_a_copy_that_has_no_room_does_not_begin(organization: str) -> None:
    engine = engine_of(organization)
    parent = started(engine, 13)
    (child,) = forked(engine, parent, 1)
    crowd(engine, 0, 0)
    before = snapshot(engine.memory)
    with pytest.raises(MemoryFault, match=f"no room for the copies of request {child.name}"):
        engine.memory.branching.begin_copy(child.sequence)
    assert snapshot(engine.memory) == before


def test_a_branch_that_shares_nothing_begins_no_copy(organization: str) -> None:
    engine = engine_of(organization)
    parent = started(engine, 13)
    assert engine.begin_copy(parent) == []
    boundary = started(engine, 16)
    forked(engine, boundary, 1)
    assert engine.begin_copy(boundary) == []


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_tokens", [0, 8, 17, 25])
def test_a_fork_at_a_length_that_the_parent_is_not_at_is_refused(
    organization: str, num_tokens: int
) -> None:
    engine = engine_of(organization)
    parent = started(engine, 13)  # in the second interval, with room up to 16 at most
    child = engine.child_of(parent, 1000)
    before = snapshot(engine.memory)
    with pytest.raises(MemoryFault, match=f"does not stand at {num_tokens} tokens"):
        engine.memory.fork(parent.sequence, child.sequence, num_tokens)
    assert snapshot(engine.memory) == before


def test_a_branch_that_shares_is_at_one_length_only(organization: str) -> None:
    engine = engine_of(organization)
    parent = started(engine, 13)
    (child,) = forked(engine, parent, 1)
    with pytest.raises(MemoryFault, match="does not stand at 12 tokens"):
        engine.memory.fork(child.sequence, engine.child_of(child, 1).sequence, 12)
    with pytest.raises(MemoryFault, match="stands at 13 tokens and cannot continue from 12"):
        engine.memory.extend(child.sequence, 12, 13)


def test_who_does_not_run_is_not_forked(organization: str) -> None:
    engine = engine_of(organization)
    parent = started(engine, 13)
    child = engine.child_of(parent, 1000)
    engine.drop(parent)
    with pytest.raises(MemoryFault, match="does not run and cannot be forked or kept"):
        engine.memory.fork(parent.sequence, child.sequence, 13)


# -- admission -------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_tokens", [10, 12, 15, 16])
def test_admission_keeps_room_for_every_copy_that_is_owed(
    organization: str, num_tokens: int
) -> None:
    # Each child takes a block, its copy of the tail or a new one, and a state. The parent then
    # writes in place, unless its block is full, or its state stands at a boundary.
    engine = engine_of(organization)
    parent = started(engine, num_tokens - 1)
    write(engine, parent)  # gives up the state of the interval before
    memory = engine.memory
    blocks = 2 if num_tokens % memory.block_size else 3
    states = 2 if num_tokens % memory.checkpoint_grid else 3
    crowd(engine, blocks, memory.cache.states.pages_needed(states))
    children = forked(engine, parent, 2)
    write(engine, parent, *children)
    assert free_pages(memory) == [0] * len(memory.cache.pools)


def test_a_fork_without_room_for_its_copies_is_refused(organization: str) -> None:
    for missing in ("attention", "recurrent"):
        engine = engine_of(organization)
        parent = started(engine, 13)
        memory = engine.memory
        attention, recurrent = 2, memory.cache.states.pages_needed(2)
        if missing == "attention":
            crowd(engine, attention - 1, recurrent)
        else:
            crowd(engine, attention, recurrent - 1)
        first = engine.fork(parent, 1000)
        assert first is not None  # one tail and one state
        assert engine.fork(parent, 1001, must_fit=False) is None
        write(engine, parent, first)
        engine.check()


def test_what_running_branches_owe_keeps_others_out(organization: str) -> None:
    engine = engine_of(organization)
    parent = started(engine, 13)
    memory = engine.memory
    forked(engine, parent, 2)
    # Two copies of tail and state are owed; a stranger of one token needs a block and a state.
    crowd(engine, 2, memory.cache.states.pages_needed(3) - 1)
    assert engine.start((7,), must_fit=False) is None


def test_the_last_branch_owes_a_copy_while_a_leaf_or_a_copy_holds_its_place(
    organization: str,
) -> None:
    engine = engine_of(organization, max_leaves=1)
    owed = engine.memory.branching.owed
    parent = started(engine, 13)
    assert owed() == (0, 0)
    (child,) = forked(engine, parent, 1)
    assert owed() == (1, 1)
    in_flight = engine.begin_copy(child)
    assert owed() == (1, 1)  # the child has its pages, and the parent may not write the sources
    for copy in in_flight:
        engine.complete_copy(copy)
    assert owed() == (0, 0)
    engine.drop(child)
    assert engine.keep_leaf(parent)
    assert owed() == (1, 1)


def test_a_write_without_room_for_its_copy_moves_nothing(organization: str) -> None:
    engine = engine_of(organization)
    parent = started(engine, 13)
    (child,) = forked(engine, parent, 1)
    crowd(engine, 0, 0)
    before = snapshot(engine.memory)
    assert not engine.grow(child)
    assert snapshot(engine.memory) == before
    engine.drop(parent)  # the last holder needs no room
    write(engine, child)


# -- the reference ---------------------------------------------------------------------------------


@pytest.mark.parametrize("num_tokens", OFFSETS)
def test_copying_everything_gives_the_same_words_for_more_pages(
    organization: str, num_tokens: int
) -> None:
    sharing, copying = engine_of(organization), engine_of(organization)
    outputs = []
    for engine in (sharing, copying):
        parent = started(engine, num_tokens)
        child = engine.fork(parent, 1000, by_copying=engine is copying)
        assert child is not None
        engine.check()
        for _ in range(9):
            write(engine, parent, child)
        outputs.append((parent.tokens, child.tokens))
    assert outputs[0] == outputs[1]
    blocks = math.ceil(num_tokens / copying.memory.block_size)
    assert copies(copying) == (blocks, 1)
    assert copies(sharing)[0] <= 1 and copies(sharing)[1] <= 1
    saved = sum(free_pages(sharing.memory)) - sum(free_pages(copying.memory))
    assert saved == num_tokens // sharing.memory.block_size


def test_the_reference_without_room_moves_nothing(organization: str) -> None:
    engine = engine_of(organization)
    parent = started(engine, 13)
    crowd(engine, 1, 0)
    before = snapshot(engine.memory)
    assert engine.fork(parent, 1000, must_fit=False, by_copying=True) is None
    assert snapshot(engine.memory) == before


# -- publication -----------------------------------------------------------------------------------


def test_branches_that_meet_again_publish_a_block_each_under_one_key(organization: str) -> None:
    engine = engine_of(organization)
    parent = started(engine, 7)
    child = engine.fork(parent, parent.tokens[7])  # the same continuation
    other = engine.fork(parent, 1000)
    assert child is not None and other is not None
    num_keys = len(engine.memory.cache.block_index.oldest)
    write(engine, parent, child, other)
    index = engine.memory.cache.block_index
    key = parent.sequence.keys.attention[8 // engine.memory.block_size - 1]
    pages = {index.oldest[key], *index.duplicates[key]}
    last = 8 // engine.memory.block_size - 1
    assert pages == {branch.sequence.blocks[last] for branch in (parent, child)}
    assert len(index.oldest) == num_keys + 2  # one for the two, one for the other


def test_a_child_does_not_publish_what_its_parent_has(organization: str) -> None:
    engine = engine_of(organization)
    parent = started(engine, 21)
    num_entries = len(engine.memory.cache.block_index)
    (child,) = forked(engine, parent, 1)
    full = 21 // engine.memory.block_size
    assert child.sequence.num_published_blocks == full
    write(engine, parent, child)
    assert not engine.memory.cache.block_index.duplicates
    grown = 22 // engine.memory.block_size - full  # D0 completes a block each
    assert len(engine.memory.cache.block_index) == num_entries + 2 * grown


def test_what_a_branch_goes_on_from_is_not_withdrawn_with_its_producer(organization: str) -> None:
    # The fork is scheduled behind the step that computes 8 to 16, as an asynchronous engine does;
    # then the parent is cancelled, and that step does not count for it any more.
    engine = engine_of(organization)
    memory = engine.memory
    parent = engine.start(CONTEXT[:16])
    assert parent is not None and engine.grow(parent, 8)
    engine.step()
    assert engine.grow(parent, 8)
    engine.step()
    child = engine.child_of(parent, 1000)
    memory.fork(parent.sequence, child.sequence, 16)
    num_entries = len(memory.cache.block_index), len(memory.cache.checkpoint_index)
    memory.release(parent.sequence, 8)
    assert (len(memory.cache.block_index), len(memory.cache.checkpoint_index)) == num_entries
    memory.release(child.sequence, 16)
    memory.check_integrity()
    assert all_free(memory)


# -- beams -----------------------------------------------------------------------------------------


def beams_of(engine: BranchEngine, root: ToyBranch) -> tuple[Beams, dict[str | int, ToyBranch]]:
    return Beams(engine.memory, root.sequence, root.computed), {root.name: root}


def reorder(
    engine: BranchEngine,
    beams: Beams,
    known: dict[str | int, ToyBranch],
    parents: Sequence[int],
    tokens: Sequence[int],
) -> None:
    """Reorder, and give every heir the token that it was chosen for."""
    forks: list[tuple[ToyBranch, ToyBranch]] = []

    def child(beam: Beam) -> SequenceMemory:
        parent = known[beam.sequence.request_id]
        branch = engine.child_of(parent, -1)
        known[branch.name] = branch
        forks.append((parent, branch))
        return branch.sequence

    before = [beam.sequence.request_id for beam in beams.beams]
    beams.reorder(parents, [-float(token) for token in tokens], child)
    for parent, branch in forks:
        engine.forked(parent, branch)
    kept = {beam.sequence.request_id for beam in beams.beams}
    for name in before:
        if name not in kept:
            engine.left(known[name])
    for beam, token in zip(beams.beams, tokens, strict=True):
        branch = known[beam.sequence.request_id]
        branch.tokens[branch.computed :] = [token]
        branch.num_forced = len(branch.tokens)
    engine.check()


def decode(engine: BranchEngine, beams: Beams, known: dict[str | int, ToyBranch]) -> None:
    write(engine, *(known[beam.sequence.request_id] for beam in beams.beams))
    for beam in beams.beams:
        beam.num_tokens += 1


def test_crossed_beams_go_on_from_their_own_parents(organization: str) -> None:
    # Parents [1, 0]: the beams change places; a state that stayed behind would not commute.
    engine = engine_of(organization)
    beams, known = beams_of(engine, started(engine, 11))
    reorder(engine, beams, known, [0, 0], [1, 2])
    decode(engine, beams, known)
    first, second = (known[beam.sequence.request_id] for beam in beams.beams)
    reorder(engine, beams, known, [1, 0], [3, 4])
    decode(engine, beams, known)
    assert (second.tokens[11:13], first.tokens[11:13]) == ([2, 3], [1, 4])
    assert copies(engine) == (1, 1)  # at the fork; a reorder that drops nobody copies nothing


def test_heirs_of_one_beam_copy_and_the_others_are_pruned(organization: str) -> None:
    engine = engine_of(organization)
    beams, known = beams_of(engine, started(engine, 11))
    reorder(engine, beams, known, [0, 0, 0], [1, 2, 3])
    decode(engine, beams, known)
    assert copies(engine) == (2, 2)
    reorder(engine, beams, known, [1, 1, 1], [4, 5, 6])
    assert len(engine.branches) == 3
    decode(engine, beams, known)
    # 12 tokens: D0's tail of two tokens is full, the others copy theirs twice more.
    assert copies(engine) == (2 + 2 * (12 % engine.memory.block_size > 0), 4)
    beams.prune(0)
    beams.cancel()
    assert all_free(engine.memory)


def test_a_reorder_of_what_is_not_there_moves_nothing(organization: str) -> None:
    engine = engine_of(organization)
    beams, known = beams_of(engine, started(engine, 11))
    before = snapshot(engine.memory)
    with pytest.raises(ValueError, match="parents must be beams 0 to 0, got 1"):
        reorder(engine, beams, known, [0, 1], [1, 2])
    with pytest.raises(ValueError, match="2 parents need as many scores, got 1"):
        beams.reorder([0, 0], [0.0], lambda beam: beam.sequence)
    assert snapshot(engine.memory) == before


def test_the_length_penalty_counts_output_tokens_only(organization: str) -> None:
    # Prompt of 1,000; -2.0 / 2^1.1 = -0.933 and -3.0 / 4^1.1 = -0.653: the longer beam leads. Over
    # prompt and output, -2.0 / 1002^1.1 would lead -3.0 / 1004^1.1.
    sequences = [
        SequenceMemory(request_id=name, keys=NO_KEYS, num_prompt_tokens=1000)
        for name in ("short", "long")
    ]
    memory = toy_memory(organization, 120)
    beams = Beams(memory, sequences[0], 1002)
    beams.beams = [
        Beam(sequence=sequences[0], num_tokens=1002, score=-2.0),
        Beam(sequence=sequences[1], num_tokens=1004, score=-3.0),
    ]
    assert [beam.sequence.request_id for beam in beams.ranked(1.1)] == ["long", "short"]
    assert beams.ranked(0.0)[0].sequence.request_id == "short"


def scored_beams(*beams: tuple[str, int, float]) -> Beams:
    """Beams after a prompt of ten tokens, by name, computed tokens and score."""
    found = [
        Beam(
            sequence=SequenceMemory(request_id=name, keys=NO_KEYS, num_prompt_tokens=10),
            num_tokens=num_tokens,
            score=score,
        )
        for name, num_tokens, score in beams
    ]
    search = Beams(toy_memory("s0", 120), found[0].sequence, found[0].num_tokens)
    search.beams = found
    return search


@pytest.mark.parametrize("num_tokens", [10, 8])
def test_a_beam_without_output_ranks_by_its_score(num_tokens: int) -> None:
    # By 2 ^ 0.5 the others have -1.41 and -0.71: -1.0 stands between them.
    search = scored_beams(("bad", 12, -2.0), ("empty", num_tokens, -1.0), ("good", 12, -1.0))
    ranked = [beam.sequence.request_id for beam in search.ranked(0.5)]
    assert ranked == ["good", "empty", "bad"]


def test_beams_of_equal_rank_keep_their_order() -> None:
    search = scored_beams(("a", 11, -1.0), ("b", 10, -1.0), ("c", 11, -1.0))
    assert [beam.sequence.request_id for beam in search.ranked(1.0)] == ["a", "b", "c"]


def test_a_beam_whose_score_is_no_number_is_refused_by_its_place() -> None:
    search = scored_beams(("a", 12, -1.0), ("b", 12, float("nan")), ("c", 12, -2.0))
    with pytest.raises(ValueError, match="the score of beam 1 must be a number, got nan"):
        search.ranked(1.0)
    search.beams[1].score = -float("inf")  # probability 0
    assert [beam.sequence.request_id for beam in search.ranked(1.0)] == ["a", "c", "b"]


def test_a_reorder_with_a_score_that_is_no_number_moves_nothing(organization: str) -> None:
    engine = engine_of(organization)
    beams, _ = beams_of(engine, started(engine, 11))
    before = snapshot(engine.memory)
    with pytest.raises(ValueError, match="the score of beam 1 must be a number, got nan"):
        beams.reorder([0, 0], [0.0, float("nan")], lambda beam: beam.sequence)
    assert snapshot(engine.memory) == before
    assert [beam.score for beam in beams.beams] == [0.0]


# -- groups that end apart -------------------------------------------------------------------------


def test_a_group_that_is_aborted_in_decode_leaves_the_pool_as_it_was(organization: str) -> None:
    engine = engine_of(organization)
    before = [set(queue_of(pool)) for pool in engine.memory.cache.pools]
    parent = started(engine, 13)
    branches = [parent, *forked(engine, parent, 2)]
    write(engine, *branches)
    assert engine.grow(branches[0]) and engine.grow(branches[2])  # within the next step
    for branch in branches:
        engine.drop(branch)
    assert [set(queue_of(pool)) for pool in engine.memory.cache.pools] == before
    engine.check()


def test_a_preempted_branch_comes_back_though_its_sibling_has_finished(organization: str) -> None:
    engine = engine_of(organization)
    parent = started(engine, 13)
    (child,) = forked(engine, parent, 1)
    write(engine, parent, child)
    known = list(child.tokens)
    engine.drop(parent)
    engine.preempt(child)
    engine.check()
    resumed = engine.start(known)
    assert resumed is not None and resumed.computed == 8  # its prefix is cached
    while resumed.computed < len(known):
        assert engine.grow(resumed, 8 - resumed.computed % 8)
        engine.step()
        engine.check()
    assert resumed.tokens[len(known)] == next_token(known)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_tenants_share_nothing_in_whatever_order_they_write(
    organization: str, order: tuple[int, ...]
) -> None:
    engine = engine_of(organization)
    families = []
    for salt in (None, "one", "two"):
        parent = started(engine, 13, salt=salt)
        assert parent.computed == 13
        families.append([parent, *forked(engine, parent, 1)])
    pages = [set(family[0].sequence.blocks) for family in families]
    assert not (pages[0] & pages[1] or pages[1] & pages[2] or pages[0] & pages[2])
    for _ in range(4):
        write(engine, *(branch for place in order for branch in families[place]))
    assert copies(engine) == (3, 3)


# -- leaves ----------------------------------------------------------------------------------------


def kept(engine: BranchEngine, num_tokens: int, *, salt: str | None = None) -> tuple[int, ...]:
    """A request that finished there and left a leaf; its tokens."""
    branch = started(engine, num_tokens, salt=salt)
    engine.drop(branch, leaf=True)
    engine.step()
    engine.check()
    return CONTEXT[:num_tokens]


@pytest.mark.parametrize("num_tokens", [n for n in OFFSETS if n % 8])
def test_a_request_goes_on_from_a_finished_one_at_any_length(
    organization: str, num_tokens: int
) -> None:
    engine = engine_of(organization, max_leaves=1)
    tokens = kept(engine, num_tokens)
    children = [engine.start_from_leaf(tokens, token) for token in (1, 2)]
    for child in children:
        assert child is not None and child.computed == num_tokens
        write(engine, child)
    # The leaf stays, so that every child copies.
    assert copies(engine) == (2 * (num_tokens % engine.memory.block_size > 0), 2)
    for _ in range(9):
        write(engine, *(child for child in children if child is not None))


def test_the_ordinary_lookup_finds_what_ended_at_a_boundary(organization: str) -> None:
    engine = engine_of(organization, max_leaves=1)
    tokens = kept(engine, 16)
    assert engine.start_from_leaf(tokens, 1) is None
    child = engine.start((*tokens, 1))
    assert child is not None and child.computed == 16


def test_a_leaf_is_of_exactly_its_tokens_and_its_tenant(organization: str) -> None:
    engine = engine_of(organization, max_leaves=4)
    for num_tokens in (5, 13):  # without and with a full block
        tokens = kept(engine, num_tokens, salt="one")
        assert engine.start_from_leaf(tokens, 1, salt=None) is None
        assert engine.start_from_leaf(tokens, 1, salt="two") is None
        assert engine.start_from_leaf(tokens[:-1], 1, salt="one") is None
        assert engine.start_from_leaf((*tokens[:-1], 7), 1, salt="one") is None
        assert engine.start_from_leaf(tokens, 1, salt="one") is not None


def test_no_more_leaves_are_kept_than_are_allowed(organization: str) -> None:
    engine = engine_of(organization, max_leaves=2)
    tokens = [kept(engine, num_tokens) for num_tokens in (5, 13, 21)]
    found = [engine.start_from_leaf(each, 1) is not None for each in tokens]
    assert found == [False, True, True]
    none = engine_of(organization, max_leaves=0)
    assert none.start_from_leaf(kept(none, 5), 1) is None
    assert all_free(none.memory) and len(none.memory.cache.checkpoint_index) == 0


def test_a_leaf_gives_way_to_any_other_need(organization: str) -> None:
    engine = engine_of(organization, max_leaves=1)
    tokens = kept(engine, 13)
    assert all_free(engine.memory)
    for pool in engine.memory.cache.pools:
        free_last(pool, pool.take(pool.num_free))
    engine.memory.check_integrity()
    assert engine.start_from_leaf(tokens, 1) is None


def test_no_leaf_is_kept_of_words_that_are_yet_to_be_copied(organization: str) -> None:
    engine = engine_of(organization, max_leaves=1)
    parent = started(engine, 13)
    (child,) = forked(engine, parent, 1)
    assert engine.make_private(child)
    assert not engine.keep_leaf(child)
    engine.drop(child, leaf=True)  # its copies are not done, and nothing of it is left
    engine.step()
    engine.check()
    assert copies(engine) == (0, 0)
    assert engine.start_from_leaf(CONTEXT[:13], 1) is None


def test_half_a_leaf_is_none(organization: str) -> None:
    for part in ("tail", "state", "block"):
        engine = engine_of(organization, max_leaves=1)
        parent = started(engine, 13)
        page = {
            "tail": tail_of(engine, parent),
            "block": parent.sequence.blocks[0],
            "state": state_of(parent.sequence).pages[-1],
        }[part]
        pool = (
            engine.memory.cache.states.pool
            if part == "state"
            else engine.memory.cache.attention_pool
        )
        engine.drop(parent, leaf=True)
        engine.step()
        put_first(pool, page)
        free_last(pool, pool.take(1))
        engine.memory.check_integrity()
        assert engine.start_from_leaf(CONTEXT[:13], 1) is None
        # The same request again leaves a whole one.
        again = started(engine, 13)
        engine.drop(again, leaf=True)
        engine.step()
        assert engine.start_from_leaf(CONTEXT[:13], 1) is not None


def test_a_leaf_gives_way_to_its_only_user_when_there_is_no_room(organization: str) -> None:
    engine = engine_of(organization, max_leaves=1)
    tokens = kept(engine, 13)
    child = engine.start_from_leaf(tokens, 1)
    assert child is not None
    crowd(engine, 0, 0)
    write(engine, child)
    assert copies(engine) == (0, 0)
    assert engine.start_from_leaf(tokens, 2) is None


def test_a_reset_of_the_cache_takes_the_leaves_along(organization: str) -> None:
    engine = engine_of(organization, max_leaves=1)
    tokens = kept(engine, 13)
    engine.memory.cache.reset()
    engine.check()
    assert engine.start_from_leaf(tokens, 1) is None


def test_a_running_request_leaves_a_restart_point_behind(organization: str) -> None:
    engine = engine_of(organization, max_leaves=1)
    parent = started(engine, 13)
    assert engine.keep_leaf(parent)
    engine.check()
    assert engine.start_from_leaf(CONTEXT[:13], 1) is None  # usable from the next step on
    write(engine, parent)
    assert copies(engine) == (1, 1)  # the leaf is a holder
    child = engine.start_from_leaf(CONTEXT[:13], 1)
    assert child is not None
    write(engine, parent, child)
    assert copies(engine) == (2, 2)


def reuse_empty_pages_first(engine: BranchEngine) -> None:
    """Whatever the release order says: so that nothing cached is lost while there are others."""
    for pool in engine.memory.cache.pools:
        for page in list(pool.free_pages()):
            if pool.entries[page] is not None:
                put_last(pool, page)


def test_a_leaf_waits_for_a_block_before_it_that_is_computed_again(organization: str) -> None:
    engine = engine_of(organization, max_leaves=1)
    parent = started(engine, 13)
    page, pool = parent.sequence.blocks[0], engine.memory.cache.attention_pool
    engine.drop(parent, leaf=True)
    engine.step()
    reuse_empty_pages_first(engine)
    put_first(pool, page)
    free_last(pool, pool.take(1))
    again = engine.start(CONTEXT[:9])
    assert again is not None and engine.grow(again, 8)
    engine.check()
    # The block has its key by now, and its words when the step is over.
    assert engine.start_from_leaf(CONTEXT[:13], 1) is None
    engine.step()
    child = engine.start_from_leaf(CONTEXT[:13], 1)
    assert child is not None
    write(engine, child)


def test_the_deepest_leaf_within_a_text_is_found(organization: str) -> None:
    engine = engine_of(organization, max_leaves=5)
    text, other = [*CONTEXT[:21], 7], [*CONTEXT[:12], 7, 7, 7]

    def deepest(tokens: list[int], num_tokens: int, salt: str | None = "one") -> int | None:
        branch = engine.new_branch(tokens, salt)
        hit = engine.memory.branching.leaves.find_deepest(
            branch.sequence, tokens, num_tokens=num_tokens, salt=salt
        )
        return None if hit is None else hit.tokens

    for num_tokens in (13, 5, 21):
        kept(engine, num_tokens, salt="one")
        reuse_empty_pages_first(engine)
    kept(engine, 15, salt="two")
    assert [deepest(text, limit) for limit in (22, 21, 20, 13, 12, 5, 4)] == [
        *(21, 21, 13, 13, 5, 5, None)
    ]
    assert deepest(other, 15) == 5  # the other one is of 13 tokens, of which the last is not here
    assert deepest(text, 22, salt="two") == 15 and deepest(text, 22, salt=None) is None
    engine.memory.cache.reset()
    assert deepest(text, 22) is None


def test_a_full_copy_names_the_valid_tokens_of_each_block() -> None:
    memory = toy_memory("s1", 60)
    parent, child = (toy_sequence(memory, name) for name in ("parent", "child"))
    admit(memory, parent, 20)
    run_steps(memory, parent, 8, 16, 20)
    assert memory.fork_by_copying(parent, child, 20)
    copies = memory.take_copies()
    assert [copy.num_tokens for copy in copies if copy.kind == "attention"] == [8, 8, 4]
    assert [copy.num_tokens for copy in copies if copy.kind == "state"] == [20]
