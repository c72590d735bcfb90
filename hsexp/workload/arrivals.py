"""Arrival times: exponential gaps, plain or in bursts, as drawn or rescaled to their mean.

Drawn gaps scatter from seed to seed as the arrivals of a Poisson process do. Rescaled ones sum to
exactly n / rate in every seed, so that no seed is busier than another. The two draw the same gaps.

A burst runs the same process faster, in ON time only, with OFF windows in between. A run does not
wait for its last OFF window, so a burst carries more than `rate_per_s`:

    ON time      |  | |     | :  | ||    | :  | |         rate x (on + off) / on
    wall time    |  | |     | [   OFF   ]  | ||    | [   OFF   ]  | |
"""

from typing import Annotated, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat

from hsexp.config.base import Config


class PoissonArrivals(Config):
    """Exponential gaps, rescaled so that the last arrival is at num_requests / rate."""

    kind: Literal["poisson"]
    rate_per_s: PositiveFloat


class DrawnPoissonArrivals(Config):
    """Exponential gaps as drawn; the last arrival is at num_requests / rate on average only."""

    kind: Literal["poisson_drawn"]
    rate_per_s: PositiveFloat


class BurstArrivals(Config):
    """Poisson arrivals squeezed into ON windows (Appendix E.4).

    `rate_per_s` is the mean over whole cycles of ON and OFF time. A run ends in an ON window and
    does not wait for the OFF window after it, so its load is higher: 300 requests at 1.7 per
    second, 5 s on and 15 s off, arrive in 164.1 s instead of 176.5 s, at 1.83 per second. A row's
    `planned_rate_per_s` and `realised_rate_per_s` give the load of its run.
    """

    kind: Literal["burst"]
    rate_per_s: PositiveFloat
    on_s: PositiveFloat
    off_s: Annotated[float, Field(ge=0.0)]


class DrawnBurstArrivals(BurstArrivals):
    """Bursts of a Poisson process whose gaps were not rescaled."""

    kind: Literal["burst_drawn"]  # type: ignore[assignment]  # a kind of its own


ArrivalsConfig = Annotated[
    PoissonArrivals | DrawnPoissonArrivals | BurstArrivals | DrawnBurstArrivals,
    Field(discriminator="kind"),
]


def arrival_times(arrivals: ArrivalsConfig, num_requests: int, rng: Generator) -> list[float]:
    """Send times in seconds, ascending. Every kind draws the same `num_requests` gaps from `rng`.

    Times are whole nanoseconds: math libraries differ in the last bit of a float, and the digest
    of a workload must not.
    """
    elapsed = np.cumsum(rng.exponential(size=num_requests))
    match arrivals:
        case PoissonArrivals():
            times = _rescaled(elapsed, arrivals.rate_per_s)
        case DrawnPoissonArrivals():
            times = elapsed / arrivals.rate_per_s
        case DrawnBurstArrivals():
            times = _in_windows(elapsed / _on_rate(arrivals), arrivals)
        case BurstArrivals():
            times = _in_windows(_rescaled(elapsed, _on_rate(arrivals)), arrivals)
    return [round(time, 9) for time in times.tolist()]


def _rescaled(elapsed: NDArray[np.float64], rate_per_s: float) -> NDArray[np.float64]:
    """Arrivals whose gaps are rescaled to sum to n / rate."""
    times: NDArray[np.float64] = elapsed / elapsed[-1] * (len(elapsed) / rate_per_s)
    return times


def _on_rate(arrivals: BurstArrivals) -> float:
    """Requests per second of ON time that make `rate_per_s` over whole cycles."""
    return arrivals.rate_per_s * (arrivals.on_s + arrivals.off_s) / arrivals.on_s


def _in_windows(on_time: NDArray[np.float64], arrivals: BurstArrivals) -> NDArray[np.float64]:
    """Wall times of a process that runs in ON time only, with the OFF windows put in between.

    An arrival at the very end of an ON window stays in it, before the OFF window. Over whole cycles
    the rate is `rate_per_s`; up to the last arrival it is higher (see `BurstArrivals`).
    """
    windows_before = np.ceil(on_time / arrivals.on_s) - 1
    return on_time + windows_before * arrivals.off_s
