"""Small models whose every probability is known, and the exact law of what they generate."""

import itertools
from collections.abc import Sequence

import numpy as np

from hsexp.speculation.sampling import Probabilities


class TableModel:
    """A distribution for every history, drawn once from a seed.

    Args:
        never: a token without probability, or None.
        sharpness: above 1 the likely tokens take more; 0 is uniform.
    """

    def __init__(
        self, vocabulary: int, seed: int, *, never: int | None = None, sharpness: float = 2.0
    ) -> None:
        self.vocabulary = vocabulary
        self.seed = seed
        self.never = never
        self.sharpness = sharpness

    def distribution(self, tokens: Sequence[int]) -> Probabilities:
        weights = np.random.default_rng([self.seed, len(tokens), *tokens]).random(self.vocabulary)
        weights = weights**self.sharpness
        if self.never is not None:
            weights[self.never] = 0.0
        probabilities: Probabilities = weights / weights.sum()
        return probabilities


class GreedyModel:
    """All probability on the token that another model finds most likely."""

    def __init__(self, model: TableModel) -> None:
        self.model = model

    def distribution(self, tokens: Sequence[int]) -> Probabilities:
        of_model = self.model.distribution(tokens)
        one_hot: Probabilities = np.zeros_like(of_model)
        one_hot[int(of_model.argmax())] = 1.0
        return one_hot


class Remembered:
    """A model that computes each distribution once."""

    def __init__(self, model: TableModel | GreedyModel) -> None:
        self.model = model
        self._known: dict[tuple[int, ...], Probabilities] = {}

    def distribution(self, tokens: Sequence[int]) -> Probabilities:
        key = tuple(tokens)
        if key not in self._known:
            self._known[key] = self.model.distribution(tokens)
        return self._known[key]


def law_of_sequences(
    model: Remembered, prompt: Sequence[int], num_tokens: int, vocabulary: int
) -> dict[tuple[int, ...], float]:
    """Probability of every continuation when the model samples alone."""
    law = {}
    for sequence in itertools.product(range(vocabulary), repeat=num_tokens):
        probability = 1.0
        for place, token in enumerate(sequence):
            probability *= float(model.distribution([*prompt, *sequence[:place]])[token])
        law[sequence] = probability
    return law
