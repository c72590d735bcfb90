"""Tokens and seeds of branches."""

import numpy as np

from hsexp.speculation.sampling import branch_seeds, sample


def test_branches_of_one_seed_draw_different_tokens() -> None:
    seeds = branch_seeds(0, 2)
    uniform = np.full(100, 0.01)
    first, second = (
        [sample(uniform, rng) for _ in range(20)] for rng in map(np.random.default_rng, seeds)
    )
    assert first != second
    assert len(set(branch_seeds(0, 64))) == 64
    assert not set(branch_seeds(0, 8)) & set(branch_seeds(1, 8))


def test_the_same_request_gives_its_branches_the_same_seeds() -> None:
    assert branch_seeds(5, 3) == branch_seeds(5, 3) == branch_seeds(5, 8)[:3]
    assert all(seed is not None and 0 <= seed < 2**63 for seed in branch_seeds(5, 3))


def test_a_request_without_a_seed_gives_none() -> None:
    assert branch_seeds(None, 2) == [None, None]


def test_a_token_without_probability_is_never_drawn() -> None:
    class Edge(np.random.Generator):
        """Draws the least and the greatest number there is."""

        draws = iter([0.0, np.nextafter(1.0, 0.0)])

        def random(self) -> float:  # type: ignore[override]
            return next(self.draws)

    rng = Edge(np.random.PCG64(0))
    probabilities = np.array([0.0, 0.5, 0.5, 0.0])
    assert [sample(probabilities, rng) for _ in range(2)] == [1, 2]
