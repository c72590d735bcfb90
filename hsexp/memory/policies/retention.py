"""Retention: which superseded states a running request keeps (Section 4.5, Q8), and which cached
ones an admission may not take (`policies.pricing`)."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import Discriminator, PositiveInt, Tag

from hsexp.config.base import Config
from hsexp.config.fields import Name
from hsexp.memory.cache import Cache
from hsexp.memory.checkpoint import Checkpoint
from hsexp.memory.policies.demand import DemandKeys, DistinctRequesters
from hsexp.memory.policies.pricing import PricedRetention
from hsexp.memory.sequence import Hit, Refusal


class Retention(Protocol):
    """Decides whether a request keeps a state after it has moved on to the next one, and whether an
    admission may take what is cached."""

    def on_admission(self, request_id: int | str, keys: Iterable[Hashable]) -> None:
        """Called when a request is admitted, with the keys of its boundaries."""

    def keeps(self, checkpoint: Checkpoint) -> bool:
        """Whether the holder of a superseded state keeps the reference until it leaves."""
        ...

    def on_finish(self, output_tokens: int) -> None:
        """Called when a request leaves that has generated this many tokens."""

    def refusal(
        self, request_id: int | str, hit: Hit, need: Sequence[int], headroom: Sequence[int]
    ) -> Refusal | None:
        """None admits a request that needs `need` pages of each pool, which are free, while
        `headroom` pages stay free. It may have to give up cached entries at its admission."""
        ...


class DemandedRetention(Config):
    """Producer-side checkpoint lifetime (Section 4.5, Q8)."""

    name: Name
    requesters: PositiveInt | None
    """Distinct requests that must have asked for a checkpoint before its holder keeps it while
    running; null releases every superseded checkpoint."""
    demand_keys: DemandKeys = None
    needs_ranks: ClassVar[bool] = False
    """Whether the order of eviction must rank restart points."""

    @property
    def keeps_states(self) -> bool:
        """Whether a running request may keep states that it has moved on from."""
        return self.requesters is not None

    def build(self, cache: Cache) -> Retention:
        if self.requesters is None:
            return ReleaseSuperseded()
        return RetainDemanded(self.requesters, demand_keys=self.demand_keys)


RetentionConfig = Annotated[
    Annotated[DemandedRetention, Tag("demanded")] | Annotated[PricedRetention, Tag("priced")],
    Discriminator(lambda given: _kind_of(given)),
]
"""The first of them has no `kind`: it is older than the others, and cells have its values."""


def _kind_of(given: Any) -> Any:
    if isinstance(given, Mapping):
        return given.get("kind", "demanded")
    return getattr(given, "kind", "demanded")


class EverythingGoes:
    """An admission may take every free page."""

    def on_finish(self, output_tokens: int) -> None:
        pass

    def refusal(
        self, request_id: int | str, hit: Hit, need: Sequence[int], headroom: Sequence[int]
    ) -> Refusal | None:
        return None


class ReleaseSuperseded(EverythingGoes):
    """Ordinary caching: a superseded state loses its reference at the next step."""

    def on_admission(self, request_id: int | str, keys: Iterable[Hashable]) -> None:
        pass

    def keeps(self, checkpoint: Checkpoint) -> bool:
        return False


class RetainDemanded(EverythingGoes):
    """S2+Retention: a published state that enough distinct requests asked for stays referenced
    until its holder finishes or is preempted."""

    def __init__(self, requesters: int, *, demand_keys: int | None) -> None:
        self.demand = DistinctRequesters(requesters, max_keys=demand_keys)

    def on_admission(self, request_id: int | str, keys: Iterable[Hashable]) -> None:
        for key in keys:
            self.demand.register(key, request_id)

    def keeps(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.key is not None and self.demand.reached(checkpoint.key)
