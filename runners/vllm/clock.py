"""The times of one real run: one clock for client and engine, and the ledger's episode.

    boot   warm-up  |------------------- episode --------------------|  shutdown
                    |   start |== request span ==| polled as idle    |

All stamps are the machine's monotonic clock in nanoseconds, which every process on it shares. The
request span, first planned request to last token, gives throughput and latencies (Section 4.1); the
episode also has the load's orchestration and the completion polling, and neither boot nor shutdown
(Appendix G.3).
"""

import time
from dataclasses import dataclass

_NS_PER_S = 1_000_000_000

now_ns = time.monotonic_ns


@dataclass(frozen=True, kw_only=True)
class Episode:
    """When the load ran."""

    begin_ns: int
    start_ns: int
    """Second 0 of the workload."""
    end_ns: int

    @property
    def length_s(self) -> float:
        return (self.end_ns - self.begin_ns) / _NS_PER_S

    def seconds(self, stamp_ns: int) -> float:
        """Seconds since the start of the workload."""
        return (stamp_ns - self.start_ns) / _NS_PER_S


def at(start_ns: int, seconds: float) -> int:
    """The stamp that lies `seconds` after `start_ns`."""
    return start_ns + round(seconds * _NS_PER_S)


def seconds_until(stamp_ns: int) -> float:
    """Seconds from now; negative for a past stamp."""
    return (stamp_ns - now_ns()) / _NS_PER_S
