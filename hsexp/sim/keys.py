"""Prefix keys of simulated requests: equal content and salt, equal key."""

from collections.abc import Hashable

from hsexp.memory.sequence import PrefixKeys
from hsexp.workload.request import Request

_INDEX_BITS = 32
"""A key is identity << 32 | index: two integers in one, cheap to hash and to generate in runs."""


class KeyMaker:
    """Interns contents of one run. Even identities are shared contents, odd ones private."""

    def __init__(self, *, block_size: int, checkpoint_grid: int) -> None:
        self.block_size = block_size
        self.checkpoint_grid = checkpoint_grid
        self._identities: dict[tuple[str | None, int], int] = {}

    def keys(self, request: Request) -> PrefixKeys:
        """Keys for all tokens the request may compute, prompt and output."""
        num_tokens = request.prompt_tokens + request.output_tokens
        spans = [
            (segment.end_tokens, self._shared_identity(request.cache_salt, segment.content_id))
            for segment in request.segments
        ]
        spans.append((num_tokens, _private_identity(request)))
        return PrefixKeys(
            attention=_keys_on_grid(spans, self.block_size),
            checkpoints=_keys_on_grid(spans, self.checkpoint_grid),
        )

    def exact(self, request: Request, num_tokens: int) -> Hashable:
        """Key of a leaf after exactly the first `num_tokens` tokens.

        Content is told apart by the segment in which it ends (`Segment.content_id`), so that a turn
        and the next one have the same key anywhere in what they share.
        """
        for segment in request.segments:
            if num_tokens <= segment.end_tokens:
                return self._shared_identity(request.cache_salt, segment.content_id), num_tokens
        return _private_identity(request), num_tokens

    def _shared_identity(self, salt: str | None, content_id: int) -> int:
        return 2 * self._identities.setdefault((salt, content_id), len(self._identities))


def _private_identity(request: Request) -> int:
    return 2 * request.request_id + 1


def _keys_on_grid(spans: list[tuple[int, int]], grid: int) -> list[int]:
    """One key for each multiple of `grid`, by the span (end, identity) that it lies in."""
    keys: list[int] = []
    for end, identity in spans:
        first = identity << _INDEX_BITS
        keys += range(first + len(keys), first + max(end // grid, len(keys)))
    return keys
