"""A request as the engines see it, and a workload: the ordered requests of one seed."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A stretch of prompt content that other requests may share.

    `content_id` identifies the whole prefix up to `end_tokens`, so two requests share their first
    `p` tokens iff the segments that cover `p` carry the same id.
    """

    end_tokens: int
    content_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One request. Prompt tokens past the last segment are private to it, as is all output."""

    request_id: int
    """Position in the workload, from 0."""
    arrival_s: float
    """Planned send time after the start of the run, seconds."""
    prompt_tokens: int
    output_tokens: int
    """Tokens it will generate (ignore_eos)."""
    segments: tuple[Segment, ...] = ()
    """Ascending in end_tokens; the last end is at most prompt_tokens."""
    cache_salt: str | None = None
    """Requests with different salts never share cached state."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The requests of one seed, in arrival order, and their digest."""

    name: str
    requests: Sequence[Request] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.requests:
            raise ValueError(f"workload {self.name} has no requests")

    @cached_property
    def digest(self) -> str:
        """SHA-256 over every field of every request, as 64 hex digits."""
        sha = hashlib.sha256()
        for r in self.requests:
            segments = ",".join(f"{s.end_tokens}:{s.content_id}" for s in r.segments)
            sha.update(
                f"{r.request_id} {r.arrival_s!r} {r.prompt_tokens} {r.output_tokens} "
                f"{segments} {r.cache_salt!r}\n".encode()
            )
        return sha.hexdigest()
