"""Draft-and-verify generates what the target alone would: in distribution, and token by token.

Distributions are compared by a chi-square test over every possible output of small vocabularies. A
correct sampler fails such a test with probability ALPHA = 1e-6; seeds are fixed, so that it fails
always or never. The last tests show that wrong samplers do fail.
"""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import chisquare, geom
from toy_target import GreedyModel, Remembered, TableModel, law_of_sequences

from hsexp.speculation import (
    DilutedDrafter,
    LanguageModel,
    SpeculativeDecoder,
    acceptance_probability,
    expected_tokens,
)

ALPHA = 1e-6
"""False alarms of one comparison."""
PROMPT = (1, 0)
NUM_TOKENS = 3
NUM_DRAWS = 4000
NEVER = 2
"""A token of vocabulary 3 that the target never says."""


def target_of(seed: int, *, never: int | None = None) -> Remembered:
    return Remembered(TableModel(3, seed, never=never))


def drafters(target: Remembered, seed: int) -> dict[str, LanguageModel]:
    return {
        "another": Remembered(TableModel(3, 100 + seed, sharpness=3.0)),
        "the target": target,
        "one-hot": Remembered(GreedyModel(TableModel(3, 200 + seed))),
    }


def p_value(law: dict[tuple[int, ...], float], drawn: Counter[tuple[int, ...]]) -> float:
    """Of the draws under the law; an output of probability zero decides at once."""
    if any(law[output] == 0.0 for output in drawn):
        return 0.0
    possible = [output for output, probability in law.items() if probability > 0.0]
    total = drawn.total()
    expected = [total * law[output] for output in possible]
    # Rare outputs are counted together, so that the statistic has its distribution.
    rare = [place for place, count in enumerate(expected) if count < 5]
    observed = [drawn[output] for output in possible]
    if rare:
        kept = [place for place in range(len(possible)) if place not in rare]
        expected = [expected[place] for place in kept] + [sum(expected[place] for place in rare)]
        observed = [observed[place] for place in kept] + [sum(observed[place] for place in rare)]
    return float(chisquare(observed, expected).pvalue)


@pytest.mark.parametrize("num_drafts", [1, 2, 4])
@pytest.mark.parametrize("name", ["another", "the target", "one-hot"])
def test_the_output_has_the_targets_distribution(name: str, num_drafts: int) -> None:
    target = target_of(7)
    decoder = SpeculativeDecoder(target, drafters(target, 7)[name], np.random.default_rng(11))
    drawn = Counter(
        tuple(decoder.generate(PROMPT, NUM_TOKENS, num_drafts=num_drafts)) for _ in range(NUM_DRAWS)
    )
    assert p_value(law_of_sequences(target, PROMPT, NUM_TOKENS, 3), drawn) > ALPHA


@pytest.mark.parametrize("num_drafts", range(6))
@pytest.mark.parametrize("seed", range(8))
def test_greedy_output_is_the_targets_token_by_token(seed: int, num_drafts: int) -> None:
    target = Remembered(GreedyModel(TableModel(5, seed)))
    plain: list[int] = []
    while len(plain) < 12:
        plain.append(int(target.distribution([*PROMPT, *plain]).argmax()))
    for drafter in (TableModel(5, 50 + seed), GreedyModel(TableModel(5, seed, sharpness=1.0))):
        decoder = SpeculativeDecoder(target, Remembered(drafter), np.random.default_rng(seed))
        assert decoder.generate(PROMPT, 12, num_drafts=num_drafts) == plain


# -- against a drafter whose acceptance is known ---------------------------------------------------


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.8, 1.0])
def test_a_known_drafter_is_accepted_as_often_as_it_should_be(acceptance: float) -> None:
    # Accepted drafts of a pass: j < 4 with probability a^j (1 - a), and 4 with a^4.
    num_passes, num_drafts = 4000, 4
    target = target_of(3, never=NEVER)
    drafter = DilutedDrafter(target, acceptance=acceptance, never=NEVER)
    decoder = SpeculativeDecoder(target, drafter, np.random.default_rng(5))
    passes = [decoder.run_pass(PROMPT, num_drafts) for _ in range(num_passes)]
    law = {
        (j,): float(geom.pmf(j + 1, 1 - acceptance)) if acceptance < 1 else 0.0 for j in range(4)
    }
    law[(4,)] = acceptance**4
    drawn = Counter((each.num_accepted,) for each in passes)
    assert p_value(law, drawn) > ALPHA if 0 < acceptance < 1 else set(drawn) == {(4 * acceptance,)}
    lengths = [len(each.tokens) for each in passes]
    # Five standard errors: a false alarm in 1.7 million.
    error = 5 * np.std(lengths) / num_passes**0.5
    assert np.mean(lengths) == pytest.approx(expected_tokens(acceptance, num_drafts), abs=error)


def test_a_drafter_may_not_dilute_with_what_the_target_says() -> None:
    target = target_of(3)
    with pytest.raises(ValueError, match="token 2 must have probability 0"):
        DilutedDrafter(target, acceptance=0.5, never=NEVER).distribution(PROMPT)
    with pytest.raises(ValueError, match=r"acceptance must be in \[0, 1\], got 1.5"):
        DilutedDrafter(target, acceptance=1.5, never=NEVER)


def test_no_pass_yields_more_than_is_asked_for() -> None:
    target = target_of(7)
    decoder = SpeculativeDecoder(target, target, np.random.default_rng(0))
    assert [len(decoder.generate(PROMPT, n, num_drafts=4)) for n in range(8)] == list(range(8))


# -- the comparison sees wrong samplers ------------------------------------------------------------

Step = Callable[[np.ndarray, np.ndarray, np.random.Generator], int]


def accept_all(target: np.ndarray, draft: np.ndarray, rng: np.random.Generator) -> int:
    return int(rng.choice(3, p=draft))


def without_residual(target: np.ndarray, draft: np.ndarray, rng: np.random.Generator) -> int:
    token = int(rng.choice(3, p=draft))
    if rng.random() < acceptance_probability(float(target[token]), float(draft[token])):
        return token
    return int(rng.choice(3, p=target))


@pytest.mark.parametrize("wrong", [accept_all, without_residual])
def test_a_wrong_sampler_has_another_distribution(wrong: Step) -> None:
    target = target_of(7)
    drafter, rng = drafters(target, 7)["another"], np.random.default_rng(11)
    drawn: Counter[tuple[int, ...]] = Counter()
    for _ in range(NUM_DRAWS):
        output: list[int] = []
        for _ in range(NUM_TOKENS):
            known = [*PROMPT, *output]
            output.append(wrong(target.distribution(known), drafter.distribution(known), rng))
        drawn[tuple(output)] += 1
    assert p_value(law_of_sequences(target, PROMPT, NUM_TOKENS, 3), drawn) < ALPHA
