"""Restart points by their last hit: the one that was hit longest ago goes first."""

from collections.abc import Sequence
from typing import Literal

from hsexp.memory.policies.eviction.ranked import RankedEviction
from hsexp.memory.prefixes import Prefixes, Restart


class RestartPoint(RankedEviction):
    """The least recently hit restart point."""

    kind: Literal["restart_point"]

    def scores(self, restarts: Sequence[Restart], prefixes: Prefixes) -> list[int]:
        return [restart.last_used for restart in restarts]
