"""What two traces of the same schedule have in common, whichever engine wrote them.

vLLM and the simulator write some things in other ways: steps one by one or as stretches, keys as
hashes or as numbers, and a refusal that stands either as a count or as another lookup. Times are
their own, and so are the numbers of pages, since a warm-up has left the free ones in another order.
Everything else is equal where they schedule the same: what moved, for whom and why.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from hsexp.trace.schema import COLUMNS
from hsexp.trace.trace import Event, Trace, TracedMemory

_SAME_KINDS = tuple(kind for kind in COLUMNS if kind not in ("start", "lookup", "step", "end"))
_OWN_COLUMNS = ("seq", "step", "time_ns")

Deed = dict[str, Any]
"""An event without what is an engine's own: keys are counted, pages numbered by first use."""


def deeds(trace: Trace) -> list[Deed]:
    """What moved, for whom and why, in order; refusals of a request in a row are counted.

    Requests have the names that their engine gave them.
    """
    names: dict[int, str] = {}
    pages = _Pages(trace.memory)
    found: list[Deed] = []
    for event in trace.rows(*_SAME_KINDS):
        if event.kind in ("enter", "adopt"):
            names[event.request] = event.id
        name = None if event.request is None else names.get(event.request)
        if event.kind == "refuse":
            if found and found[-1]["kind"] == "refuse" and found[-1]["request"] == name:
                found[-1]["count"] += event.count
            else:
                found.append({"kind": "refuse", "request": name, "count": event.count})
            continue
        values = event._asdict() | {"request": name} | pages.numbers(event)
        for own in _OWN_COLUMNS:
            values.pop(own, None)
        found.append(values)
    return found


def num_equal(ours: Sequence[Deed], theirs: Sequence[Deed]) -> int:
    """Events up to the first difference."""
    for index, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return index
    return min(len(ours), len(theirs))


class _Pages:
    """Numbers the pages of each pool in the order of their first use."""

    def __init__(self, memory: TracedMemory) -> None:
        self._memory = memory
        self._seen: dict[tuple[int, int], int] = {}

    def numbers(self, event: Event) -> dict[str, Any]:
        """The columns of an event that hold pages, or what is as long as a list of them."""
        pool = self._pool_of(event)
        values: dict[str, Any] = {}
        for name in event._fields:
            given = getattr(event, name)
            if name in ("pages", "targets"):
                values[name] = self._numbers(pool, given)
            elif name in ("keys", "boundary_keys"):
                values[name] = len(given)
            elif name == "state" and given is not None:
                (values[name],) = self._numbers(self._memory.recurrent_pool, [given])
            elif name == "line" and given >= 0:
                assert self._memory.slab_slots is not None
                page, slot = divmod(given, self._memory.slab_slots)
                values[name] = self._numbers(self._memory.recurrent_pool, [page]), slot
        return values

    def _pool_of(self, event: Event) -> int:
        if "pool" in event._fields:
            return event.pool  # type: ignore[no-any-return]
        holds_state = event.kind == "state" or getattr(event, "entry", None) == "state"
        return self._memory.recurrent_pool if holds_state else 0

    def _numbers(self, pool: int, pages: Iterable[int]) -> list[int]:
        seen = self._seen
        return [seen.setdefault((pool, page), len(seen)) for page in pages]
