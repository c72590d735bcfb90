"""What a client sees of a run: when each request was sent and when its tokens came."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hsexp.workload import Request
from runners.vllm.clock import at
from runners.vllm.faults import EngineStalled, OtherOutput, ShortOutput

_DIGEST_DIGITS = 16
_NS_PER_S = 1_000_000_000


@dataclass(kw_only=True, slots=True)
class Stream:
    """One request on its way. Stamps are nanoseconds of the monotonic clock."""

    request: Request
    only_token: int | None = None
    """The only token that the engine may generate; None if it may generate any."""
    sent_ns: int | None = None
    num_retries: int = 0
    tokens: list[int] = field(default_factory=list)
    arrivals: list[tuple[int, int]] = field(default_factory=list)
    """(stamp, tokens) of each delivery: a chunk may bring several tokens."""
    finished: bool = False

    @property
    def first_token_ns(self) -> int | None:
        return self.arrivals[0][0] if self.arrivals else None

    @property
    def last_token_ns(self) -> int | None:
        return self.arrivals[-1][0] if self.arrivals else None

    @property
    def output_digest(self) -> str | None:
        """Equal outputs, equal digest; None before it has finished."""
        if not self.finished:
            return None
        data = np.array(self.tokens, dtype=np.int64).tobytes()
        return hashlib.sha256(data).hexdigest()[:_DIGEST_DIGITS]

    def gaps_s(self) -> list[float]:
        """Gaps between output tokens; those that came together share the wait for them.

        They add up to last minus first token, and are one fewer than the tokens.
        """
        gaps: list[float] = []
        before, first = self.arrivals[0]
        gaps += [0.0] * (first - 1)
        for stamp, count in self.arrivals[1:]:
            gaps += [(stamp - before) / _NS_PER_S / count] * count
            before = stamp
        return gaps


class Streams:
    """All requests of a run that are sent, in workload order."""

    def __init__(
        self, requests: Sequence[Request], only_tokens: Sequence[int | None] | None = None
    ) -> None:
        """
        Args:
            only_tokens: the only token of each output, where it has one; None if none has.
        """
        if only_tokens is None:
            only_tokens = [None] * len(requests)
        self.all = [
            Stream(request=request, only_token=token)
            for request, token in zip(requests, only_tokens, strict=True)
        ]
        self._last_token_ns = 0
        self._index_of = {stream.request.request_id: i for i, stream in enumerate(self.all)}

    def before(self, index: int) -> int | None:
        """Index of the turn that a request waits for; None if it waits for none."""
        after = self.all[index].request.after
        return None if after is None else self._index_of[after]

    def planned_ns(self, index: int, start_ns: int) -> int:
        """When a request is to be sent. The turn that it waits for must have ended.

        Args:
            start_ns: second 0 of the workload.
        """
        request, before = self.all[index].request, self.before(index)
        if before is None:
            return at(start_ns, request.arrival_s)
        ended_ns = self.all[before].last_token_ns
        assert ended_ns is not None, "a turn follows a turn that has ended"
        return at(ended_ns, request.think_s)

    def sent(self, index: int, stamp_ns: int) -> None:
        """A request goes out; at a retry the first time counts."""
        stream = self.all[index]
        if stream.sent_ns is None:
            stream.sent_ns = stamp_ns

    def arrived(self, index: int, stamp_ns: int, tokens: Sequence[int]) -> None:
        """Tokens came; an empty delivery is ignored."""
        if not tokens:
            return
        stream = self.all[index]
        stream.tokens += tokens
        stream.arrivals.append((stamp_ns, len(tokens)))
        self._last_token_ns = stamp_ns

    def lost(self, index: int) -> None:
        """A connection broke: its tokens are void, since the retry starts over."""
        stream = self.all[index]
        stream.num_retries += 1
        stream.tokens.clear()
        stream.arrivals.clear()

    def finished(self, index: int) -> None:
        """A request ended.

        Raises:
            ShortOutput: with more or fewer tokens than planned.
            OtherOutput: with other tokens than a later prompt holds.
        """
        stream = self.all[index]
        planned, got = stream.request.output_tokens, len(stream.tokens)
        if got != planned:
            raise ShortOutput(
                f"request {stream.request.request_id} ended with {got} of {planned} output tokens"
            )
        if stream.only_token is not None and set(stream.tokens) != {stream.only_token}:
            raise OtherOutput(
                f"request {stream.request.request_id} ended with other tokens than "
                f"{stream.only_token}, which a later prompt holds"
            )
        stream.finished = True

    def require_progress(self, stamp_ns: int, stall_s: float) -> None:
        """Raise EngineStalled if a request is outstanding and no token came for too long."""
        since = [s.sent_ns for s in self.all if s.sent_ns is not None and not s.finished]
        if not since:
            return
        still_s = (stamp_ns - max(self._last_token_ns, min(since))) / _NS_PER_S
        if still_s > stall_s:
            raise EngineStalled(
                f"no token for {still_s:.1f} s while {len(since)} requests are outstanding"
            )

    def token_gaps_s(self) -> NDArray[np.float64]:
        """Gaps of all finished requests."""
        return np.array(
            [gap for s in self.all if s.finished for gap in s.gaps_s()], dtype=np.float64
        )
