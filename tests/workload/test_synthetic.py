"""The seeded generator against its stated laws, by hand and in large samples."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy import stats

from hsexp.workload import Segment, Workload, build, generate
from hsexp.workload.arrivals import BurstArrivals, PoissonArrivals
from hsexp.workload.synthetic import DrawnWorkload, SyntheticWorkload

POISSON = PoissonArrivals(kind="poisson", rate_per_s=3.0)
BURST = BurstArrivals(kind="burst", rate_per_s=3.0, on_s=5.0, off_s=15.0)

LAW: dict[str, Any] = {
    "name": "law",
    "num_requests": 300,
    "num_contexts": 8,
    "zipf_exponent": 0.7,
    "shared_tokens": 3072,
    "sharing": 1.0,
    "suffix_median_tokens": 60,
    "suffix_sigma": 1.4,
    "suffix_min_tokens": 5,
    "suffix_max_tokens": 1500,
    "prompt_mean_tokens": 3365,
    "output_shape": 2.5,
    "output_min_tokens": 4,
    "output_max_tokens": 1024,
    "output_mean_tokens": 261.5,
}


def draw(seed: int = 0, **changes: Any) -> Workload:
    return generate(SyntheticWorkload(kind="synthetic", **(LAW | changes)), POISSON, seed)


def sharers(workload: Workload) -> set[int]:
    return {request.request_id for request in workload.requests if request.segments}


def lengths(workload: Workload) -> list[tuple[float, int, int]]:
    return [(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in workload.requests]


def draw_outputs(seed: int = 0, **changes: Any) -> list[int]:
    """Outputs that are not rescaled; a fifth of them short, unless the changes say otherwise."""
    law = LAW | {"output_short_fraction": 0.2, "output_short_max_tokens": 16} | changes
    spec = DrawnWorkload(kind="synthetic_drawn", **law)
    return [request.output_tokens for request in generate(spec, POISSON, seed).requests]


# -- one seed, one workload ----------------------------------------------------------------------


def test_the_same_seed_gives_the_same_workload() -> None:
    assert draw(7) == draw(7)
    assert draw(7).digest == draw(7).digest


def test_a_small_workload_keeps_its_digest() -> None:
    # Pinned: a change here changes every published cell.
    assert draw(1, num_requests=8).digest == (
        "53ce978fb13c0f107aa5b84bf64fb3383c026fbb00a1b4c8cc50821eff23b5e5"
    )


def test_every_seed_has_requests_of_its_own() -> None:
    assert len({draw(seed, num_requests=5).digest for seed in range(50)}) == 50


def test_two_seeds_do_not_send_in_lockstep() -> None:
    # Clients of one driver that shared a seed slept and sent together.
    gaps = [np.diff([r.arrival_s for r in draw(seed).requests]).round(6) for seed in (0, 1)]
    assert not set(gaps[0]) & set(gaps[1])


def test_drawing_does_not_touch_or_follow_the_global_generator() -> None:
    np.random.seed(1)  # noqa: NPY002
    first = draw(3).digest
    np.random.seed(2)  # noqa: NPY002
    assert draw(3).digest == first


def test_build_generates_a_synthetic_workload() -> None:
    spec = SyntheticWorkload(kind="synthetic", **LAW)
    assert build(spec, POISSON, 5).digest == generate(spec, POISSON, 5).digest


# -- laws ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_mean_lengths_hit_the_stated_ones_to_rounding(seed: int) -> None:
    # Rounding moves a length by at most 1/2, uniformly: 6 standard errors of 300 are 0.1 tokens.
    workload = draw(seed)
    prompts = [r.prompt_tokens for r in workload.requests]
    outputs = [r.output_tokens for r in workload.requests]
    assert np.mean(prompts) == pytest.approx(3365, abs=0.1)
    assert np.mean(outputs) == pytest.approx(261.5, abs=0.1)


def test_lengths_are_clipped_before_they_are_multiplied_and_not_again() -> None:
    # Nearly all suffixes clip to 4 or to 6: they stand 4 : 6 after the factor, and past both clips.
    workload = draw(
        suffix_median_tokens=5,
        suffix_sigma=100.0,
        suffix_min_tokens=4,
        suffix_max_tokens=6,
        shared_tokens=0,
        prompt_mean_tokens=5000,
    )
    prompts = sorted({r.prompt_tokens for r in workload.requests})
    assert min(prompts) > 6
    assert prompts[-1] / prompts[0] == pytest.approx(6 / 4, rel=1e-3)


def test_a_length_is_at_least_one() -> None:
    # Suffixes of 1 or 1,000 with a mean of 2: those of 1 scale to far below 1/2.
    workload = draw(
        suffix_sigma=100.0,
        suffix_min_tokens=1,
        suffix_max_tokens=1000,
        shared_tokens=0,
        prompt_mean_tokens=2,
    )
    assert min(r.prompt_tokens for r in workload.requests) == 1


def test_only_the_suffix_is_rescaled() -> None:
    short, long = draw(prompt_mean_tokens=3172), draw(prompt_mean_tokens=3272)
    for one, two in zip(short.requests, long.requests, strict=True):
        # Suffix means of 100 and 200: each suffix doubles, to the rounding of both.
        assert two.prompt_tokens - 3072 == pytest.approx(2 * (one.prompt_tokens - 3072), abs=1.5)


def test_suffixes_are_lognormal_before_the_clip() -> None:
    workload = draw(
        num_requests=5_000,
        suffix_median_tokens=1e6,
        suffix_sigma=0.5,
        suffix_min_tokens=1,
        suffix_max_tokens=10**9,
        shared_tokens=0,
        prompt_mean_tokens=1e6,
    )
    logs = np.log([r.prompt_tokens for r in workload.requests])
    assert stats.kstest((logs - logs.mean()) / 0.5, "norm").pvalue > 0.01


def test_outputs_are_gamma_before_the_clip() -> None:
    workload = draw(
        num_requests=5_000, output_min_tokens=1, output_max_tokens=10**9, output_mean_tokens=1e6
    )
    outputs = [r.output_tokens for r in workload.requests]
    assert stats.kstest(outputs, stats.gamma(2.5, scale=1e6 / 2.5).cdf).pvalue > 0.01


def test_drawn_totals_scatter_as_sums_of_independent_lengths_do() -> None:
    # Gamma of shape 2.5: a coefficient of variation of 0.632 each, 3.65 % for the sum of 300.
    totals = [sum(draw_outputs(seed, output_short_fraction=0.0)) for seed in range(200)]
    assert np.mean(totals) == pytest.approx(300 * 261.5, rel=4 * 0.0365 / 200**0.5)
    assert np.std(totals) / np.mean(totals) == pytest.approx(0.0365, rel=0.2)


def test_short_answers_are_as_frequent_as_the_law_says_and_leave_its_mean() -> None:
    outputs = np.array(draw_outputs(num_requests=20_000, output_max_tokens=10**6))
    # Of the gamma law with its mean near 324 tokens, 0.1 % are as short.
    assert np.mean(outputs <= 16) == pytest.approx(0.2, abs=0.012)
    assert outputs.mean() == pytest.approx(261.5, rel=0.02)
    assert outputs.min() == 4


def test_a_law_without_short_answers_draws_the_gamma_numbers_of_the_rescaled_law() -> None:
    drawn = np.array(draw_outputs(output_short_fraction=0.0))
    rescaled = np.array([request.output_tokens for request in draw().requests])
    assert drawn / drawn.mean() == pytest.approx(rescaled / rescaled.mean(), rel=0.05, abs=0.01)


def test_drawn_outputs_leave_contexts_prompts_arrivals_and_sharing_as_they_are() -> None:
    law = LAW | {"sharing": 0.5}
    short = {"output_short_fraction": 0.2, "output_short_max_tokens": 16}
    drawn = generate(DrawnWorkload(kind="synthetic_drawn", **law, **short), POISSON, 3)
    rescaled = generate(SyntheticWorkload(kind="synthetic", **law), POISSON, 3)
    for one, other in zip(drawn.requests, rescaled.requests, strict=True):
        assert (one.arrival_s, one.prompt_tokens) == (other.arrival_s, other.prompt_tokens)
        assert one.segments == other.segments


def test_short_answers_longer_than_the_mean_are_refused() -> None:
    with pytest.raises(ValueError, match="must exceed the mean of short answers"):
        draw_outputs(output_short_max_tokens=1000)


def test_contexts_follow_zipf() -> None:
    workload = draw(num_requests=20_000)
    counts = np.bincount([r.segments[0].content_id for r in workload.requests], minlength=8)
    weights = np.arange(1, 9) ** -0.7
    assert stats.chisquare(counts, 20_000 * weights / weights.sum()).pvalue > 0.01


def test_a_zipf_exponent_of_zero_makes_contexts_equally_likely() -> None:
    workload = draw(num_requests=20_000, zipf_exponent=0.0)
    counts = np.bincount([r.segments[0].content_id for r in workload.requests], minlength=8)
    assert stats.chisquare(counts).pvalue > 0.01


def test_arrivals_end_at_the_number_of_requests_over_the_rate() -> None:
    assert draw().requests[-1].arrival_s == 100.0  # 300 / 3


# -- sharing -------------------------------------------------------------------------------------


def test_a_sharing_request_shares_its_whole_context_and_no_more() -> None:
    for request in draw().requests:
        (segment,) = request.segments
        assert segment == Segment(end_tokens=3072, content_id=segment.content_id)
        assert 0 <= segment.content_id < 8
        assert request.prompt_tokens > 3072


def test_all_share_at_one_and_none_at_zero() -> None:
    assert len(sharers(draw(sharing=1.0))) == 300
    assert len(sharers(draw(sharing=0.0))) == 0


def test_about_half_share_at_one_half() -> None:
    # 300 fair draws: standard deviation 8.7, four of them are 35.
    assert abs(len(sharers(draw(sharing=0.5))) - 150) < 35


def test_lengths_arrivals_and_contexts_do_not_depend_on_sharing() -> None:
    half, full = draw(sharing=0.5), draw(sharing=1.0)
    assert lengths(half) == lengths(full)
    for request in half.requests:
        if request.segments:
            assert request.segments == full.requests[request.request_id].segments


def test_who_shares_at_a_fraction_also_shares_at_every_larger_one() -> None:
    sets = [sharers(draw(sharing=q)) for q in (0.1, 0.3, 0.5, 0.9)]
    for smaller, larger in pairwise(sets):
        assert smaller < larger


def test_contexts_of_no_tokens_share_nothing() -> None:
    assert sharers(draw(shared_tokens=0)) == set()


def test_lengths_and_sharing_do_not_depend_on_the_arrival_pattern() -> None:
    spec = SyntheticWorkload(kind="synthetic", **(LAW | {"sharing": 0.5}))
    steady, bursty = generate(spec, POISSON, 0), generate(spec, BURST, 0)
    assert [r[1:] for r in lengths(steady)] == [r[1:] for r in lengths(bursty)]
    assert sharers(steady) == sharers(bursty)
    assert steady.digest != bursty.digest
