"""Workloads: the requests of one seed, generated or read from a trace, equal for every arm."""

from typing import Annotated, get_args

from pydantic import Field

from hsexp.config.base import ConfigError
from hsexp.workload.arrivals import ArrivalsConfig
from hsexp.workload.conversations import ConversationWorkload, converse
from hsexp.workload.drifting import DriftingWorkload, drift
from hsexp.workload.isolation import isolate
from hsexp.workload.nested import NestedWorkload, nest
from hsexp.workload.request import Request, Segment, Workload
from hsexp.workload.synthetic import DrawnWorkload, SyntheticWorkload, generate
from hsexp.workload.traces import Trace, TraceError, load_trace, read_trace
from hsexp.workload.traces.config import TraceWorkload

_Law = (
    SyntheticWorkload
    | DrawnWorkload
    | DriftingWorkload
    | NestedWorkload
    | ConversationWorkload
    | TraceWorkload
)

WorkloadConfig = Annotated[_Law, Field(discriminator="kind")]

KINDS_WITH_OWN_SHARING = frozenset(
    kind
    for law in get_args(_Law)
    if "sharing" not in law.model_fields
    for kind in get_args(law.model_fields["kind"].annotation)
)
"""Kinds of workload that fix their own sharing: no fraction q applies to them."""


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
    if isinstance(workload, TraceWorkload):
        return load_trace(workload, arrivals, seed)
    if arrivals is None:
        raise ConfigError("arrivals.rate_per_s is required for a synthetic workload")
    match workload:
        case DriftingWorkload():
            return drift(workload, arrivals, seed)
        case SyntheticWorkload() | DrawnWorkload():
            return generate(workload, arrivals, seed)
        case NestedWorkload():
            return nest(workload, arrivals, seed)
        case ConversationWorkload():
            return converse(workload, arrivals, seed)
