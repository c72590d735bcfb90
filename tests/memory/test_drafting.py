"""Drafts over a hybrid state: what is accepted stays, and nothing else leaves a trace.

Greedy verification of an integer-exact model, so that any difference is logic. After every pass
state, convolution window, KV and tokens are those of a replay (`BranchEngine.check`).
"""

import pytest
from toy_branches import BranchEngine, ToyBranch, next_token, replay
from toy_memory import WHOLE_PAGES, all_free, leave_free, snapshot, state_of, toy_memory

from hsexp.memory import MemoryFault
from hsexp.memory.sequence import Hit

CONTEXT = tuple(range(100, 140))
MISS = Hit(tokens=0)
WRONG = 5
"""A token that the model never says here."""
MAX_DRAFTS = 4


@pytest.fixture(params=WHOLE_PAGES)
def organization(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def engine_of(organization: str, *, num_pages: int = 80, grid: int = 8) -> BranchEngine:
    return BranchEngine(
        toy_memory(organization, num_pages, num_states=20, grid=grid, max_drafts=MAX_DRAFTS)
    )


def started(engine: BranchEngine, num_tokens: int) -> ToyBranch:
    branch = engine.start(CONTEXT[:num_tokens])
    assert branch is not None
    while branch.computed < num_tokens:
        grid = engine.memory.checkpoint_grid
        assert engine.grow(branch, grid - branch.computed % grid)
        engine.step()
    return branch


def continuation(branch: ToyBranch, num_tokens: int) -> list[int]:
    """What the model says behind the branch's tokens."""
    said = list(branch.tokens)
    for _ in range(num_tokens):
        said.append(next_token(said))
    return said[len(branch.tokens) :]


def speculate(engine: BranchEngine, branch: ToyBranch, *, num_right: int, num_drafts: int) -> int:
    """One pass of which the first drafts are right. Returns the tokens that it yields."""
    before = len(branch.tokens)
    drafts = [*continuation(branch, num_right), *[WRONG] * (num_drafts - num_right)]
    assert engine.speculate(branch, drafts)
    engine.check()
    engine.step()
    engine.check()
    return len(branch.tokens) - before


@pytest.mark.parametrize("num_tokens", range(3, 20))
@pytest.mark.parametrize("num_right", range(MAX_DRAFTS + 1))
def test_a_pass_keeps_what_is_accepted_wherever_it_ends(
    organization: str, num_tokens: int, num_right: int
) -> None:
    # The last known token is at `num_tokens`; drafts end with the next multiple of 8 at the latest.
    engine = engine_of(organization)
    branch = started(engine, num_tokens)
    room = -(num_tokens + 1) % 8
    yielded = speculate(engine, branch, num_right=num_right, num_drafts=MAX_DRAFTS)
    assert yielded == min(num_right, room, MAX_DRAFTS) + 1
    for _ in range(3):  # the next passes start from there
        speculate(engine, branch, num_right=2, num_drafts=3)
    assert branch.tokens[num_tokens:] == continuation_of(num_tokens, len(branch.tokens))
    engine.drop(branch)
    engine.check()
    assert all_free(engine.memory)


def continuation_of(num_prompt_tokens: int, end: int) -> list[int]:
    """Greedy decoding of the prompt, without any memory."""
    tokens = list(CONTEXT[:num_prompt_tokens])
    while len(tokens) < end:
        tokens.append(next_token(tokens))
    return tokens[num_prompt_tokens:]


def test_a_rejected_draft_is_neither_in_the_state_nor_in_the_window(organization: str) -> None:
    engine = engine_of(organization)
    branch = started(engine, 9)
    state_before = state_of(branch.sequence)
    speculate(engine, branch, num_right=1, num_drafts=3)
    # 10 known tokens and one accepted draft, which the next pass computes again.
    assert branch.computed == 10 and len(branch.tokens) == 12
    assert engine.physical.read_state(state_before) == replay(branch.tokens[:10])[0]
    speculate(engine, branch, num_right=0, num_drafts=1)
    assert branch.computed == 12
    now = engine.physical.read_state(state_of(branch.sequence))
    assert now == replay(branch.tokens[:12])[0]
    assert now.window == tuple(branch.tokens[9:12])


def test_no_draft_accepted_leaves_the_state_before_and_the_known_token(organization: str) -> None:
    engine = engine_of(organization)
    branch = started(engine, 9)
    known = branch.tokens[9]
    assert speculate(engine, branch, num_right=0, num_drafts=4) == 1
    expected = replay(CONTEXT[:9])[0].after(known)
    assert engine.physical.read_state(state_of(branch.sequence)) == expected


def test_all_drafts_accepted_make_the_scratch_the_state(organization: str) -> None:
    engine = engine_of(organization)
    branch = started(engine, 9)
    assert engine.speculate(branch, continuation(branch, 4))
    scratch, state = branch.sequence.scratch, state_of(branch.sequence)
    engine.step()
    engine.check()
    assert branch.sequence.state is scratch and branch.computed == 14
    assert state.refs == 0 and branch.sequence.scratch is None


def test_drafting_yields_what_plain_decoding_does(organization: str) -> None:
    # Passes of 0 to 3 right drafts over three blocks, boundaries crossed in the middle of passes.
    engine = engine_of(organization, grid=16)
    branch = started(engine, 5)
    for num_right in (3, 0, 2, 1, 3, 3, 0, 1, 2, 3, 0, 3, 3, 2):
        speculate(engine, branch, num_right=num_right, num_drafts=3)
    assert len(branch.tokens) > 32
    assert branch.tokens[5:] == continuation_of(5, len(branch.tokens))
    assert engine.num_copies == {}  # out of place: no copy


@pytest.mark.parametrize("num_accepted", [-1, 4])
def test_more_than_was_drafted_is_never_accepted(organization: str, num_accepted: int) -> None:
    engine = engine_of(organization)
    branch = started(engine, 9)
    assert engine.speculate(branch, [WRONG] * 3)
    with pytest.raises(MemoryFault, match=f"accepts {num_accepted} of 3 drafts"):
        engine.memory.drafting.settle(branch.sequence, 10, num_drafts=3, num_accepted=num_accepted)


def test_a_pass_is_drafted_and_settled_once(organization: str) -> None:
    engine = engine_of(organization)
    branch = started(engine, 9)
    drafting = engine.memory.drafting
    with pytest.raises(MemoryFault, match="settles a pass without drafts"):
        drafting.settle(branch.sequence, 9, num_drafts=1, num_accepted=0)
    assert engine.speculate(branch, [WRONG])
    with pytest.raises(MemoryFault, match="drafts before its pass is settled"):
        drafting.draft(branch.sequence, 10, 1)


def test_drafts_end_at_the_next_boundary(organization: str) -> None:
    engine = engine_of(organization)
    branch = started(engine, 9)
    drafting = engine.memory.drafting
    assert [drafting.num_drafts(known) for known in (9, 12, 13, 15, 16)] == [4, 4, 3, 1, 0]
    for num_drafts in (0, 4):
        with pytest.raises(
            MemoryFault, match=f"may draft 1 to 3 tokens behind 13, not {num_drafts}"
        ):
            drafting.draft(branch.sequence, 13, num_drafts)


def test_a_boundary_that_drafts_reach_is_published_once_they_are_accepted(
    organization: str,
) -> None:
    engine = engine_of(organization)
    branch = started(engine, 12)
    assert engine.speculate(branch, continuation(branch, 3))
    key = (None, *branch.tokens, *branch.drafts)
    assert len(key) == 1 + 16
    assert key not in engine.memory.cache.checkpoint_index.oldest
    engine.step()
    engine.check()
    assert engine.memory.cache.checkpoint_index.oldest[key] is branch.sequence.state
    engine.step()
    follower = engine.start([*branch.tokens[:16], 7])
    assert follower is not None and follower.computed == 16


def test_a_block_of_rejected_drafts_gets_no_key(organization: str) -> None:
    engine = engine_of(organization, grid=16)
    branch = started(engine, 5)
    entries = len(engine.memory.cache.block_index)
    assert engine.speculate(branch, [WRONG] * 4)  # tokens 6 to 10: a block ends at 8
    in_passing = 6 // engine.memory.block_size - 5 // engine.memory.block_size
    assert len(engine.memory.cache.block_index) == entries + in_passing
    engine.step()
    engine.check()
    assert len(engine.memory.cache.block_index) == entries + in_passing


def test_without_room_for_drafts_the_pass_is_an_ordinary_step(organization: str) -> None:
    engine = engine_of(organization)
    branch = started(engine, 10)
    assert engine.grow(branch)
    # From 11 to 15 tokens: two blocks of D0, whose states have a pool of their own; else none.
    leave_free(
        engine.memory, 2 * (organization == "d0"), engine.memory.cache.states.pages_needed(1) - 1
    )
    before = snapshot(engine.memory)
    assert not engine.memory.drafting.draft(branch.sequence, 11, 4)
    assert snapshot(engine.memory) == before
    engine.is_crowded = True
    engine.step()
    engine.check()
    assert branch.computed == 11


@pytest.mark.parametrize("accepts", [False, True])
def test_a_request_that_goes_within_a_pass_takes_its_scratch_along(
    organization: str, accepts: bool
) -> None:
    engine = engine_of(organization)
    branch = started(engine, 9)
    assert engine.speculate(branch, continuation(branch, 4))
    if accepts:
        engine.step()
    engine.preempt(branch)
    engine.check()
    assert all_free(engine.memory)


def test_admission_counts_a_scratch_state_and_the_drafts_blocks(organization: str) -> None:
    engine = engine_of(organization)
    memory = engine.memory
    with_drafts, without = (
        memory.admission_need(MISS, 15, with_drafts=with_drafts) for with_drafts in (True, False)
    )
    blocks = -(-19 // memory.block_size) - -(-15 // memory.block_size)  # 15 tokens and 4 drafts
    states = memory.cache.states.pages_needed(2) - memory.cache.states.pages_needed(1)
    assert sum(with_drafts) - sum(without) == blocks + states
    # Alone a request comes in without room for drafts, or it never would.
    tight = BranchEngine(
        toy_memory(organization, sum(without[:1]), num_states=without[-1], max_drafts=MAX_DRAFTS)
    )
    branch = tight.new_branch(CONTEXT[:15])
    assert tight.memory.refusal(branch.sequence, MISS, 15, nothing_runs=False) is not None
    assert tight.memory.refusal(branch.sequence, MISS, 15, nothing_runs=True) is None


def test_a_branch_drafts_behind_what_it_shares(organization: str) -> None:
    engine = engine_of(organization)
    parent = started(engine, 10)
    child = engine.fork(parent, 1000)
    assert child is not None
    for _ in range(4):
        speculate(engine, parent, num_right=1, num_drafts=2)
        speculate(engine, child, num_right=2, num_drafts=2)
    tail = 10 % engine.memory.block_size > 0
    assert (engine.num_copies["attention"], engine.num_copies["state"]) == (tail, 1)


def test_a_fork_between_passes_leaves_the_parents_lead_alone(organization: str) -> None:
    # The parent has accepted tokens behind its state; the child starts from the state.
    engine = engine_of(organization)
    parent = started(engine, 9)
    speculate(engine, parent, num_right=2, num_drafts=3)
    assert (parent.computed, len(parent.tokens)) == (10, 13)
    child = engine.fork(parent, 1000)
    assert child is not None
    engine.check()
    for _ in range(5):
        speculate(engine, child, num_right=1, num_drafts=3)
        speculate(engine, parent, num_right=0, num_drafts=3)


def test_blocks_that_a_child_counts_as_published_have_their_keys(organization: str) -> None:
    # 6 known tokens and 4 accepted drafts: a block ends behind the known ones, without a key yet.
    engine = engine_of(organization, grid=16)
    parent = started(engine, 5)
    speculate(engine, parent, num_right=4, num_drafts=4)
    assert parent.computed == 10
    key = parent.sequence.keys.attention[10 // engine.memory.block_size - 1]
    assert key not in engine.memory.cache.block_index.oldest
    child = engine.fork(parent, 1000)
    assert child is not None
    assert key in engine.memory.cache.block_index.oldest
    engine.check()
    engine.drop(parent)
    speculate(engine, child, num_right=2, num_drafts=3)
