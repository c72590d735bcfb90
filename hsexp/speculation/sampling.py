"""Draw a token from a distribution, and seed every branch of a request by itself."""

import numpy as np
from numpy.typing import NDArray

Probabilities = NDArray[np.float64]
"""[vocabulary], not negative, with sum 1."""


def sample(probabilities: Probabilities, rng: np.random.Generator) -> int:
    """Draw a token; never one of probability zero."""
    cumulative = np.cumsum(probabilities)
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


def branch_seeds(seed: int | None, num_branches: int) -> list[int | None]:
    """Seeds of the branches of one request: the same for the same request, no two alike.

    Branches with their request's own seed would all draw the same tokens. A request without a seed
    leaves its branches without one.
    """
    if seed is None:
        return [None] * num_branches
    children = np.random.SeedSequence(seed).spawn(num_branches)
    return [int(child.generate_state(1, np.uint64)[0] >> np.uint64(1)) for child in children]
