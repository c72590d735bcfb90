"""Demand: the distinct requests that asked for a key, counted up to a threshold."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Annotated

from pydantic import Field, PositiveInt

DemandKeys = Annotated[PositiveInt | None, Field(exclude_if=lambda value: value is None)]
"""Most keys whose requesters are remembered; the one requested longest ago is forgotten first. Null
remembers every key."""


class DistinctRequesters:
    """Remembers up to `threshold` distinct requesters of each key.

    Demand outlives the entry: a checkpoint that two requests asked for is in demand although the
    first one's was lost in between. So a key is not forgotten with its entry, but when `max_keys`
    others were requested later. A forgotten key starts again from zero.
    """

    def __init__(self, threshold: int, *, max_keys: int | None = None) -> None:
        """
        Args:
            max_keys: None remembers every key.
        """
        self.threshold = threshold
        self.max_keys = max_keys
        self._requesters: OrderedDict[Hashable, tuple[int | str, ...]] = OrderedDict()
        """Requesters by key; the key requested longest ago comes first."""

    def register(self, key: Hashable, request_id: int | str) -> None:
        """Count a requester of a key, each one once (Appendix B.2)."""
        requesters = self._requesters.get(key, ())
        if len(requesters) < self.threshold and request_id not in requesters:
            self._requesters[key] = (*requesters, request_id)
        self._requesters.move_to_end(key)
        if self.max_keys is not None and len(self._requesters) > self.max_keys:
            self._requesters.popitem(last=False)

    def reached(self, key: Hashable) -> bool:
        return len(self._requesters.get(key, ())) >= self.threshold

    def __len__(self) -> int:
        """Number of keys that are remembered."""
        return len(self._requesters)
