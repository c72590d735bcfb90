"""Speculative decoding: a drafter guesses, the target verifies, the output is the target's own."""

from hsexp.speculation.acceptance import (
    Verdict,
    acceptance_probability,
    expected_tokens,
    residual,
    verify,
)
from hsexp.speculation.decoding import LanguageModel, Pass, SpeculativeDecoder
from hsexp.speculation.drafters import DilutedDrafter

__all__ = [
    "DilutedDrafter",
    "LanguageModel",
    "Pass",
    "SpeculativeDecoder",
    "Verdict",
    "acceptance_probability",
    "expected_tokens",
    "residual",
    "verify",
]
