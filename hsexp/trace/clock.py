"""When the events of a trace happened: nanoseconds since its first one.

The queue has times of its own. Whatever a step does happens at its start, and what it computes is
there at its end.
"""

from bisect import bisect_right

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hsexp.trace.trace import Event, Trace

NS_PER_S = 1_000_000_000

AT_END = ("release", "unpin")
"""Acts that follow a step."""


class Clock:
    """Times of steps and of events."""

    def __init__(self, trace: Trace) -> None:
        steps = trace.table.filter(pc.equal(trace.table["kind"], "step"))
        order = np.argsort(_numbers(steps, "step"), kind="stable")
        columns = ("step", "time_ns", "duration_ns", "count")
        self.has_times = steps["time_ns"].null_count < len(steps)
        """Whether the run had a clock; without one, all times are zero."""
        values: list[list[int]] = [_numbers(steps, name)[order].tolist() for name in columns]
        self._first, self._start, self._length, self._count = values
        self._zero = min([*_times(trace, "enter")[:1], *self._start[:1]], default=0)
        self._start = [time - self._zero for time in self._start]
        releases = [time - self._zero for time in _times(trace, "release")]
        self.end_ns = max([0, *releases[-1:], *self._ends(-1)])
        """End of the run."""

    def start(self, step: int) -> int:
        """The start of a step; one without tokens starts when the step before it ends."""
        return self._within(step, 0)

    def end(self, step: int) -> int:
        return self._within(step, 1)

    def _within(self, step: int, further: int) -> int:
        """The start of a step, or that of the one after it in the same stretch."""
        place = bisect_right(self._first, step) - 1
        if place < 0:
            return self._start[0] if self._start else 0
        steps = min(step - self._first[place] + further, self._count[place])
        return self._start[place] + steps * self._length[place]

    def _ends(self, place: int) -> list[int]:
        """The end of a stretch, if there is one."""
        if not self._first:
            return []
        return [self._start[place] + self._length[place] * self._count[place]]

    def of(self, event: Event) -> int:
        """When an event happened."""
        time_ns: int | None = getattr(event, "time_ns", None)
        if time_ns is not None:
            return time_ns - self._zero
        if event.kind in ("chunk", "enter", "release"):
            return self.end(event.step)
        if event.kind == "publish" and event.ahead:
            return self.end(event.step)
        if getattr(event, "act", None) in AT_END:
            return self.end(event.step)
        return self.start(event.step)


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    values: np.ndarray = table[name].fill_null(0).to_numpy().astype(np.int64)
    return values


def _times(trace: Trace, kind: str) -> list[int]:
    """Times of the events of a kind that have one."""
    table = trace.table.filter(pc.equal(trace.table["kind"], kind))
    return [time for time in table["time_ns"].to_pylist() if time is not None]
