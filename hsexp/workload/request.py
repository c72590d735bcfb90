"""A request as the engines see it, and a workload: the ordered requests of one seed."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A stretch of content that other requests may share.

    `content_id` identifies the whole prefix up to `end_tokens`, so two requests share their first
    `p` tokens iff the segments that cover `p` carry the same id.
    """

    end_tokens: int
    content_id: int
    generated: bool = False
    """Whether it is the output of a request: of this one, or of an earlier turn."""

    def __str__(self) -> str:
        """The segment in a digest."""
        return f"{self.end_tokens}:{self.content_id}" + (":generated" if self.generated else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One request. Tokens past the last segment are private to it, the output among them."""

    request_id: int
    """Position in the workload, from 0."""
    arrival_s: float
    """Planned send time after the start of the run, seconds."""
    prompt_tokens: int
    output_tokens: int
    """Tokens it will generate (ignore_eos)."""
    segments: tuple[Segment, ...] = ()
    """Ascending in end_tokens. The last end is at most prompt_tokens, or that of the output: then
    the last segment is the output, which a later prompt may hold."""
    cache_salt: str | None = None
    """Requests with different salts never share cached state."""
    after: int | None = None
    """Id of the turn before it, which has a lower one: this turn arrives `think_s` after that one
    has finished or was refused, and `arrival_s` is the earliest time, if answers took none. None
    arrives at `arrival_s`."""
    think_s: float = 0.0
    """Seconds between the end of `after` and the arrival."""

    @property
    def shares_output(self) -> bool:
        """Whether a later prompt may hold its output."""
        return bool(self.segments) and self.segments[-1].end_tokens > self.prompt_tokens


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The requests of one seed, in arrival order, and their digest."""

    name: str
    requests: Sequence[Request] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.requests:
            raise ValueError(f"workload {self.name} has no requests")

    @classmethod
    def numbered(
        cls, name: str, drawn: Iterable[tuple[float, int, int, tuple[Segment, ...]]]
    ) -> Self:
        """The requests of a law, numbered in their order.

        Args:
            drawn: arrival, prompt tokens, output tokens and segments of each request.
        """
        return cls(
            name=name,
            requests=tuple(
                Request(
                    request_id=i,
                    arrival_s=arrival_s,
                    prompt_tokens=prompt_tokens,
                    output_tokens=output_tokens,
                    segments=segments,
                )
                for i, (arrival_s, prompt_tokens, output_tokens, segments) in enumerate(drawn)
            ),
        )

    @cached_property
    def digest(self) -> str:
        """SHA-256 over every field of every request, as 64 hex digits."""
        sha = hashlib.sha256()
        for r in self.requests:
            segments = ",".join(map(str, r.segments))
            waits = "" if r.after is None else f" after {r.after} {r.think_s!r}"
            sha.update(
                f"{r.request_id} {r.arrival_s!r} {r.prompt_tokens} {r.output_tokens} "
                f"{segments} {r.cache_salt!r}{waits}\n".encode()
            )
        return sha.hexdigest()
