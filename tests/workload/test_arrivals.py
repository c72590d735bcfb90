"""Arrival times against their stated sums and windows."""

import numpy as np
import pytest
from scipy import stats

from hsexp.workload.arrivals import (
    ArrivalsConfig,
    BurstArrivals,
    DrawnBurstArrivals,
    DrawnPoissonArrivals,
    PoissonArrivals,
    arrival_times,
)

POISSON = PoissonArrivals(kind="poisson", rate_per_s=3.0)
BURST = BurstArrivals(kind="burst", rate_per_s=1.7, on_s=5.0, off_s=15.0)
DRAWN = DrawnPoissonArrivals(kind="poisson_drawn", rate_per_s=3.0)
DRAWN_BURST = DrawnBurstArrivals(kind="burst_drawn", rate_per_s=1.7, on_s=5.0, off_s=15.0)


def draw(arrivals: ArrivalsConfig, n: int, seed: int = 0) -> list[float]:
    return arrival_times(arrivals, n, np.random.default_rng(seed))


def test_gaps_sum_to_the_number_of_requests_over_the_rate() -> None:
    assert draw(POISSON, 300)[-1] == 100.0  # 300 / 3


def test_drawn_gaps_sum_to_that_on_average_and_scatter_as_a_poisson_process_does() -> None:
    # The sum of n exponential gaps has mean n / rate and standard deviation sqrt(n) / rate.
    spans = [draw(DRAWN, 300, seed)[-1] for seed in range(400)]
    assert np.mean(spans) == pytest.approx(100.0, abs=4 * 5.77 / 20)
    assert np.std(spans) == pytest.approx(300**0.5 / 3, rel=0.15)


def test_rescaling_multiplies_the_drawn_gaps_and_nothing_else() -> None:
    drawn, rescaled = np.array(draw(DRAWN, 300)), np.array(draw(POISSON, 300))
    assert rescaled / rescaled[-1] == pytest.approx(drawn / drawn[-1], abs=1e-9)


def test_drawn_bursts_of_the_mean_gap_are_the_rescaled_ones() -> None:
    # At the rate that the drawn gaps happen to have, nothing is left to rescale.
    own_rate = (
        1.7
        * draw(DrawnPoissonArrivals(kind="poisson_drawn", rate_per_s=1.7), 300)[-1]
        * (1.7 / 300)
    )
    drawn = DrawnBurstArrivals(kind="burst_drawn", rate_per_s=own_rate, on_s=5.0, off_s=15.0)
    assert draw(drawn, 300) == pytest.approx(draw(BURST, 300), abs=1e-6)


def test_a_single_request_arrives_one_mean_gap_after_the_start() -> None:
    assert draw(PoissonArrivals(kind="poisson", rate_per_s=4.0), 1) == [0.25]


@pytest.mark.parametrize(
    "arrivals", [POISSON, BURST, DRAWN, DRAWN_BURST], ids=lambda arrivals: arrivals.kind
)
def test_arrivals_ascend_and_start_after_zero(arrivals: ArrivalsConfig) -> None:
    times = draw(arrivals, 300)
    assert times[0] > 0
    assert times == sorted(times)


def test_poisson_gaps_are_exponential() -> None:
    gaps = np.diff(draw(POISSON, 20_000), prepend=0.0)
    assert stats.kstest(gaps, stats.expon(scale=1 / 3).cdf).pvalue > 0.01


@pytest.mark.parametrize("burst", [BURST, DRAWN_BURST], ids=lambda burst: burst.kind)
def test_every_burst_arrival_falls_into_an_on_window(burst: BurstArrivals) -> None:
    phase = np.array(draw(burst, 3_000)) % 20.0
    assert phase.max() <= 5.0
    assert phase.min() >= 0.0


def test_bursts_keep_the_mean_rate_over_whole_cycles() -> None:
    # 340 requests at 1.7 per second are 200 s: ten cycles of 20 s with 50 s of ON time. The last
    # arrival closes the tenth ON window: 9 x 20 + 5.
    times = draw(BURST, 340)
    assert times[-1] == pytest.approx(185.0, abs=1e-6)
    assert len({int(time // 20) for time in times[:-1]}) == 10


def test_bursts_carry_more_than_the_rate_because_no_off_window_ends_them() -> None:
    # 300 requests at 1.7 per second: 44.1 s of ON time are eight whole windows and a bit. Eight OFF
    # windows of 15 s make that 164.1 s, not 176.5 s: 1.83 per second. `BurstArrivals` says so.
    times = draw(BURST, 300)
    assert times[-1] == pytest.approx(300 / 6.8 + 8 * 15.0) == pytest.approx(164.1, abs=0.05)
    assert 300 / times[-1] == pytest.approx(1.83, abs=0.005)
    assert 300 / draw(PoissonArrivals(kind="poisson", rate_per_s=1.7), 300)[-1] == pytest.approx(
        1.7
    )


def test_a_short_burst_run_has_the_full_on_rate() -> None:
    # 17 requests at 1.7 x 20 / 5 = 6.8 per second of ON time end after 2.5 s.
    assert draw(BURST, 17)[-1] == 2.5


def test_bursts_without_off_time_are_poisson_arrivals() -> None:
    steady = BurstArrivals(kind="burst", rate_per_s=3.0, on_s=5.0, off_s=0.0)
    assert draw(steady, 300) == pytest.approx(draw(POISSON, 300), abs=1e-8)


@pytest.mark.parametrize("arrivals", [BURST, DRAWN, DRAWN_BURST], ids=lambda other: other.kind)
def test_every_kind_takes_equally_many_draws_from_the_generator(arrivals: ArrivalsConfig) -> None:
    one, other = np.random.default_rng(0), np.random.default_rng(0)
    arrival_times(POISSON, 50, one)
    arrival_times(arrivals, 50, other)
    assert one.random() == other.random()


@pytest.mark.parametrize("arrivals", [POISSON, BURST], ids=["poisson", "burst"])
def test_times_are_whole_nanoseconds(arrivals: ArrivalsConfig) -> None:
    times = draw(arrivals, 300)
    assert times == [round(time, 9) for time in times]
    # Not coarser: most of them need all nine digits.
    assert sum(time != round(time, 8) for time in times) > 200
