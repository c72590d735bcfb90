"""Gauges of a run as a one-second poller sees them (Section 4.2, Appendix B.4)."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hsexp.measure.records import RunRecord

POLL_PERIOD_S = 1.0

TIME_TOLERANCE_S = 1e-6
"""Two computed times closer than this are the same event; steps take milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Gauge:
    """Samples of one gauge, in time order."""

    times_s: NDArray[np.float64]
    samples: NDArray[np.int64]


def gauge(record: RunRecord, column: str) -> Gauge:
    """Samples of the run's poller; for a run without a poller, samples as it would take them.

    A simulated episode lasts longer than its run (`RunnerModel`), and the poller as long as the
    episode.
    """
    if record.samples is None:
        samples = poll(record.steps, column, until_s=record.episode_s)
        times_s = POLL_PERIOD_S * np.arange(samples.size, dtype=np.float64)
        return Gauge(times_s=times_s, samples=samples)
    return Gauge(
        times_s=record.samples["time_s"].to_numpy(dtype=np.float64),
        samples=record.samples[column].to_numpy(dtype=np.int64),
    )


def poll(steps: pd.DataFrame, column: str, *, until_s: float | None = None) -> NDArray[np.int64]:
    """A gauge at every whole second from the start of the run to the end of its last step; 0 while
    nothing runs. Sample k was taken at k seconds.

    Args:
        until_s: end of the polling, if it goes on after the last step.
    """
    if steps.empty:
        return np.empty(0, dtype=np.int64)
    start = steps["start_s"].to_numpy(dtype=np.float64)
    end = start + steps["num_steps"].to_numpy() * steps["step_s"].to_numpy(dtype=np.float64)
    last_s = end[-1] if until_s is None else max(end[-1], until_s)
    times = np.arange(0.0, last_s + TIME_TOLERANCE_S, POLL_PERIOD_S)
    row = np.searchsorted(start, times, side="right") - 1
    busy = (row >= 0) & (times < end[row])
    return np.where(busy, steps[column].to_numpy(dtype=np.int64)[row], 0)
