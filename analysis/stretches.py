"""Intervals over one run: a bootstrap of stretches of time, which keeps neighbours together.

A replayed trace is one sample, and its requests wait for each other, so that single requests are
not independent. Moving blocks of consecutive ones are drawn instead (Kuensch 1989), on a circle, so
that the ends are drawn as often as the middle. Two runs of the same requests are resampled with the
same blocks: their difference is paired.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.intervals import Interval

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """How stretches are drawn."""

    pieces: int
    """Equal shares into which the output of a run is cut."""
    length: int
    """Consecutive shares in a block."""
    resamples: int
    level: float
    seed: int

    def drawn(self, size: int) -> Ints:
        """Places in a series of `size` values: one row a resample, made of whole blocks."""
        length = max(1, round(size * self.length / self.pieces))
        starts = np.random.default_rng(self.seed).integers(
            0, size, size=(self.resamples, -(-size // length))
        )
        places = (starts[:, :, None] + np.arange(length)).reshape(self.resamples, -1)
        return np.asarray(places[:, :size] % size, dtype=np.int64)

    def interval(self, values: Floats) -> Interval:
        """The percentile interval of resampled values."""
        tail = (1.0 - self.level) / 2.0
        low, high = np.quantile(values, (tail, 1.0 - tail))
        return Interval(
            low=float(low),
            high=float(high),
            level=self.level,
            kind="block bootstrap",
            n=1,
            degenerate=bool(low == high),
        )


def piece_times_s(requests: pd.DataFrame, pieces: int) -> Floats:
    """Seconds that a run took for each of equal shares of its output; their sum is its span.

    Args:
        requests: the request table of a run in which every request finished.
    """
    ends = requests.sort_values("finish_s")
    tokens = np.cumsum(ends["generated_tokens"].to_numpy(dtype=np.float64))
    start = float(requests["arrival_s"].min())
    times = np.concatenate(([start], ends["finish_s"].to_numpy(dtype=np.float64)))
    clock = np.interp(
        np.linspace(0.0, tokens[-1], pieces + 1), np.concatenate(([0.0], tokens)), times
    )
    return np.asarray(np.diff(clock), dtype=np.float64)


def times_to_first_token_s(requests: pd.DataFrame) -> Floats:
    """TTFT of each request, in the order of the trace."""
    ordered = requests.sort_values("request_id")
    return (ordered["first_token_s"] - ordered["arrival_s"]).to_numpy(dtype=np.float64)


def throughput_interval(requests: pd.DataFrame, blocks: Blocks) -> Interval:
    """Output tokens per second of one run."""
    times = piece_times_s(requests, blocks.pieces)
    tokens = float(requests["generated_tokens"].sum())
    return blocks.interval(tokens / times[blocks.drawn(times.size)].sum(axis=1))


def throughput_change(run: pd.DataFrame, base: pd.DataFrame, blocks: Blocks) -> Interval:
    """Throughput of a run over another of the same requests, as a change in percent."""
    ours, theirs = (piece_times_s(each, blocks.pieces) for each in (run, base))
    drawn = blocks.drawn(ours.size)
    return blocks.interval(100.0 * (theirs[drawn].sum(axis=1) / ours[drawn].sum(axis=1) - 1.0))


def ttft_interval(requests: pd.DataFrame, percent: float, blocks: Blocks) -> Interval:
    """A percentile of TTFT of one run."""
    values = times_to_first_token_s(requests)
    return blocks.interval(np.percentile(values[blocks.drawn(values.size)], percent, axis=1))


def ttft_change(run: pd.DataFrame, base: pd.DataFrame, percent: float, blocks: Blocks) -> Interval:
    """A percentile of TTFT of a run over another of the same requests, as a change in percent."""
    ours, theirs = (times_to_first_token_s(each) for each in (run, base))
    drawn = blocks.drawn(ours.size)
    above, below = (np.percentile(each[drawn], percent, axis=1) for each in (ours, theirs))
    return blocks.interval(100.0 * (above / below - 1.0))
