"""A drafter of known acceptance, so that a measured rate can be checked against theory."""

from collections.abc import Sequence

import numpy as np

from hsexp.speculation.decoding import LanguageModel
from hsexp.speculation.sampling import Probabilities


class DilutedDrafter:
    """Drafts from the target's distribution with probability a, else a token with p_target = 0.

    Each draft is accepted with probability a, independently of the others: a token of the target's
    distribution always, since p_target / p_draft = 1 / a, and the other token never.
    """

    def __init__(self, target: LanguageModel, *, acceptance: float, never: int) -> None:
        """
        Args:
            never: a token to which the target always gives probability zero.

        Raises:
            ValueError: `acceptance` is not in [0, 1].
        """
        if not 0.0 <= acceptance <= 1.0:
            raise ValueError(f"acceptance must be in [0, 1], got {acceptance}")
        self.target = target
        self.acceptance = acceptance
        self.never = never

    def distribution(self, tokens: Sequence[int]) -> Probabilities:
        """Distribution of the draft after `tokens`, [vocabulary].

        Raises:
            ValueError: the target gives the token `never` a positive probability.
        """
        of_target = self.target.distribution(tokens)
        if of_target[self.never] > 0.0:
            raise ValueError(
                f"token {self.never} must have probability 0, the target gives it "
                f"{float(of_target[self.never])}"
            )
        diluted: Probabilities = np.multiply(of_target, self.acceptance)
        diluted[self.never] = 1.0 - self.acceptance
        return diluted
