"""When the events of a trace happened: nanoseconds since its first one.

The queue has times of its own. Whatever a step does happens at its start, and what it computes is
there at its end.
"""

import numpy as np
import pyarrow.compute as pc

from hsexp.trace import Trace
from hsexp.trace.trace import Event

NS_PER_S = 1_000_000_000

AT_END = ("release", "unpin")
"""Acts that follow a step."""


class Clock:
    """Times of steps and of events."""

    def __init__(self, trace: Trace) -> None:
        steps = trace.table.filter(pc.equal(trace.table["kind"], "step"))
        order = np.argsort(steps["step"].to_numpy(), kind="stable")
        self._first = steps["step"].to_numpy()[order].astype(np.int64)
        self._start = _numbers(steps, "time_ns")[order]
        self._length = _numbers(steps, "duration_ns")[order]
        self._count = _numbers(steps, "count")[order]
        entered = trace.table.filter(pc.equal(trace.table["kind"], "enter"))
        entries = [time for time in entered["time_ns"].to_pylist() if time is not None]
        zeros = [*entries[:1], *self._start[:1].tolist()]
        self._zero = min(zeros, default=0)
        self._start -= self._zero
        ends = self._start + self._length * self._count
        releases = trace.table.filter(pc.equal(trace.table["kind"], "release"))
        times = [time - self._zero for time in releases["time_ns"].to_pylist() if time is not None]
        self.end_ns = max([0, *ends[-1:].tolist(), *times[-1:]])
        """End of the run."""

    def start(self, step: int) -> int:
        """The start of a step; one without tokens starts when the step before it ends."""
        if not len(self._first):
            return 0
        place = int(np.searchsorted(self._first, step, side="right")) - 1
        if place < 0:
            return int(self._start[0])
        within = min(step - int(self._first[place]), int(self._count[place]))
        return int(self._start[place] + within * self._length[place])

    def end(self, step: int) -> int:
        if not len(self._first):
            return 0
        place = int(np.searchsorted(self._first, step, side="right")) - 1
        if place < 0:
            return int(self._start[0])
        within = min(step - int(self._first[place]) + 1, int(self._count[place]))
        return int(self._start[place] + within * self._length[place])

    def of(self, event: Event) -> int:
        """When an event happened."""
        time_ns = getattr(event, "time_ns", None)
        if time_ns is not None:
            return int(time_ns) - self._zero
        if event.kind in ("chunk", "enter", "release"):
            return self.end(event.step)
        if event.kind == "publish" and event.ahead:
            return self.end(event.step)
        if getattr(event, "act", None) in AT_END:
            return self.end(event.step)
        return self.start(event.step)


def _numbers(table: object, name: str) -> np.ndarray:
    column = table[name].fill_null(0)  # type: ignore[index]
    values: np.ndarray = column.to_numpy().astype(np.int64)
    return values
