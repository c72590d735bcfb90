"""Blocks that serve a request trace: which requests they serve, and axes that a trace ignores."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

from hsexp.config.axes import SEEDS
from hsexp.config.campaigns import Block
from hsexp.plan.cells import format_seeds
from hsexp.workload import Trace, read_trace
from hsexp.workload.traces.config import TraceWorkload


class PlannedTraces:
    """The traces of one plan. Each is read once, so that all cells serve the same requests."""

    def __init__(self) -> None:
        self._read: Callable[[TraceWorkload], Trace] = cache(read_trace)
        self._dropped: dict[str, Mapping[str, int]] = {}
        """Requests that a trace leaves out, by its digest."""

    def fixed(self, workload: TraceWorkload) -> TraceWorkload:
        """The workload with the digest of its requests.

        Raises:
            TraceError: the trace is refused.
        """
        trace = self._read(workload)
        self._dropped[trace.digest] = trace.dropped
        return workload.model_copy(update={"content_digest": trace.digest})

    def refusals(
        self,
        workload: TraceWorkload,
        block: Block,
        axes: Mapping[str, Any],
        *,
        engine: Literal["sim", "vllm"],
    ) -> list[str]:
        """One line for each axis that is needed and missing, or that the trace would not follow.

        Raises:
            TraceError: the trace is refused.
        """
        return _refusals(self._read(workload), workload, block, axes, engine=engine)

    def notes(self, workload: TraceWorkload) -> list[str]:
        """A line if a trace that was `fixed` leaves out requests of its file."""
        assert workload.content_digest is not None
        dropped = self._dropped[workload.content_digest]
        if not dropped:
            return []
        counts = ", ".join(f"{count:,} {why}" for why, count in dropped.items())
        return [f"the trace leaves out {counts}"]


def _refusals(
    trace: Trace,
    workload: TraceWorkload,
    block: Block,
    axes: Mapping[str, Any],
    *,
    engine: Literal["sim", "vllm"],
) -> list[str]:
    replayed, rate = trace.replayed_by(workload), axes["rate_per_s"]
    seeds = block.values(SEEDS)
    refusals = []
    if replayed and rate is not None:
        refusals.append(
            f"arrivals.rate_per_s must be null, got {rate}: {trace.path} is replayed with its own "
            "times; workload.keep_arrivals=false draws arrivals at the rate instead"
        )
    if not replayed and rate is None:
        refusals.append(
            f"arrivals.rate_per_s is required: {trace.path} is not replayed with its own times"
        )
    # A real engine measures other times in each repeat; the simulator computes the same ones.
    if replayed and len(seeds) > 1 and engine == "sim":
        refusals.append(
            f"seeds must be one seed, got {format_seeds(sorted(seeds))}: {trace.path} is replayed "
            "with its own times, so no seed draws anything and all of them are one run; "
            "workload.keep_arrivals=false draws arrivals"
        )
    return refusals
