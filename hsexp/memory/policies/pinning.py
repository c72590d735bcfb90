"""Pinning: extra references on a preempted request's checkpoint (Appendix B.2).

The rightmost resident boundary of the preempted request is pinned if enough distinct requesters
are known for it and the protection budget has room. The pin is dropped when the request runs
again and has its own references, when it is cancelled, or when nothing else could run.
"""

from collections.abc import Hashable
from typing import Protocol

from pydantic import PositiveInt

from hsexp.config.base import Config
from hsexp.config.fields import Fraction, Name
from hsexp.memory.checkpoint import Checkpoint, StateStore
from hsexp.memory.policies.demand import DemandKeys, DistinctRequesters
from hsexp.memory.pool import floor_of


class Pinning(Protocol):
    """Decides which references outlive a preemption."""

    @property
    def num_pins(self) -> int:
        """References that are held now."""
        ...

    def on_adopt(self, request_id: int | str, key: Hashable) -> None:
        """Called when an admitted request reuses the checkpoint `key`."""

    def pin(self, request_id: int | str, checkpoint: Checkpoint) -> bool:
        """Called when the request is preempted. Returns whether a reference was taken."""
        ...

    def unpin(self, request_id: int | str) -> None:
        """Drop the reference held for this request, if any."""

    def unpin_all(self) -> None:
        """Drop every reference."""

    def pins(self) -> dict[int | str, Checkpoint]:
        """The pinned checkpoints by request."""
        ...


class PinningConfig(Config):
    """Extra references taken at preemption (Appendix B.2)."""

    name: Name
    requesters: PositiveInt | None
    """Distinct-requester threshold K of the rightmost boundary; null is Roff."""
    protected_fraction: Fraction
    """Largest fraction of the recurrent pool's pages that pins may hold."""
    demand_keys: DemandKeys = None

    def build(self, store: StateStore) -> Pinning:
        if self.requesters is None:
            return NoPinning()
        return PinDemanded(
            store,
            requesters=self.requesters,
            demand_keys=self.demand_keys,
            max_pages=floor_of(self.protected_fraction, store.pool.spec.num_pages),
        )


class NoPinning:
    """Roff: preemption takes no extra reference."""

    @property
    def num_pins(self) -> int:
        return 0

    def on_adopt(self, request_id: int | str, key: Hashable) -> None:
        pass

    def pin(self, request_id: int | str, checkpoint: Checkpoint) -> bool:
        return False

    def unpin(self, request_id: int | str) -> None:
        pass

    def unpin_all(self) -> None:
        pass

    def pins(self) -> dict[int | str, Checkpoint]:
        return {}


class PinDemanded:
    """R0, R1, R2: pin when at least K distinct requesters are known (K = 3, 2, 1)."""

    def __init__(
        self, store: StateStore, *, requesters: int, demand_keys: int | None, max_pages: int
    ) -> None:
        self.store = store
        self.max_pages = max_pages
        self.demand = DistinctRequesters(requesters, max_keys=demand_keys)
        self._pins: dict[int | str, Checkpoint] = {}

    @property
    def num_pins(self) -> int:
        return len(self._pins)

    def on_adopt(self, request_id: int | str, key: Hashable) -> None:
        self.demand.register(key, request_id)

    def pin(self, request_id: int | str, checkpoint: Checkpoint) -> bool:
        assert request_id not in self._pins and checkpoint.key is not None
        self.demand.register(checkpoint.key, request_id)
        pages = (len(self._pins) + 1) * self.store.pages_per_state
        if pages > self.max_pages or not self.demand.reached(checkpoint.key):
            return False
        self.store.hold(checkpoint)
        self._pins[request_id] = checkpoint
        return True

    def unpin(self, request_id: int | str) -> None:
        checkpoint = self._pins.pop(request_id, None)
        if checkpoint is not None:
            self.store.release(checkpoint)

    def unpin_all(self) -> None:
        for request_id in list(self._pins):
            self.unpin(request_id)

    def pins(self) -> dict[int | str, Checkpoint]:
        return dict(self._pins)
