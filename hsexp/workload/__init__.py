"""Workloads: the requests of one seed, generated or read from a trace, equal for every arm."""

from typing import Annotated

from pydantic import Field

from hsexp.config.base import ConfigError
from hsexp.workload.arrivals import ArrivalsConfig
from hsexp.workload.isolation import isolate
from hsexp.workload.request import Request, Segment, Workload
from hsexp.workload.synthetic import DrawnWorkload, SyntheticWorkload, generate
from hsexp.workload.traces import Trace, TraceError, load_trace, read_trace
from hsexp.workload.traces.config import TraceWorkload

WorkloadConfig = Annotated[
    SyntheticWorkload | DrawnWorkload | TraceWorkload, Field(discriminator="kind")
]


__all__ = [
    "Request",
    "Segment",
    "Trace",
    "TraceError",
    "Workload",
    "build",
    "generate",
    "isolate",
    "load_trace",
    "read_trace",
]


def build(workload: WorkloadConfig, arrivals: ArrivalsConfig | None, seed: int) -> Workload:
    """The requests of one seed. Equal arguments (and an unchanged trace) give an equal digest.

    `arrivals` may be None for a trace with times of its own.

    Raises:
        TraceError: a trace that cannot be read; names file, line and reason.
        ConfigError: arrivals are needed and missing.
    """
    match workload:
        case SyntheticWorkload() | DrawnWorkload():
            if arrivals is None:
                raise ConfigError("arrivals.rate_per_s is required for a synthetic workload")
            return generate(workload, arrivals, seed)
        case TraceWorkload():
            return load_trace(workload, arrivals, seed)
