"""Ranked orders of eviction, class by class, on memories that can be counted by hand."""

import itertools
from collections.abc import Hashable

import pytest
from toy_memory import (
    EVICTIONS,
    MISS,
    RANKED,
    admit,
    compute,
    leave_cached,
    queue_of,
    run_steps,
    toy_memory,
    toy_sequence,
)

from hsexp.memory import HybridMemory, PagePool
from hsexp.memory.checkpoint import Checkpoint, Slab
from hsexp.memory.policies.eviction.ranked import Ranking
from hsexp.memory.prefixes import Demand, Restart


def order_of(pool: PagePool) -> list[str]:
    """What the free pages cache, the next to go first; pages that cache nothing are "-"."""

    def name(entry: object) -> str:
        if entry is None:
            return "-"
        if isinstance(entry, Slab):
            return "slab"
        if isinstance(entry, Checkpoint):
            return f"state {_name(entry.key)}"
        return f"block {_name(entry)}"

    names = [name(pool.entries[page]) for page in queue_of(pool)]
    return [name for name, _ in itertools.groupby(names)]


def _name(key: object) -> str:
    assert isinstance(key, tuple)
    return f"{key[1]}{key[2]}"


def shared_order(memory: HybridMemory) -> list[str]:
    (pool,) = memory.cache.pools
    return order_of(pool)


def ranking_of(memory: HybridMemory) -> Ranking:
    assert isinstance(memory.cache.prefixes, Ranking)
    return memory.cache.prefixes


def restart_of(memory: HybridMemory, key: Hashable) -> Restart:
    return ranking_of(memory).found[key]


def ask(memory: HybridMemory, request_id: str, num_tokens: int, content: str) -> None:
    """A request joins the queue, and nothing more."""
    memory.enter(toy_sequence(memory, request_id, num_tokens, content=content), num_tokens)


# -- the classes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("eviction", RANKED)
def test_of_one_prefix_the_shallower_checkpoint_goes_first_and_then_one_object(
    eviction: str,
) -> None:
    """Nobody could need the state at 8: whoever asked for it asked for the one at 16."""
    memory = toy_memory("s0", 12, eviction=eviction)
    leave_cached(memory, "a", 17)  # blocks at 8 and 16, states at 8 and 16, and plain ones at 17
    assert shared_order(memory) == ["-", "state X8", "state X16", "block X16", "block X8"]


@pytest.mark.parametrize("eviction", RANKED)
def test_what_more_requests_asked_for_is_not_replaced_by_a_deeper_checkpoint(
    eviction: str,
) -> None:
    memory = toy_memory("s0", 20, eviction=eviction)
    for name in ("a", "b"):
        leave_cached(memory, name, 17, shared=8)
    assert [name for name in shared_order(memory) if name != "-"] == [
        "block X8", "state X8",  # duplicates
        "state a16", "block a16", "state b16", "block b16",  # each asked for once
        "state X8", "block X8",
    ]  # fmt: skip


@pytest.mark.parametrize("eviction", RANKED)
def test_attention_behind_the_deepest_checkpoint_goes_before_it_the_deepest_first(
    eviction: str,
) -> None:
    memory = toy_memory("s0", 20, grid=16, eviction=eviction)
    # Chunks end at 16 and at 31: the block at 24 is cached, and no state behind 16.
    sequence = toy_sequence(memory, "a", 33)
    memory.admit(sequence, MISS)
    run_steps(memory, sequence, 16, 33)
    memory.release(sequence, 33)
    assert shared_order(memory) == [
        "-", "block X32", "block X24", "state X16", "block X16", "block X8",
    ]  # fmt: skip


@pytest.mark.parametrize("eviction", RANKED)
def test_attention_of_a_proven_prefix_outlives_a_useless_checkpoint(eviction: str) -> None:
    memory = toy_memory("s0", 20, grid=16, eviction=eviction)
    for name in ("x", "y"):
        ask(memory, name, 33, "X")
    sequence = toy_sequence(memory, "a", 33)
    memory.admit(sequence, MISS)
    run_steps(memory, sequence, 33)  # one chunk: it leaves no state at 32
    memory.release(sequence, 33)
    leave_cached(memory, "b", 33, content="Y")  # states at 16 and 32, of which the first is useless
    assert shared_order(memory) == [
        "-", "state Y16", "block X32", "block X24", "block X16", "block X8",
        "state Y32", "block Y32", "block Y24", "block Y16", "block Y8",
    ]  # fmt: skip


@pytest.mark.parametrize("eviction", RANKED)
def test_a_proven_restart_point_outlives_a_younger_one_that_is_not(eviction: str) -> None:
    memory = toy_memory("s0", 20, eviction=eviction)
    leave_cached(memory, "a", 9)
    leave_cached(memory, "b", 9, content="Y")
    assert shared_order(memory)[1:] == ["state X8", "block X8", "state Y8", "block Y8"]
    ask(memory, "waits", 9, "X")
    assert shared_order(memory)[1:] == ["state Y8", "block Y8", "state X8", "block X8"]


def test_a_hit_makes_a_restart_point_the_last_to_go() -> None:
    memory = toy_memory("s0", 20, eviction="restart_point")
    for content in ("X", "Y"):
        leave_cached(memory, content, 9, content=content)
        ask(memory, f"{content} again", 9, content)
    assert shared_order(memory)[1:] == ["state X8", "block X8", "state Y8", "block Y8"]
    hit = toy_sequence(memory, "hit", 9)
    assert admit(memory, hit, 9) == 8
    memory.release(hit, 8)
    assert shared_order(memory)[1:] == ["state Y8", "block Y8", "state X8", "block X8"]


@pytest.mark.parametrize("eviction", RANKED)
def test_a_checkpoint_with_incomplete_attention_is_useless(eviction: str) -> None:
    memory = toy_memory("s0", 20, eviction=eviction)
    leave_cached(memory, "a", 25)
    pool = memory.cache.attention_pool
    middle = memory.cache.block_index.oldest[(None, "X", 16)]
    memory.cache.lose(pool, middle, pool.entries[middle], cause="reset")
    # The states at 16 and 24 are out of reach, the block at 24 supports nothing, and the state at 8
    # is the deepest one that can be found.
    assert shared_order(memory) == [
        "-", "block X24", "state X16", "state X24", "state X8", "block X8",
    ]  # fmt: skip
    memory.check_integrity()


@pytest.mark.parametrize("eviction", RANKED)
def test_a_duplicate_takes_the_place_of_the_block_that_is_lost(eviction: str) -> None:
    memory = toy_memory("s0", 20, eviction=eviction)
    for name in ("a", "b"):
        leave_cached(memory, name, 9)
    pool = memory.cache.attention_pool
    oldest = memory.cache.block_index.oldest[(None, "X", 8)]
    memory.cache.lose(pool, oldest, pool.entries[oldest], cause="reset")
    assert shared_order(memory) == ["-", "state X8", "block X8"]  # both states, then the block
    memory.check_integrity()


@pytest.mark.parametrize("eviction", RANKED)
def test_attention_of_a_checkpoint_in_use_goes_last(eviction: str) -> None:
    """A pin holds a state, and not its attention."""
    memory = toy_memory("s0", 20, pinning=1, eviction=eviction)
    memory.preempt(compute(memory, "a", 9), 9)
    leave_cached(memory, "b", 9, content="Y")
    ask(memory, "c", 9, "Y")
    assert shared_order(memory) == ["-", "state Y8", "block Y8", "block X8"]


# -- one object ------------------------------------------------------------------------------------


@pytest.mark.parametrize("eviction", RANKED)
def test_a_restart_point_that_lost_a_page_in_one_pool_goes_on_in_the_other(eviction: str) -> None:
    """D0: a block of X goes for want of attention, and then the state of X goes before Y's."""
    memory = toy_memory("d0", 9, num_states=4, eviction=eviction)
    for content in ("X", "Y"):
        leave_cached(memory, content, 8, content=content)
        for number in range(2):
            ask(memory, f"{content} {number}", 9, content)
    attention, recurrent = memory.cache.pools
    assert order_of(recurrent) == ["-", "state X8", "state Y8"]
    assert order_of(attention)[1:] == [
        "block X8", "block X6", "block X4", "block X2",
        "block Y8", "block Y6", "block Y4", "block Y2",
    ]  # fmt: skip
    attention.take(2)
    assert order_of(recurrent) == ["-", "state X8", "state Y8"]
    assert order_of(attention)[:3] == ["block X6", "block X4", "block X2"]
    assert restart_of(memory, (None, "X", 8)).broken
    recurrent.take(3)
    assert order_of(recurrent) == ["state Y8"]
    ranking_of(memory).check_integrity()


@pytest.mark.parametrize("eviction", ["restart_point"])
def test_a_checkpoint_that_was_replaced_is_the_next_restart_point_of_its_prefix(
    eviction: str,
) -> None:
    """D0: X has states at 8 and at 16. When the one at 16 is given up for its attention, the other
    one is what is left of X, and X was hit before Y."""
    memory = toy_memory("d0", 16, num_states=6, eviction=eviction)
    leave_cached(memory, "X", 17)
    leave_cached(memory, "Y", 9, content="Y")
    for content, num_tokens in (("X", 17), ("Y", 9)):
        memory.enter(
            toy_sequence(memory, content + " again", num_tokens, content=content), num_tokens
        )
    assert order_of(memory.cache.attention_pool)[1:] == [
        *(f"block X{end}" for end in range(16, 0, -2)),
        *(f"block Y{end}" for end in range(8, 0, -2)),
    ]


@pytest.mark.parametrize("eviction", RANKED)
def test_a_restart_point_that_was_given_up_is_whole_again_when_it_is_hit(eviction: str) -> None:
    memory = toy_memory("s0", 20, eviction=eviction)
    for content in ("X", "Y"):
        leave_cached(memory, content, 9, content=content)
        ask(memory, f"{content} again", 9, content)
    given_up = restart_of(memory, (None, "Y", 8))
    ranking_of(memory).sacrifice(given_up)
    assert shared_order(memory)[1:] == ["state Y8", "block Y8", "state X8", "block X8"]
    hit = toy_sequence(memory, "hit", 9, content="Y")
    assert admit(memory, hit, 9) == 8
    assert not given_up.broken
    memory.release(hit, 8)
    assert shared_order(memory)[1:] == ["state X8", "block X8", "state Y8", "block Y8"]
    memory.check_integrity()


@pytest.mark.parametrize("eviction", RANKED)
def test_a_restart_point_that_deeper_ones_need_frees_only_its_state(eviction: str) -> None:
    memory = toy_memory("s0", 20, eviction=eviction)
    leave_cached(memory, "a", 17)
    for number in range(3):
        ask(memory, f"short {number}", 9, "X")
    ask(memory, "long", 17, "X")
    # Both are proven, the one at 8 by more requests.
    ranking = ranking_of(memory)
    ranking.sacrifice(restart_of(memory, (None, "X", 8)))
    assert shared_order(memory)[1:] == ["state X8", "state X16", "block X16", "block X8"]
    memory.check_integrity()


@pytest.mark.parametrize(("others", "is_given_up"), [(0, True), (1, False)])
def test_what_a_restart_point_replaces_is_given_up_with_it(others: int, is_given_up: bool) -> None:
    """Otherwise an admission that takes it would leave a restart point that nobody counted."""
    memory = toy_memory("s0", 20, eviction="restart_point")
    leave_cached(memory, "a", 17)
    for number in range(others):
        ask(memory, f"short {number}", 9, "X")
    ranking_of(memory).sacrifice_all(restart_of(memory, (None, "X", 16)))
    assert restart_of(memory, (None, "X", 16)).broken
    assert restart_of(memory, (None, "X", 8)).broken == is_given_up


# -- slabs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("eviction", RANKED)
def test_a_slab_goes_after_the_best_of_the_checkpoints_in_it(eviction: str) -> None:
    memory = toy_memory("s2", 30, eviction=eviction)
    for content in ("X", "Y", "Z"):
        leave_cached(memory, content, 9, content=content)
    ask(memory, "again", 9, "X")
    assert shared_order(memory) == [
        "-", "state Y8", "block Y8", "state Z8", "block Z8", "state X8", "slab", "block X8",
    ]  # fmt: skip


@pytest.mark.parametrize("eviction", RANKED)
def test_no_cached_state_is_lost_with_its_slab(eviction: str) -> None:
    memory = toy_memory("s2", 36, eviction=eviction)
    for request_id in range(6):
        leave_cached(memory, request_id, 17, content=request_id)
    pool = memory.cache.attention_pool
    while memory.cache.checkpoint_index.oldest:
        pool.take(1)
    assert memory.cache.counters.lost_checkpoints > 0
    assert memory.cache.counters.reclaimed_slabs == 0


# -- demand ----------------------------------------------------------------------------------------


def test_a_lone_request_never_proves_a_boundary_and_two_prove_it_for_a_while() -> None:
    demand = Demand(half_life=10)
    demand.register(["lone", "shared"])
    assert not demand.is_proven("lone") and demand.of("lone") == 1
    demand.register(["shared"])
    assert demand.is_proven("shared")
    assert not demand.is_equal("lone", "shared")
    for _ in range(9):  # 2 ** -1 + 2 ** -0.9 > 1
        demand.register([])
    assert demand.is_proven("shared")
    for _ in range(2):  # 2 ** -1.2 + 2 ** -1.1 < 1
        demand.register([])
    assert not demand.is_proven("shared")


def test_demand_is_halved_by_as_many_arrivals_as_the_setting_says() -> None:
    demand = Demand(half_life=10)
    demand.register(["a"])
    for _ in range(10):
        demand.register([])
    assert demand.of("a") == pytest.approx(0.5)


def test_demand_forgets_what_nobody_asks_for_and_stays_finite() -> None:
    demand = Demand(half_life=1)
    for number in range(2000):  # 2 ** 2000 is no float
        demand.register([number, "always"])
    assert len(demand) < 20
    assert demand.of("always") == pytest.approx(2) and demand.is_proven("always")


def test_a_request_counts_once_however_often_it_enters_and_is_admitted() -> None:
    memory = toy_memory("s0", 20, eviction="restart_point")
    sequence = toy_sequence(memory, "a", 17)
    for _ in range(2):
        memory.enter(sequence, 17)
    memory.admit(sequence, MISS)
    run_steps(memory, sequence, 8)
    memory.preempt(sequence, 8)
    memory.enter(sequence, 17)
    admit(memory, sequence, 17)
    demand = ranking_of(memory).demand
    assert demand.of(sequence.keys.checkpoints[0]) == demand.of(sequence.keys.checkpoints[1]) == 1
    assert demand.of(sequence.keys.checkpoints[2]) == 0  # 24 is beyond its prompt


def test_the_branches_of_a_request_are_one_requester() -> None:
    memory = toy_memory("s0", 20, eviction="restart_point")
    parent = compute(memory, "parent", 13)
    child = toy_sequence(memory, "child", 13)
    memory.fork(parent, child, 13)
    assert ranking_of(memory).demand.of(parent.keys.checkpoints[0]) == 1


# -- scores ----------------------------------------------------------------------------------------


def leave_long_and_short(eviction: str) -> HybridMemory:
    """X to 24 with a checkpoint there, then Y to 8; both are proven."""
    memory = toy_memory("s0", 40, eviction=eviction)
    long = toy_sequence(memory, "long", 25)
    memory.admit(long, MISS)
    run_steps(memory, long, 24, 25)
    memory.release(long, 25)
    leave_cached(memory, "short", 9, content="Y")
    for content in ("X", "Y"):
        ask(memory, f"{content} again", 25, content)
    return memory


@pytest.mark.parametrize(
    ("eviction", "first"),
    [("restart_point", "state X24"), ("replay_length", "state Y8")],
)
def test_the_score_decides_between_proven_restart_points(eviction: str, first: str) -> None:
    assert shared_order(leave_long_and_short(eviction))[1] == first


@pytest.mark.parametrize(("alpha", "first"), [(0.0, "state X24"), (2.0, "state Y8")])
def test_alpha_weighs_tokens_per_byte_against_recency(
    alpha: float, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 tokens in 4 pages against 8 in 2: X has the better efficiency, Y was used last."""
    option = EVICTIONS["value_per_byte"].model_copy(update={"alpha": alpha})
    monkeypatch.setitem(EVICTIONS, "value_per_byte", option)
    assert shared_order(leave_long_and_short("value_per_byte"))[1] == first


def test_a_replay_starts_at_the_restart_point_above() -> None:
    memory = toy_memory("s0", 20, eviction="replay_length")
    leave_cached(memory, "a", 25)
    replays = {
        tokens: restart_of(memory, (None, "X", tokens)).replay_tokens for tokens in (8, 16, 24)
    }
    assert replays == {8: 8, 16: 8, 24: 8}
    (state,) = [state for key, state in memory.cache.checkpoint_index if key == (None, "X", 16)]
    memory.cache.lose_checkpoint(state, cause="reset")
    assert restart_of(memory, (None, "X", 24)).replay_tokens == 16
    assert restart_of(memory, (None, "X", 8)).replay_tokens == 8


# -- the knowledge ---------------------------------------------------------------------------------


@pytest.mark.parametrize("eviction", sorted(EVICTIONS))
def test_only_a_ranked_order_costs_the_memory_its_knowledge(eviction: str) -> None:
    memory = toy_memory("s0", 20, eviction=eviction)
    assert (memory.cache.prefixes is not None) == (eviction in RANKED)


@pytest.mark.parametrize("eviction", RANKED)
def test_nothing_is_known_of_a_prefix_that_is_gone(organization: str, eviction: str) -> None:
    memory = toy_memory(organization, 60, eviction=eviction)
    for name in ("a", "b", "c"):
        leave_cached(memory, name, 30, shared=12)
    memory.check_integrity()
    memory.cache.reset()
    ranking = ranking_of(memory)
    assert not ranking.blocks and not ranking.restarts and not ranking.found
    assert not ranking._first
