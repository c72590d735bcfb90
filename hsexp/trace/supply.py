"""What could be reused at each moment of a trace, replayed from publications and losses.

Two masks bracket the supply of a step (Appendix G.2): M0 counts what earlier steps have computed,
M1 also what the coming step publishes before it computes it. A request adopts what M0 has.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hsexp.trace.schema import TraceError
from hsexp.trace.trace import Event, TracedMemory

Mask = Literal["M0", "M1"]
Entry = Literal["attention", "state"]


@dataclass(frozen=True, kw_only=True)
class Depths:
    """How deep each kind of state reaches, in tokens (Section 4.5)."""

    attention: int
    """Amax: deepest grid boundary inside the contiguous attention prefix."""
    recurrent: int
    """Rmax: deepest complete checkpoint, with or without its attention blocks."""
    joint: int
    """The deepest boundary with both: Jadopt at an admission, Jenter at an entry."""


class Turn(NamedTuple):
    """One page or state that got a key or lost it."""

    entry: Entry
    page: int
    """A state has its first page's name."""
    key: int
    turns: bool
    """Whether it is the only one of its key, so that the key appears or vanishes."""


class _Entries:
    """Keys of one kind of entry, with the number of pages or states under each."""

    def __init__(self) -> None:
        self.visible: Counter[int] = Counter()
        self.ahead: Counter[int] = Counter()
        """Of these, those that the coming step computes."""
        self.key_of: dict[int, int] = {}
        """Key by page; a state has its first page's."""

    def add(self, page: int, key: int, *, ahead: bool) -> bool:
        """Returns whether the key was not visible."""
        if page in self.key_of:
            raise TraceError(f"page {page} is published under {key}, and under another key")
        self.key_of[page] = key
        self.visible[key] += 1
        if ahead:
            self.ahead[key] += 1
        return self.visible[key] == 1

    def remove(self, page: int, *, ahead: bool) -> int:
        key = self.key_of.pop(page, None)
        if key is None:
            raise TraceError(f"page {page} loses a key that it does not have")
        self.visible[key] -= 1
        if not self.visible[key]:
            del self.visible[key]
        if ahead:
            self.ahead[key] -= 1
        return key

    def has(self, key: int, mask: Mask) -> bool:
        number = self.visible.get(key, 0)
        return number > (self.ahead.get(key, 0) if mask == "M0" else 0)


class Supply:
    """The cached entries, event by event."""

    def __init__(self, memory: TracedMemory) -> None:
        self._memory = memory
        self._attention = _Entries()
        self._states = _Entries()
        self._step = -1
        self._ahead: set[tuple[str, int]] = set()
        """Entries that step `_step` computes: kind and page."""

    def apply(self, event: Event) -> None:
        """Apply a publication or a loss."""
        for _ in self.turns(event):
            pass

    def turns(self, event: Event) -> Iterator[Turn]:
        """Apply a publication or a loss page by page; the supply is that after each page."""
        self._advance(event.step)
        entry: Entry = event.entry
        entries = self._entries(entry)
        if event.kind == "publish":
            for page, key in zip(_names(event), event.keys, strict=True):
                appears = entries.add(page, key, ahead=event.ahead)
                if event.ahead:
                    self._ahead.add((entry, page))
                yield Turn(entry, page, key, appears)
        else:
            for page in _names(event):
                ahead = (entry, page) in self._ahead
                self._ahead.discard((entry, page))
                key = entries.remove(page, ahead=ahead)
                yield Turn(entry, page, key, not entries.has(key, "M1"))

    def has(self, entry: Entry, key: int, mask: Mask = "M1") -> bool:
        """Whether a page or a state of this key is visible."""
        return self._entries(entry).has(key, mask)

    def depths(
        self, keys: Sequence[int], boundary_keys: Sequence[int], mask: Mask, *, step: int
    ) -> Depths:
        """Depths of a request with these keys (the columns of `enter`).

        Args:
            step: the step that is being scheduled.
        """
        self._advance(step)
        grid = self._memory.checkpoint_grid
        blocks = 0
        for key in keys:
            if not self._attention.has(key, mask):
                break
            blocks += 1
        attention = blocks * self._memory.block_size // grid
        states = [
            boundary for boundary, key in enumerate(boundary_keys, 1) if self._states.has(key, mask)
        ]
        joint = max((boundary for boundary in states if boundary <= attention), default=0)
        return Depths(
            attention=min(attention, len(boundary_keys)) * grid,
            recurrent=max(states, default=0) * grid,
            joint=joint * grid,
        )

    def _entries(self, entry: str) -> _Entries:
        return self._attention if entry == "attention" else self._states

    def _advance(self, step: int) -> None:
        """What an earlier step published ahead has been computed by now."""
        if step != self._step:
            self._step = step
            if self._ahead:
                self._ahead.clear()
                self._attention.ahead.clear()
                self._states.ahead.clear()


def _names(event: Event) -> Sequence[int]:
    """Pages that the event names: all of its blocks, or the first page of its state."""
    pages: Sequence[int] = event.pages
    return pages[:1] if event.entry == "state" else pages
