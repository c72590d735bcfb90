"""Isolation: a stable cache salt for each request, so that no two share cached state (Q9)."""

from dataclasses import replace
from typing import Literal

from hsexp.config.base import Config
from hsexp.workload.request import Workload


class IsolationConfig(Config):
    """SHARE omits the cache salt; ISOLATE gives each request its own (Section 4.5, Q9)."""

    name: Literal["share", "isolate"]


def isolate(workload: Workload) -> Workload:
    """The ISOLATE arm of a workload; SHARE is the workload itself (Section 4.5).

    The salt follows from the request's position, so it is the same in every run and at every
    resume of the request. Lengths, arrivals and content stay as they are.
    """
    return replace(
        workload,
        requests=tuple(
            replace(request, cache_salt=f"request-{request.request_id}")
            for request in workload.requests
        ),
    )
