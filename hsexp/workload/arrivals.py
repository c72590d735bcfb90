"""Arrival times: exponential gaps, plain or in bursts. Plain ones have exactly `rate_per_s`.

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


ArrivalsConfig = Annotated[PoissonArrivals | BurstArrivals, Field(discriminator="kind")]


def arrival_times(arrivals: ArrivalsConfig, num_requests: int, rng: Generator) -> list[float]:
    """Send times in seconds, ascending. Both kinds draw the same `num_requests` gaps from `rng`.

    Times are whole nanoseconds: math libraries differ in the last bit of a float, and the digest
    of a workload must not.
    """
    gaps = rng.exponential(size=num_requests)
    match arrivals:
        case PoissonArrivals():
            times = _poisson(gaps, arrivals.rate_per_s)
        case BurstArrivals():
            times = _burst(gaps, arrivals)
    return [round(time, 9) for time in times.tolist()]


def _poisson(gaps: NDArray[np.float64], rate_per_s: float) -> NDArray[np.float64]:
    """Arrivals whose gaps are rescaled to sum to n / rate."""
    elapsed = np.cumsum(gaps)
    times: NDArray[np.float64] = elapsed / elapsed[-1] * (len(gaps) / rate_per_s)
    return times


def _burst(gaps: NDArray[np.float64], arrivals: BurstArrivals) -> NDArray[np.float64]:
    """A Poisson process that runs in ON time only, with the OFF windows put in between.

    Its rate in ON time is rate x (on + off) / on, rescaled as in `_poisson`, so n arrivals take
    n / rate x on / (on + off) seconds of ON time. An arrival at the very end of an ON window stays
    in it, before the OFF window. Over whole cycles the rate is `rate_per_s`; up to the last arrival
    it is higher (see `BurstArrivals`).
    """
    cycle_s = arrivals.on_s + arrivals.off_s
    on_time = _poisson(gaps, arrivals.rate_per_s * cycle_s / arrivals.on_s)
    windows_before = np.ceil(on_time / arrivals.on_s) - 1
    return on_time + windows_before * arrivals.off_s
