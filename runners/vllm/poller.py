"""Asks a running server for its gauges once a second (Section 4.2)."""

import asyncio
import math
from collections.abc import Awaitable, Callable

import pandas as pd

from hsexp.measure.poller import POLL_PERIOD_S
from hsexp.measure.records import SAMPLE_COLUMNS
from runners.vllm.clock import at, now_ns, seconds_until
from runners.vllm.exposition import Exposition
from runners.vllm.faults import RunFault

_GAUGES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "free_pages": "hsexp:free_pages",
    "preemptions": "hsexp:preemptions_total",
}
"""Column of a sample: metric of the server."""


class Poller:
    """Samples at whole seconds from the start, until the engine is idle behind the last request."""

    def __init__(self, fetch: Callable[[], Awaitable[str]], start_ns: int) -> None:
        self._fetch = fetch
        self._start_ns = start_ns
        self._rows: list[dict[str, float]] = []
        self._all_sent_and_answered = False

    async def run(self) -> None:
        """Sample until `finish` was called and a sample shows an idle engine.

        Raises:
            RunFault: the server does not report a gauge.
        """
        second = 0
        while True:
            await asyncio.sleep(max(0.0, seconds_until(at(self._start_ns, second * POLL_PERIOD_S))))
            asked_ns = now_ns()
            row = read_gauges(Exposition(await self._fetch()))
            self._rows.append({"time_s": (asked_ns - self._start_ns) / 1e9, **row})
            if self._all_sent_and_answered and row["running"] + row["waiting"] == 0:
                return
            elapsed_s = (now_ns() - self._start_ns) / 1e9
            second = max(second + 1, math.ceil(elapsed_s))  # a slow answer skips its seconds

    def finish(self) -> None:
        """Every answer is there: stop at the next idle sample."""
        self._all_sent_and_answered = True

    @property
    def samples(self) -> pd.DataFrame:
        return pd.DataFrame(self._rows, columns=list(SAMPLE_COLUMNS)).astype(SAMPLE_COLUMNS)


def read_gauges(page: Exposition) -> dict[str, float]:
    """One sample without its time.

    Raises:
        RunFault: the page lacks a gauge; it is named.
    """
    values = {column: page.total(metric) for column, metric in _GAUGES.items()}
    missing = [_GAUGES[column] for column, value in values.items() if value is None]
    if missing:
        raise RunFault(f"the server does not report {', '.join(missing)}")
    return {column: value for column, value in values.items() if value is not None}
