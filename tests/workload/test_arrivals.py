"""Arrival times against their stated sums and windows."""

import numpy as np
import pytest
from scipy import stats

from hsexp.workload.arrivals import ArrivalsConfig, BurstArrivals, PoissonArrivals, arrival_times

POISSON = PoissonArrivals(kind="poisson", rate_per_s=3.0)
BURST = BurstArrivals(kind="burst", rate_per_s=1.7, on_s=5.0, off_s=15.0)


def draw(arrivals: ArrivalsConfig, n: int, seed: int = 0) -> list[float]:
    return arrival_times(arrivals, n, np.random.default_rng(seed))


def test_gaps_sum_to_the_number_of_requests_over_the_rate() -> None:
    assert draw(POISSON, 300)[-1] == 100.0  # 300 / 3


def test_a_single_request_arrives_one_mean_gap_after_the_start() -> None:
    assert draw(PoissonArrivals(kind="poisson", rate_per_s=4.0), 1) == [0.25]


@pytest.mark.parametrize("arrivals", [POISSON, BURST], ids=["poisson", "burst"])
def test_arrivals_ascend_and_start_after_zero(arrivals: ArrivalsConfig) -> None:
    times = draw(arrivals, 300)
    assert times[0] > 0
    assert times == sorted(times)


def test_poisson_gaps_are_exponential() -> None:
    gaps = np.diff(draw(POISSON, 20_000), prepend=0.0)
    assert stats.kstest(gaps, stats.expon(scale=1 / 3).cdf).pvalue > 0.01


def test_every_burst_arrival_falls_into_an_on_window() -> None:
    phase = np.array(draw(BURST, 3_000)) % 20.0
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


def test_both_kinds_take_equally_many_draws_from_the_generator() -> None:
    one, other = np.random.default_rng(0), np.random.default_rng(0)
    arrival_times(POISSON, 50, one)
    arrival_times(BURST, 50, other)
    assert one.random() == other.random()


@pytest.mark.parametrize("arrivals", [POISSON, BURST], ids=["poisson", "burst"])
def test_times_are_whole_nanoseconds(arrivals: ArrivalsConfig) -> None:
    times = draw(arrivals, 300)
    assert times == [round(time, 9) for time in times]
    # Not coarser: most of them need all nine digits.
    assert sum(time != round(time, 8) for time in times) > 200
