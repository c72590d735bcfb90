"""Checkpoint lifetime: which superseded states a running request keeps (Section 4.5, Q8)."""

from collections.abc import Hashable, Iterable

from hsexp.memory.checkpoint import Checkpoint
from hsexp.memory.demand import DistinctRequesters


class ReleaseSuperseded:
    """Ordinary caching: a superseded state loses its reference at the next step."""

    def on_admission(self, request_id: int | str, keys: Iterable[Hashable]) -> None:
        """An admitted request asked for the boundaries of these keys."""

    def keeps(self, checkpoint: Checkpoint) -> bool:
        return False


class RetainDemanded(ReleaseSuperseded):
    """S2+Retention: a published state that enough distinct requests asked for stays referenced
    until its holder finishes or is preempted."""

    def __init__(self, requesters: int, *, demand_keys: int | None) -> None:
        self.demand = DistinctRequesters(requesters, max_keys=demand_keys)

    def on_admission(self, request_id: int | str, keys: Iterable[Hashable]) -> None:
        for key in keys:
            self.demand.register(key, request_id)

    def keeps(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.key is not None and self.demand.reached(checkpoint.key)
