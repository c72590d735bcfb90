"""Where prefills stop: the rules one by one, and what they leave for the next request."""

import pytest
from toy_memory import MISS, PLACEMENTS, admit, run_steps, toy_memory, toy_sequence

from hsexp.memory import Hit, HybridMemory, PrefixKeys, SequenceMemory
from hsexp.memory.chunking import chunking
from hsexp.memory.policies.placement import CHUNK_ENDS
from hsexp.memory.policies.placement.every import Every

STOCK = chunking(block_size=8, checkpoint_grid=8, exact=False)
EXACT = chunking(block_size=8, checkpoint_grid=8, exact=True)
NO_KEYS = PrefixKeys(attention=(), checkpoints=())


class Cached:
    """Eight tokens a boundary, and attention up to `depth`."""

    checkpoint_grid = 8

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def attention_depth(self, keys: PrefixKeys, start: int, end: int) -> int:
        assert start <= self.depth
        return min(self.depth, end)


# -- the rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("depth", "hit_tokens", "num_tokens", "stops"),
    [
        (0, 0, 100, ()),  # nothing is cached
        (26, 0, 100, (24,)),  # the last boundary that attention reaches
        (26, 16, 100, (24,)),
        (26, 24, 100, ()),  # the state is there
        (7, 0, 100, ()),  # less than an interval is no checkpoint
        (23, 16, 100, ()),
        (64, 0, 24, (16,)),  # the last token is always computed
        (64, 0, 25, (24,)),
    ],
)
def test_the_junction_is_the_last_boundary_of_cached_attention_beyond_the_hit(
    depth: int, hit_tokens: int, num_tokens: int, stops: tuple[int, ...]
) -> None:
    rule = PLACEMENTS["junction"].build(Cached(depth))
    assert rule.stops(NO_KEYS, Hit(tokens=hit_tokens), num_tokens) == stops


def test_chunk_ends_stop_nowhere() -> None:
    assert CHUNK_ENDS.build(Cached(64)).stops(NO_KEYS, MISS, 100) == ()


@pytest.mark.parametrize(
    ("intervals", "hit_tokens", "stops"),
    [(1, 0, [8, 16, 24, 32]), (2, 0, [16, 32]), (2, 8, [16, 32]), (2, 16, [32]), (5, 0, [])],
)
def test_every_nth_boundary_counts_from_the_start_of_the_prompt(
    intervals: int, hit_tokens: int, stops: list[int]
) -> None:
    rule = Every(kind="every", name="mine", intervals=intervals).build(Cached(0))
    assert list(rule.stops(NO_KEYS, Hit(tokens=hit_tokens), 40)) == stops


# -- chunks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("computed", "left", "stops", "chunk"),
    [
        (0, 100, (16,), 16),  # it stops
        (16, 100, (16,), 24),  # and goes on, to the last boundary
        (0, 9, (16,), 8),  # the budget ends before
        (0, 100, (16, 24), 16),
        (16, 100, (16, 24), 8),
        (5, 100, (16,), 3),  # off the grid the next boundary comes first
        (0, 100, (48,), 40),  # beyond the prompt
        (0, 7, (16,), 0),
    ],
)
def test_a_chunk_ends_at_the_next_stop_at_the_latest(
    computed: int, left: int, stops: tuple[int, ...], chunk: int
) -> None:
    assert STOCK.tokens(computed, 44, 44, left, stops) == chunk


def test_canonical_chunks_are_the_same_with_and_without_stops() -> None:
    for computed in range(0, 40, 8):
        assert EXACT.tokens(computed, 44, 44, 100, (24,)) == EXACT.tokens(computed, 44, 44, 100)


def test_a_stop_off_the_grid_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot stop at 12: the checkpoint grid is 8"):
        STOCK.tokens(0, 44, 44, 100, (12,))


# -- a memory --------------------------------------------------------------------------------------


def in_one_chunk(memory: HybridMemory, request_id: str, num_tokens: int) -> SequenceMemory:
    """A request that shares 20 tokens with others and leaves a checkpoint at its end alone."""
    sequence = toy_sequence(memory, request_id, num_tokens, shared=20)
    memory.admit(sequence, MISS)
    run_steps(memory, sequence, num_tokens)
    return sequence


def test_a_request_has_the_stops_of_its_hit_until_it_leaves(organization: str) -> None:
    memory = toy_memory(organization, 200, placement="junction")
    in_one_chunk(memory, "first", 40)
    second = toy_sequence(memory, "second", 40, shared=20)
    hit = memory.lookup(second, 40)
    assert (hit.tokens, hit.stops) == (0, (16,))
    assert second.stops == ()  # a lookup touches nothing
    admit(memory, second, 40)
    assert second.stops == (16,)
    memory.preempt(second, 0)
    assert second.stops == ()


def test_a_junction_moves_with_what_is_cached(organization: str) -> None:
    memory = toy_memory(organization, 200, placement="junction")
    first = in_one_chunk(memory, "first", 40)
    again = toy_sequence(memory, "again", 40, shared=20)
    assert memory.lookup(again, 40).stops == (16,)
    memory.release(first, 40)
    memory.cache.reset()
    assert memory.lookup(again, 40) == MISS


def test_a_leaf_beside_a_shallower_boundary_keeps_the_stops_of_the_lookup() -> None:
    boundary = Hit(tokens=8, stops=(24,))
    leaf = Hit(tokens=13)
    deeper = boundary.or_deeper(leaf)
    assert (deeper.tokens, deeper.stops) == (13, (24,))
    assert boundary.or_deeper(None) is boundary
