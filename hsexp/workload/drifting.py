"""Drifting popularity: the law of shared contexts, whose ranks move on while requests arrive.

    requests     0 ....... n - 1 | n ....... 2n - 1 | 2n ...
    rank 1         context 0     |    context 1     | context 2
    rank 2         context 1     |    context 2     | context 3
    last rank      context 7     |    context 0     | context 1

A context rises rank by rank until it is the most popular one, and then it is the least popular.
"""

from dataclasses import replace
from typing import Literal

from pydantic import PositiveInt

from hsexp.workload.arrivals import ArrivalsConfig
from hsexp.workload.request import Request, Workload
from hsexp.workload.synthetic import DrawnWorkload, generate


class DriftingWorkload(DrawnWorkload):
    """The drawn law, with ranks that move."""

    kind: Literal["synthetic_drifting"]  # type: ignore[assignment]  # a kind of its own
    drift_requests: PositiveInt
    """Requests after which every rank goes to the next context."""


def drift(spec: DriftingWorkload, arrivals: ArrivalsConfig, seed: int) -> Workload:
    """The requests of one seed: those of the drawn law with other contexts, and nothing else."""
    standing = generate(spec, arrivals, seed)
    return replace(standing, requests=tuple(_moved(spec, request) for request in standing.requests))


def _moved(spec: DriftingWorkload, request: Request) -> Request:
    moves = request.request_id // spec.drift_requests
    return replace(
        request,
        segments=tuple(
            replace(context, content_id=(context.content_id + moves) % spec.num_contexts)
            for context in request.segments
        ),
    )
