"""The best placement for known restart depths, against every placement there is."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsexp.labs.placement import BestPlacement, best_placement

DEPTHS = st.dictionaries(st.integers(0, 9).map(lambda n: 96 * n), st.integers(0, 5), max_size=8)


def saved_by(boundaries: tuple[int, ...], depths: dict[int, int]) -> int:
    return sum(
        weight * max((b for b in boundaries if b <= depth), default=0)
        for depth, weight in depths.items()
    )


@pytest.mark.parametrize(
    ("num_checkpoints", "boundaries", "saved_tokens"),
    [
        (0, (), 0),
        (1, (480,), 4 * 480),
        (2, (96, 480), 4 * 96 + 4 * 480),
        (3, (96, 192, 480), 3 * 96 + 192 + 4 * 480),
        (9, (96, 192, 480), 3 * 96 + 192 + 4 * 480),
    ],
)
def test_the_example(num_checkpoints: int, boundaries: tuple[int, ...], saved_tokens: int) -> None:
    found = best_placement({480: 4, 96: 3, 192: 1, 0: 5}, num_checkpoints)
    assert found == BestPlacement(boundaries=boundaries, saved_tokens=saved_tokens)


@given(depths=DEPTHS, num_checkpoints=st.integers(0, 4))
def test_no_other_placement_saves_more(depths: dict[int, int], num_checkpoints: int) -> None:
    found = best_placement(depths, num_checkpoints)
    assert len(found.boundaries) <= num_checkpoints
    assert saved_by(found.boundaries, depths) == found.saved_tokens
    every = combinations(range(96, 960, 96), min(num_checkpoints, 9))
    assert found.saved_tokens == max(saved_by(boundaries, depths) for boundaries in every)


def test_negative_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="num_checkpoints must not be negative, got -1"):
        best_placement({}, -1)
    with pytest.raises(ValueError, match="must not be negative, got 96: -2"):
        best_placement({96: -2}, 1)
