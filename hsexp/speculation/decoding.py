"""Draft-and-verify decoding over any two models that give a distribution of the next token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hsexp.speculation.acceptance import verify
from hsexp.speculation.sampling import Probabilities, sample


class LanguageModel(Protocol):
    """Interface of target and drafter, which share a vocabulary."""

    def distribution(self, tokens: Sequence[int]) -> Probabilities:
        """Distribution of the token after `tokens`, [vocabulary]."""
        ...


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One verification pass."""

    drafts: tuple[int, ...]
    num_accepted: int
    token: int
    """The target's own token, after the accepted drafts."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens that the pass yields."""
        return (*self.drafts[: self.num_accepted], self.token)


class SpeculativeDecoder:
    """Draws tokens as `target` alone would, several a pass."""

    def __init__(
        self, target: LanguageModel, drafter: LanguageModel, rng: np.random.Generator
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.rng = rng

    def run_pass(self, tokens: Sequence[int], num_drafts: int) -> Pass:
        """Draft after the tokens, verify, and accept; with no drafts this is ordinary decoding."""
        known, drafts = list(tokens), list[int]()
        draft_distributions = []
        for _ in range(num_drafts):
            draft_distributions.append(self.drafter.distribution([*known, *drafts]))
            drafts.append(sample(draft_distributions[-1], self.rng))
        verdict = verify(
            drafts, draft_distributions, self.target_distributions(known, drafts), self.rng
        )
        return Pass(drafts=tuple(drafts), num_accepted=verdict.num_accepted, token=verdict.token)

    def target_distributions(
        self, known: Sequence[int], drafts: Sequence[int]
    ) -> list[Probabilities]:
        """The target's distributions after `known` and after each draft: one more than drafts."""
        return [
            self.target.distribution([*known, *drafts[:place]]) for place in range(len(drafts) + 1)
        ]

    def generate(self, prompt: Sequence[int], num_tokens: int, *, num_drafts: int) -> list[int]:
        """`num_tokens` tokens after the prompt; no pass drafts more than can still be used."""
        output: list[int] = []
        while len(output) < num_tokens:
            left = num_tokens - len(output)
            made = self.run_pass([*prompt, *output], min(num_drafts, left - 1))
            output += made.tokens
        return output
