"""The cache index of one kind of entry: key -> entry, the oldest first when a key has several."""

from collections.abc import Hashable, Iterator
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
        if key in self.oldest:
            self.duplicates.setdefault(key, []).append(entry)
        else:
            self.oldest[key] = entry

    def remove(self, key: Hashable, entry: Entry) -> None:
        """Remove this entry; the next oldest of its key takes its place."""
        duplicates = self.duplicates.get(key)
        if duplicates is None:
            del self.oldest[key]
            return
        if self.oldest[key] == entry:
            self.oldest[key] = duplicates.pop(0)
        else:
            duplicates.remove(entry)
        if not duplicates:
            del self.duplicates[key]

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
