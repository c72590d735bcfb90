"""Which requests share a prefix: a chain of contents becomes a chain of interned segments."""

from collections.abc import Hashable, Iterable

from hsexp.workload.request import Segment


class Prefixes:
    """Gives each distinct prefix one segment; equal prefixes get the very same one."""

    def __init__(self, *, first_id: int = 0) -> None:
        """
        Args:
            first_id: lowest content id; those below it are somebody else's.
        """
        self._first_id = first_id
        self._segments: dict[tuple[int | None, Hashable, int], Segment] = {}

    def extend(
        self, parent: Segment | None, content: Hashable, end_tokens: int, *, generated: bool = False
    ) -> Segment:
        """The prefix `parent` continued by `content` up to `end_tokens`.

        The end is part of the identity: a partial block is not the full block of the same hash.
        """
        key = (parent.content_id if parent else None, content, end_tokens)
        return self._segments.get(key) or self._new(key, generated=generated)

    def blocks(
        self, contents: Iterable[Hashable], block_tokens: int, end_tokens: int
    ) -> tuple[Segment, ...]:
        """A prefix of blocks of equal size, of which the last one ends with the prefix."""
        known, segments, parent, end = self._segments, [], None, 0
        for content in contents:
            end = min(end + block_tokens, end_tokens)
            key = (parent, content, end)
            segment = known.get(key) or self._new(key)
            segments.append(segment)
            parent = segment.content_id
        return tuple(segments)

    def _new(self, key: tuple[int | None, Hashable, int], *, generated: bool = False) -> Segment:
        segment = Segment(
            end_tokens=key[2],
            content_id=self._first_id + len(self._segments),
            generated=generated,
        )
        self._segments[key] = segment
        return segment
