"""Prefix keys from vLLM's block hashes, which chain over the whole prefix and its cache salt."""

from collections.abc import Hashable, Sequence
from typing import Any

from hsexp.memory.sequence import PrefixKeys


class EveryNth(Sequence[Hashable]):
    """A view of every n-th hash: the hash that ends a block of n hash units.

    The underlying list grows as tokens are generated, and this view with it.
    """

    __slots__ = ("_hashes", "_n")

    def __init__(self, hashes: Sequence[Hashable], n: int) -> None:
        self._hashes = hashes
        self._n = n

    def __len__(self) -> int:
        return len(self._hashes) // self._n

    def __getitem__(self, index: Any) -> Any:
        n = self._n
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            assert step == 1
            return self._hashes[(start + 1) * n - 1 : stop * n : n]
        return self._hashes[(index + 1) * n - 1]


def prefix_keys(
    block_hashes: Any, *, hash_block_size: int, block_size: int, checkpoint_grid: int
) -> PrefixKeys:
    """Keys of a request over its live list of hashes.

    Raises:
        ValueError: blocks or boundaries do not fall on hash boundaries.
    """
    for name, size in [("block_size", block_size), ("checkpoint_grid", checkpoint_grid)]:
        if size % hash_block_size:
            raise ValueError(
                f"{name} {size} must be a multiple of the hash block size {hash_block_size}"
            )
    return PrefixKeys(
        attention=_view(block_hashes, block_size // hash_block_size),
        checkpoints=_view(block_hashes, checkpoint_grid // hash_block_size),
    )


def _view(hashes: Any, n: int) -> Sequence[Hashable]:
    view: Sequence[Hashable] = hashes if n == 1 else EveryNth(hashes, n)
    return view
