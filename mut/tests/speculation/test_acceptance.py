"""Acceptance, residual and expected tokens, by hand and by exhausting small vocabularies."""

import numpy as np
import pytest
from toy_target import TableModel

from hsexp.speculation import acceptance_probability, expected_tokens, residual, verify


def test_a_draft_that_the_target_likes_more_is_always_accepted() -> None:
    assert acceptance_probability(0.8, 0.5) == 1.0
    assert acceptance_probability(0.2, 0.8) == pytest.approx(0.25)
    assert acceptance_probability(0.0, 0.5) == 0.0


@pytest.mark.parametrize(("target", "draft"), [(0.5, 0.0), (0.5, 1.1), (-0.1, 0.5), (1.1, 0.5)])
def test_what_is_no_probability_is_refused(target: float, draft: float) -> None:
    with pytest.raises(ValueError, match="must be in"):
        acceptance_probability(target, draft)


def test_the_residual_is_what_the_draft_lacks() -> None:
    # Target .5 .3 .2, draft .2 .7 .1: excess .3 0 .1, normalised .75 0 .25.
    left = residual(np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.7, 0.1]))
    assert left.tolist() == pytest.approx([0.75, 0.0, 0.25])
    with pytest.raises(ValueError, match="nothing to correct"):
        residual(np.array([0.5, 0.5]), np.array([0.5, 0.5]))


@pytest.mark.parametrize("vocabulary", [2, 3, 5])
def test_accepted_and_corrected_tokens_together_have_the_targets_law(vocabulary: int) -> None:
    # P(x) = sum over drafts d of p_draft(d) (accept(d) [x = d] + (1 - accept(d)) residual(x)),
    # summed for every x: no sampling, so equal to rounding, for 200 pairs of distributions.
    for seed in range(200):
        never = seed % vocabulary if seed % 2 else None
        target = TableModel(vocabulary, seed, never=never).distribution(())
        draft = TableModel(vocabulary, 1000 + seed, sharpness=4.0).distribution(())
        accept = np.array(
            [acceptance_probability(float(target[d]), float(draft[d])) for d in range(vocabulary)]
        )
        law = draft * accept + (draft * (1.0 - accept)).sum() * residual(target, draft)
        assert law == pytest.approx(target, abs=1e-12)


def test_a_pass_stops_at_the_first_draft_that_the_target_never_says() -> None:
    one = np.array([0.0, 1.0, 0.0])
    other = np.array([0.0, 0.0, 1.0])
    rng = np.random.default_rng(0)
    verdict = verify([1, 1, 1], [one, one, one], [one, other, one, one], rng)
    assert (verdict.num_accepted, verdict.token) == (1, 2)
    verdict = verify([1, 1, 1], [one, one, one], [one, one, one, other], rng)
    assert (verdict.num_accepted, verdict.token) == (3, 2)  # the bonus


def test_lengths_and_distributions_are_checked() -> None:
    half, rng = np.array([0.5, 0.5]), np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"2 drafts need .* got 1 and 3"):
        verify([0, 1], [half], [half, half, half], rng)
    with pytest.raises(ValueError, match=r"1 drafts need .* got 1 and 1"):
        verify([0], [half], [half], rng)
    with pytest.raises(ValueError, match=r"target\.1 must be a probability distribution"):
        verify([0], [half], [half, np.array([0.5, 0.6])], rng)
    with pytest.raises(ValueError, match=r"draft\.0 must be a probability distribution"):
        verify([0], [np.array([1.5, -0.5])], [half, half], rng)


def test_expected_tokens_count_the_targets_own() -> None:
    assert expected_tokens(0.5, 4) == 1.9375  # (1 - .5^5) / .5
    assert expected_tokens(0.8, 4) == pytest.approx((1 - 0.8**5) / 0.2)  # 3.3616
    assert expected_tokens(1.0, 4) == 5.0
    assert expected_tokens(0.0, 4) == expected_tokens(0.7, 0) == 1.0
    for bad in (-0.1, 1.1):
        with pytest.raises(ValueError, match=rf"acceptance must be in \[0, 1\], got {bad}"):
            expected_tokens(bad, 4)
    with pytest.raises(ValueError, match="num_drafts must not be negative, got -1"):
        expected_tokens(0.5, -1)
