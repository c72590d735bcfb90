"""Latency-qualified goodput: output tokens of requests that meet latencies other requests had.

The thresholds are percentiles of observed requests, so they test how a comparison depends on a
definition of latency; they are not service-level objectives (Appendices B.4 and E.8, Table E-13).
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hsexp.measure.metrics import rate_per_s, request_span_s


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Longest latencies that count as good."""

    e2e_s: float
    tpot_s: float


def union_thresholds(tables: list[pd.DataFrame], percent: float) -> Thresholds:
    """The percentile of the finished requests of all arms together.

    The table of one arm alone gives the thresholds of that comparator.

    Raises:
        ValueError: no finished request, or none with two output tokens.
    """
    latencies = [_latencies(table) for table in tables]
    e2e = np.concatenate([e2e for e2e, _ in latencies])
    tpot = np.concatenate([tpot for _, tpot in latencies])
    tpot = tpot[~np.isnan(tpot)]
    if not e2e.size or not tpot.size:
        raise ValueError("latency thresholds need finished requests with two output tokens")
    return Thresholds(
        e2e_s=float(np.percentile(e2e, percent)), tpot_s=float(np.percentile(tpot, percent))
    )


def goodput_tok_per_s(requests: pd.DataFrame, thresholds: Thresholds) -> float | None:
    """Output tokens of finished requests within both thresholds, over the run's request span.

    A one-token output has no TPOT and meets that threshold. None without a finished request.
    """
    finished = _finished(requests)
    e2e, tpot = _latencies(requests)
    good = (e2e <= thresholds.e2e_s) & ~(tpot > thresholds.tpot_s)
    span = request_span_s(
        requests["arrival_s"].to_numpy(dtype=np.float64),
        finished["finish_s"].to_numpy(dtype=np.float64),
    )
    return rate_per_s(int(finished["generated_tokens"].to_numpy()[good].sum()), span)


def _latencies(requests: pd.DataFrame) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """E2E and TPOT of each finished request; the TPOT of a one-token output is NaN."""
    finished = _finished(requests)
    arrival, first, last = (
        finished[name].to_numpy(dtype=np.float64)
        for name in ("arrival_s", "first_token_s", "finish_s")
    )
    num_gaps = finished["generated_tokens"].to_numpy(dtype=np.float64) - 1.0
    tpot = np.divide(last - first, num_gaps, out=np.full(first.size, np.nan), where=num_gaps > 0)
    return last - arrival, tpot


def _finished(requests: pd.DataFrame) -> pd.DataFrame:
    return requests[(requests["status"] == "finished").to_numpy(dtype=bool)]
