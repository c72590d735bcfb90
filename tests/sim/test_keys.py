"""Which prefixes get equal keys, on grids that need not fit the segments."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from hsexp.memory import PrefixKeys
from hsexp.sim.keys import KeyMaker
from hsexp.workload import Request, Segment


def request(
    request_id: int,
    prompt: int,
    *segments: tuple[int, int],
    output: int = 1,
    salt: str | None = None,
) -> Request:
    """`segments` are (end_tokens, content_id)."""
    return Request(
        request_id=request_id,
        arrival_s=0.0,
        prompt_tokens=prompt,
        output_tokens=output,
        segments=tuple(Segment(end_tokens=end, content_id=content) for end, content in segments),
        cache_salt=salt,
    )


def keys(*requests: Request, block_size: int = 512, checkpoint_grid: int = 512) -> list[PrefixKeys]:
    maker = KeyMaker(block_size=block_size, checkpoint_grid=checkpoint_grid)
    return [maker.keys(request) for request in requests]


def num_equal(first: Sequence[object], second: Sequence[object]) -> int:
    """Leading keys that are equal; behind them none may be."""
    equal = [a == b for a, b in zip(first, second, strict=False)]
    count = equal.index(False) if False in equal else len(equal)
    assert not any(equal[count:])
    return count


def test_keys_cover_whole_blocks_of_prompt_and_output() -> None:
    # 1,000 + 600 tokens: 3 blocks of 512; 1,792 is never reached.
    (both,) = keys(request(0, 1000, output=600), checkpoint_grid=1792)
    assert len(both.attention) == 3
    assert len(both.checkpoints) == 0


def test_a_block_is_shared_only_if_it_lies_whole_inside_the_shared_prefix() -> None:
    # 3,000 = 5 * 512 + 440.
    first, second = keys(request(0, 4000, (3000, 7)), request(1, 4000, (3000, 7)))
    assert num_equal(first.attention, second.attention) == 5
    assert num_equal(first.checkpoints, second.checkpoints) == 5


def test_a_prefix_that_ends_on_the_grid_is_shared_to_its_end() -> None:
    first, second = keys(request(0, 4000, (3072, 7)), request(1, 3073, (3072, 7)))
    assert num_equal(first.attention, second.attention) == 6


def test_blocks_and_checkpoints_are_shared_each_on_its_own_grid() -> None:
    # 3,072 tokens in D0: 192 blocks of 16, and one checkpoint at 1,792 (3,584 is beyond them).
    first, second = keys(
        request(0, 4000, (3072, 7)),
        request(1, 4000, (3072, 7)),
        block_size=16,
        checkpoint_grid=1792,
    )
    assert num_equal(first.attention, second.attention) == 192
    assert num_equal(first.checkpoints, second.checkpoints) == 1


def test_a_boundary_inside_a_trace_block_is_shared_if_that_block_is() -> None:
    # Blocks of 512 tokens as in a trace; 1,792 lies in the fourth, which ends at 2,048.
    shared = [(512, 1), (1024, 2), (1536, 3), (2048, 4)]
    whole, other = keys(
        request(0, 2100, *shared),
        request(1, 2100, *shared),
        block_size=16,
        checkpoint_grid=1792,
    )
    assert num_equal(whole.checkpoints, other.checkpoints) == 1
    three, fourth_differs = keys(
        request(0, 2100, *shared),
        request(1, 2100, *shared[:3], (2048, 9)),
        block_size=16,
        checkpoint_grid=1792,
    )
    assert num_equal(three.checkpoints, fourth_differs.checkpoints) == 0
    assert num_equal(three.attention, fourth_differs.attention) == 1536 // 16


def test_a_last_partial_block_of_a_trace_is_shared_as_far_as_the_grid_reaches() -> None:
    # Both end their second block after 100 tokens of it: 612 tokens are 38 blocks of 16.
    first, second = keys(
        request(0, 700, (512, 1), (612, 2)),
        request(1, 650, (512, 1), (612, 2)),
        block_size=16,
        checkpoint_grid=1792,
    )
    assert num_equal(first.attention, second.attention) == 38


def test_different_contents_share_nothing() -> None:
    first, second = keys(request(0, 2000, (1536, 1)), request(1, 2000, (1536, 2)))
    assert num_equal(first.attention, second.attention) == 0


def test_private_tokens_and_outputs_of_equal_lengths_share_nothing() -> None:
    first, second = keys(request(0, 1024, output=1024), request(1, 1024, output=1024))
    assert num_equal(first.attention, second.attention) == 0


def test_a_salt_separates_equal_contents_and_an_equal_salt_joins_them() -> None:
    plain, salted, equal, other = keys(
        request(0, 2000, (1536, 1)),
        request(1, 2000, (1536, 1), salt="a"),
        request(2, 2000, (1536, 1), salt="a"),
        request(3, 2000, (1536, 1), salt="b"),
    )
    assert num_equal(plain.attention, salted.attention) == 0
    assert num_equal(salted.attention, equal.attention) == 3
    assert num_equal(salted.attention, other.attention) == 0


def test_the_keys_of_a_request_do_not_depend_on_who_came_before() -> None:
    """A request has its keys made once; a second maker may meet requests in another order, and
    only equality between requests may matter."""
    pair = (request(0, 2000, (1536, 1)), request(1, 2000, (1024, 1)))
    forward, backward = keys(*pair), keys(*reversed(pair))
    assert num_equal(forward[0].attention, forward[1].attention) == 2
    assert num_equal(backward[0].attention, backward[1].attention) == 2


segments = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2)), max_size=5).map(
    lambda parts: [
        (sum(length for length, _ in parts[: i + 1]), parts[i][1]) for i in range(len(parts))
    ]
)


@given(segments, segments, st.integers(1, 4), st.integers(1, 6), st.booleans())
def test_keys_are_equal_exactly_where_the_covering_segments_are(
    first: list[tuple[int, int]],
    second: list[tuple[int, int]],
    block_size: int,
    grids: int,
    salted: bool,
) -> None:
    """Against the definition: the first p tokens are shared iff the segments over p carry one id.

    The brute-force answer looks up the segment that covers p in each request.
    """

    def content(parts: list[tuple[int, int]], tokens: int) -> int | None:
        return next((content for end, content in parts if tokens <= end), None)

    salts = ("a", "b") if salted else (None, None)
    requests = [
        request(i, max([end for end, _ in parts], default=0) + 3, *parts, output=4, salt=salt)
        for i, (parts, salt) in enumerate(zip((first, second), salts, strict=True))
    ]
    one, two = keys(*requests, block_size=block_size, checkpoint_grid=grids * block_size)
    for grid, ours, theirs in (
        (block_size, one.attention, two.attention),
        (grids * block_size, one.checkpoints, two.checkpoints),
    ):
        for index, (a, b) in enumerate(zip(ours, theirs, strict=False)):
            shared = content(first, (index + 1) * grid)
            same = shared is not None and shared == content(second, (index + 1) * grid)
            assert (a == b) == (same and not salted)


def test_a_leaf_has_the_key_of_exactly_the_content_before_it() -> None:
    """The next turn holds what the first one computed, and its key anywhere in that."""
    maker = KeyMaker(block_size=512, checkpoint_grid=512)
    turns = (700, 0), (800, 1)
    first = request(0, 700, *turns, output=100)
    second = request(1, 1400, *turns, (1400, 2), output=50)
    salted = request(2, 1400, *turns, (1400, 2), salt="a")
    fork = request(3, 1400, (700, 0), (800, 3))
    for end in (1, 511, 512, 699, 700, 701, 799):
        assert maker.exact(first, end) == maker.exact(second, end)
        assert maker.exact(salted, end) != maker.exact(first, end)
        assert (maker.exact(fork, end) == maker.exact(first, end)) == (end <= 700)
    assert maker.exact(first, 700) != maker.exact(first, 701)
    private = [maker.exact(request(i, 700), 701) for i in (4, 5)]
    assert private[0] != private[1]
