"""Intervals over stretches of one run: what they resample, and how wide they are."""

import numpy as np
import pandas as pd
import pytest

from analysis.stretches import (
    Blocks,
    piece_times_s,
    throughput_change,
    throughput_interval,
    times_to_first_token_s,
    ttft_change,
    ttft_interval,
)

BLOCKS = Blocks(pieces=8, length=2, resamples=400, level=0.95, seed=1)


def run(
    finish_s: list[float], tokens: list[int], first_s: list[float] | None = None
) -> pd.DataFrame:
    """Requests that arrive at whole seconds, from 0."""
    count = len(finish_s)
    return pd.DataFrame(
        {
            "request_id": range(count),
            "arrival_s": np.arange(count, dtype=float),
            "first_token_s": first_s or [i + 0.5 for i in range(count)],
            "finish_s": finish_s,
            "generated_tokens": tokens,
        }
    )


def test_the_times_of_the_pieces_add_up_to_the_span_of_the_run() -> None:
    # 10 tokens by 2 s, 30 more by 4 s: quarters of 40 tokens end at 2, 2 2/3, 3 1/3 and 4 s.
    times = piece_times_s(run([2.0, 4.0], [10, 30]), 4)
    assert times == pytest.approx([2.0, 2 / 3, 2 / 3, 2 / 3])
    assert times.sum() == pytest.approx(4.0)


def test_latencies_are_in_the_order_of_the_trace() -> None:
    requests = run([9.0, 8.0], [1, 1], first_s=[3.0, 1.5]).iloc[::-1]
    assert times_to_first_token_s(requests) == pytest.approx([3.0, 0.5])


def test_draws_are_whole_blocks_of_neighbours_on_a_circle() -> None:
    drawn = BLOCKS.drawn(8)
    assert drawn.shape == (400, 8)
    steps = (drawn[:, 1::2] - drawn[:, ::2]) % 8
    assert (steps == 1).all()
    counts = np.bincount(drawn.ravel(), minlength=8)
    assert counts.min() > 0.8 * counts.mean()  # the ends are drawn as often as the middle


def test_a_run_against_itself_changes_nothing() -> None:
    requests = run([2.0, 5.0, 6.0, 9.0], [10, 20, 5, 30])
    for change in (
        throughput_change(requests, requests, BLOCKS),
        ttft_change(requests, requests, 99.0, BLOCKS),
    ):
        assert (change.low, change.high) == (0.0, 0.0)


def test_a_run_twice_as_fast_everywhere_is_twice_as_fast_in_every_stretch() -> None:
    slow = run([4.0, 10.0, 12.0, 18.0], [10, 20, 5, 30])
    fast = slow.assign(finish_s=slow["finish_s"] / 2.0)
    change = throughput_change(fast, slow, BLOCKS)
    assert (change.low, change.high) == pytest.approx((100.0, 100.0))


def test_intervals_hold_the_value_of_the_run() -> None:
    rng = np.random.default_rng(3)
    waits = rng.exponential(1.0, 200)
    requests = run(
        list(np.cumsum(rng.exponential(1.0, 200))), [10] * 200, list(np.arange(200) + waits)
    )
    blocks = Blocks(pieces=40, length=4, resamples=400, level=0.95, seed=1)
    rate = throughput_interval(requests, blocks)
    assert rate.low < 2000 / requests["finish_s"].max() < rate.high
    late = ttft_interval(requests, 50.0, blocks)
    assert late.low < np.median(waits) < late.high
    assert (rate.n, rate.kind) == (1, "block bootstrap")


@pytest.mark.slow
def test_the_interval_of_a_median_covers_it_as_often_as_it_says() -> None:
    # Independent waits: blocks change nothing, and 95 % of the intervals hold ln 2.
    blocks = Blocks(pieces=40, length=2, resamples=300, level=0.95, seed=1)
    rng, covered = np.random.default_rng(5), 0
    for _ in range(300):
        waits = rng.exponential(1.0, 120)
        requests = run([1.0] * 120, [1] * 120, list(np.arange(120) + waits))
        found = ttft_interval(requests, 50.0, blocks)
        covered += found.low <= np.log(2.0) <= found.high
    assert 0.89 <= covered / 300 <= 0.98
