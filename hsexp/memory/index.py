"""The cache index of one kind of entry: key -> entry, the oldest first when a key has several."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, TypeVar

Entry = TypeVar("Entry")


class CacheIndex(Generic[Entry]):
    """Entries by key. Duplicates arise when two requests compute the same prefix at once."""

    __slots__ = ("duplicates", "oldest")

    def __init__(self) -> None:
        self.oldest: dict[Hashable, Entry] = {}
        self.duplicates: dict[Hashable, list[Entry]] = {}
        """Younger entries of a key, in order of publication."""

    def add(self, key: Hashable, entry: Entry) -> None:
        self.add_all((key,), (entry,))

    def add_all(self, keys: Sequence[Hashable], entries: Sequence[Entry]) -> None:
        """Add an entry under each key, in this order."""
        oldest, duplicates = self.oldest, self.duplicates
        for key, entry in zip(keys, entries, strict=True):
            if key not in oldest:
                oldest[key] = entry
            elif key in duplicates:
                duplicates[key].append(entry)
            else:
                duplicates[key] = [entry]

    def remove(self, key: Hashable, entry: Entry) -> None:
        """Remove this entry; the next oldest of its key takes its place."""
        self.remove_all((key,), (entry,))

    def remove_all(self, keys: Sequence[Hashable], entries: Sequence[Entry]) -> None:
        """Remove the entry of each key, in this order."""
        oldest, duplicates = self.oldest, self.duplicates
        for key, entry in zip(keys, entries, strict=True):
            others = duplicates.get(key)
            if others is None:
                del oldest[key]
                continue
            if oldest[key] == entry:
                oldest[key] = others.pop(0)
            else:
                others.remove(entry)
            if not others:
                del duplicates[key]

    def entries(self, key: Hashable) -> Iterator[Entry]:
        """The entries of a key, the oldest first."""
        if key in self.oldest:
            yield self.oldest[key]
            yield from self.duplicates.get(key, ())

    def __iter__(self) -> Iterator[tuple[Hashable, Entry]]:
        yield from self.oldest.items()
        for key, entries in self.duplicates.items():
            for entry in entries:
                yield key, entry

    def __len__(self) -> int:
        return len(self.oldest) + sum(map(len, self.duplicates.values()))
