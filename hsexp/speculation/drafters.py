"""A drafter whose acceptance is known, so that everything measured about it can be wrong."""

from collections.abc import Sequence

import numpy as np

from hsexp.speculation.decoding import LanguageModel
from hsexp.speculation.sampling import Probabilities


class DilutedDrafter:
    """The target's distribution with probability a, else a token that the target never says.

    Each draft is accepted with probability a, independently of the others: the good part is
    accepted always, since p_target / p_draft = 1 / a there, and the other part never.
    """

    def __init__(self, target: LanguageModel, *, acceptance: float, never: int) -> None:
        """
        Args:
            never: a token to which the target gives probability zero, whatever came before.

        Raises:
            ValueError: `acceptance` is not in [0, 1].
        """
        if not 0.0 <= acceptance <= 1.0:
            raise ValueError(f"acceptance must be in [0, 1], got {acceptance}")
        self.target = target
        self.acceptance = acceptance
        self.never = never

    def distribution(self, tokens: Sequence[int]) -> Probabilities:
        """
        Raises:
            ValueError: the target does say the token that it never says.
        """
        of_target = self.target.distribution(tokens)
        if of_target[self.never] > 0.0:
            raise ValueError(
                f"token {self.never} must have no probability, the target gives it "
                f"{float(of_target[self.never])}"
            )
        diluted: Probabilities = np.multiply(of_target, self.acceptance)
        diluted[self.never] = 1.0 - self.acceptance
        return diluted
