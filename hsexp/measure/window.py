"""The central-arrival window: a run without its growth and its drain (Appendices B.4 and E.9).

    arrivals   |..... 20 % ....|======== 60 % ========|.... 20 % .....|
    window                     start   early | late    end

The window is a second view of a finite run and does not prove a steady state. `drift` measures how
much its two halves differ.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hsexp.measure.poller import TIME_TOLERANCE_S, Gauge

CENTRAL_PERCENT = (20.0, 80.0)
"""Percentiles of the arrival times that bound the window (Appendix B.4)."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """A stretch of a run, in seconds since its start: (start, end]."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


def central_window(arrival_s: NDArray[np.float64]) -> Window | None:
    """The window of an arrival sequence; None where it has no length.

    Args:
        arrival_s: planned arrivals give the common window, the same for all arms of a seed (B.4);
            actual send times give the realised window (E.9).
    """
    if not arrival_s.size:
        return None
    start, end = np.percentile(arrival_s, CENTRAL_PERCENT)
    return Window(start_s=float(start), end_s=float(end)) if end > start else None


def output_tokens_within(requests: pd.DataFrame, steps: pd.DataFrame, window: Window) -> int:
    """Output tokens generated inside the window, also those of requests that end later.

    Tokens count when they are generated, not when their request completes. This is inferred: of the
    two rules, only this one moves the gaps of Table E-14 as published. A token that ends the replay
    after a preemption has no recorded time and is left out; there is at most one per preemption.
    """
    start = steps["start_s"].to_numpy(dtype=np.float64)
    duration = steps["step_s"].to_numpy(dtype=np.float64)
    num_steps = steps["num_steps"].to_numpy(dtype=np.int64)

    def steps_ended(time_s: float) -> NDArray[np.float64]:
        ended = np.floor((time_s - start + TIME_TOLERANCE_S) / duration)
        return np.asarray(np.clip(ended, 0, num_steps), dtype=np.float64)

    ended = steps_ended(window.end_s) - steps_ended(window.start_s)
    decoded = int((ended * steps["decode_tokens"].to_numpy(dtype=np.int64)).sum())
    first = requests["first_token_s"].to_numpy(dtype=np.float64)
    after_start = first > window.start_s + TIME_TOLERANCE_S
    return decoded + int((after_start & (first <= window.end_s + TIME_TOLERANCE_S)).sum())


@dataclass(frozen=True, kw_only=True)
class Halves:
    """Means of a gauge in the two halves of the window."""

    early: float
    late: float

    @property
    def drift(self) -> float:
        """Change from the early to the late half over the larger of the two: in [-1, 1]; 0 is no
        drift. The paper does not state its limit."""
        larger = max(self.early, self.late)
        return 0.0 if larger == 0.0 else (self.late - self.early) / larger


def gauge_halves(gauge: Gauge, window: Window) -> Halves | None:
    """Running or waiting requests as the poller sees them; None where a half has no sample."""
    times, samples = gauge.times_s, gauge.samples
    middle = window.start_s + window.length_s / 2.0
    early = samples[(times > window.start_s) & (times <= middle)]
    late = samples[(times > middle) & (times <= window.end_s)]
    if not (early.size and late.size):
        return None
    return Halves(early=float(early.mean()), late=float(late.mean()))
