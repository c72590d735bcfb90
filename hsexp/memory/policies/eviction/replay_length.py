"""Restart points by what their loss would cost: the shortest replay goes first.

    restarts     R at 2,048 ........ S at 3,072
    lost         S: the next request restarts at R and replays 1,024 tokens
                 R: the next request of a prefix that ends before S replays 2,048 tokens

Our reading of eviction by segment length: a segment is what lies between a restart point and the
one before it. Of equal segments the one that was hit longest ago goes first.
"""

from collections.abc import Sequence
from typing import Literal

from hsexp.memory.policies.eviction.ranked import RankedEviction
from hsexp.memory.prefixes import Prefixes, Restart


class ReplayLength(RankedEviction):
    """The restart point with the shortest replay."""

    kind: Literal["replay_length"]

    def scores(self, restarts: Sequence[Restart], prefixes: Prefixes) -> list[int]:
        return [restart.replay_tokens for restart in restarts]
