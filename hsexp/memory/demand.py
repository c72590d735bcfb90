"""Demand: which distinct requests asked for a key, counted no further than is needed."""

from collections.abc import Hashable


class DistinctRequesters:
    """Remembers up to `threshold` distinct requesters of each key."""

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold
        self._requesters: dict[Hashable, set[int | str]] = {}

    def register(self, key: Hashable, request_id: int | str) -> None:
        """The same requester counts once (Appendix B.2)."""
        requesters = self._requesters.setdefault(key, set())
        if len(requesters) < self.threshold:
            requesters.add(request_id)

    def reached(self, key: Hashable) -> bool:
        return len(self._requesters.get(key, ())) >= self.threshold
