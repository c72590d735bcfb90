"""What makes a trace whole (Appendix D.4): a start, an end record, no gap and nothing dropped."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class Integrity:
    """What a table of events says of itself."""

    num_events: int
    has_start: bool
    has_end: bool
    gaps: tuple[int, ...]
    """Places at which the sequence number is not the next one."""
    counted: int | None
    """Events before the end record, as it says; None without one, as below."""
    dropped: int | None
    write_errors: int | None

    @classmethod
    def of(cls, table: pa.Table) -> Self:
        """
        Args:
            table: of `hsexp.trace.schema.SCHEMA`.
        """
        last = table.slice(max(len(table) - 1, 0)).to_pylist()
        end = last[0] if last and last[0]["kind"] == "end" else None
        seq = table["seq"].to_numpy()
        # Behind a gap the next number is one more than the last one, not its place.
        gaps = np.flatnonzero(np.diff(seq, prepend=-1) != 1)
        return cls(
            num_events=len(table),
            has_start=len(table) > 0 and table["kind"][0].as_py() == "start",
            has_end=end is not None,
            gaps=tuple(int(place) for place in gaps),
            counted=None if end is None else end["count"],
            dropped=None if end is None else end["dropped"],
            write_errors=None if end is None else end["write_errors"],
        )

    @property
    def fault(self) -> str | None:
        """Why this is not a whole trace; None if it is."""
        if not self.has_start:
            return "the trace has no start"
        if not self.has_end:
            return f"the trace has no end record after {self.num_events} events"
        if self.dropped or self.write_errors:
            return (
                f"the trace has dropped {self.dropped} events in {self.write_errors} failed writes"
            )
        if self.gaps:
            return f"the trace has a gap at event {self.gaps[0]}"
        if self.counted != self.num_events - 1:
            return (
                f"the trace has {self.num_events - 1} events and its end record says {self.counted}"
            )
        return None
