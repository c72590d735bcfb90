"""Which drafts the target keeps, so that the output has the distribution of the target alone.

    draft 1   accepted with min(1, p_target / p_draft)     else: a token of the residual, and stop
    draft 2   ...
    all kept  one more token from the target: the bonus

Every pass yields at least one token, and at most one more than was drafted. Greedy decoding is the
case in which the target gives all its probability to one token. Leviathan et al., "Fast inference
from transformers via speculative decoding", Algorithm 1 and Theorem 3.5 (arXiv 2211.17192).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hsexp.speculation.sampling import Probabilities, sample

_SUM_TOLERANCE = 1e-9
"""Largest rounding error of a sum of probabilities."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Result of one verification pass."""

    num_accepted: int
    """Leading drafts that are kept."""
    token: int
    """The target's own token after them: from the residual, or the bonus."""


def acceptance_probability(target: float, draft: float) -> float:
    """min(1, p_target / p_draft) of a token that was drafted.

    Raises:
        ValueError: a token was drafted whose draft probability is not in (0, 1], or the target's
            is not in [0, 1].
    """
    if not 0.0 < draft <= 1.0:
        raise ValueError(f"p_draft of a drafted token must be in (0, 1], got {draft}")
    if not 0.0 <= target <= 1.0:
        raise ValueError(f"p_target must be in [0, 1], got {target}")
    return min(1.0, target / draft)


def residual(target: Probabilities, draft: Probabilities) -> Probabilities:
    """max(0, p_target - p_draft), normalised: the distribution after a rejected draft.

    Raises:
        ValueError: the distributions are equal, so that no draft can be rejected.
    """
    excess = np.maximum(target - draft, 0.0)
    total = float(excess.sum())
    if total <= 0.0:
        raise ValueError("p_target equals p_draft: there is nothing to correct")
    left: Probabilities = excess / total
    return left


def verify(
    drafts: Sequence[int],
    draft: Sequence[Probabilities],
    target: Sequence[Probabilities],
    rng: np.random.Generator,
) -> Verdict:
    """Accept a prefix of the drafts and add the target's token.

    Args:
        drafts: k drafted tokens.
        draft: the k distributions that they were sampled from, each given the drafts before it.
        target: the target's k + 1 distributions, given no draft, one draft, ..., all of them.

    Raises:
        ValueError: lengths do not fit, or something is not a probability distribution.
    """
    if len(draft) != len(drafts) or len(target) != len(drafts) + 1:
        raise ValueError(
            f"{len(drafts)} drafts need as many draft distributions and one target distribution "
            f"more, got {len(draft)} and {len(target)}"
        )
    for name, distributions in (("draft", draft), ("target", target)):
        for place, probabilities in enumerate(distributions):
            _require_distribution(f"{name}.{place}", probabilities)
    for place, token in enumerate(drafts):
        probability = acceptance_probability(
            float(target[place][token]), float(draft[place][token])
        )
        if rng.random() >= probability:
            return Verdict(
                num_accepted=place, token=sample(residual(target[place], draft[place]), rng)
            )
    return Verdict(num_accepted=len(drafts), token=sample(target[-1], rng))


def expected_tokens(acceptance: float, num_drafts: int) -> float:
    """Mean tokens of a pass whose drafts are each accepted with probability a, independently.

    (1 - a^(K + 1)) / (1 - a): the K drafts count as far as they are accepted, and the target adds
    one. At a = 1 it is K + 1 (Leviathan et al., Equation 1).

    Raises:
        ValueError: `acceptance` is not in [0, 1], or `num_drafts` is negative.
    """
    if not 0.0 <= acceptance <= 1.0:
        raise ValueError(f"acceptance must be in [0, 1], got {acceptance}")
    if num_drafts < 0:
        raise ValueError(f"num_drafts must not be negative, got {num_drafts}")
    return float(sum(acceptance**accepted for accepted in range(num_drafts + 1)))


def _require_distribution(name: str, probabilities: Probabilities) -> None:
    total = float(probabilities.sum())
    if probabilities.min() < 0.0 or abs(total - 1.0) > _SUM_TOLERANCE:
        raise ValueError(
            f"{name} must be a probability distribution, got a sum of {total} and a least value of "
            f"{float(probabilities.min())}"
        )
