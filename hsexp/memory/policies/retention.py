"""Retention: which superseded states a running request keeps (Section 4.5, Q8)."""

from collections.abc import Hashable, Iterable
from typing import Protocol

from pydantic import PositiveInt

from hsexp.config.base import Config
from hsexp.config.fields import Name
from hsexp.memory.checkpoint import Checkpoint
from hsexp.memory.policies.demand import DemandKeys, DistinctRequesters


class Retention(Protocol):
    """Decides whether a request keeps a state after it has moved on to the next one."""

    def on_admission(self, request_id: int | str, keys: Iterable[Hashable]) -> None:
        """Called when a request is admitted, with the keys of its boundaries."""

    def keeps(self, checkpoint: Checkpoint) -> bool:
        """Whether the holder of a superseded state keeps the reference until it leaves."""
        ...


class RetentionConfig(Config):
    """Producer-side checkpoint lifetime (Section 4.5, Q8)."""

    name: Name
    requesters: PositiveInt | None
    """Distinct requests that must have asked for a checkpoint before its holder keeps it while
    running; null releases every superseded checkpoint."""
    demand_keys: DemandKeys = None

    def build(self) -> Retention:
        if self.requesters is None:
            return ReleaseSuperseded()
        return RetainDemanded(self.requesters, demand_keys=self.demand_keys)


class ReleaseSuperseded:
    """Ordinary caching: a superseded state loses its reference at the next step."""

    def on_admission(self, request_id: int | str, keys: Iterable[Hashable]) -> None:
        pass

    def keeps(self, checkpoint: Checkpoint) -> bool:
        return False


class RetainDemanded:
    """S2+Retention: a published state that enough distinct requests asked for stays referenced
    until its holder finishes or is preempted."""

    def __init__(self, requesters: int, *, demand_keys: int | None) -> None:
        self.demand = DistinctRequesters(requesters, max_keys=demand_keys)

    def on_admission(self, request_id: int | str, keys: Iterable[Hashable]) -> None:
        for key in keys:
            self.demand.register(key, request_id)

    def keeps(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.key is not None and self.demand.reached(checkpoint.key)
