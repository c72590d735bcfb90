"""Where a chunk of work ends, and what its bits depend on besides the tokens before it.

    stock      0 ------------- 1,536 ------- 3,072 - 3,332 . . . .   as much as the step can take
    canonical  0 - 512 - 1,024 - 1,536 - ... 3,072 - 3,332 . . . .   one grid interval, or it waits
                                                           generated: one token a step

A state is rounded to its type where a chunk ends, and the order in which kernels sum depends on the
number of tokens. Stock chunks end where the budget and the other requests of the step allow, so the
same prompt can give other bits the next time. Canonical chunks are the same whatever else runs and
wherever a hit starts the prefill, and generated tokens are recomputed one by one, as they were
computed the first time.
"""

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from typing import Any

from hsexp.memory.sequence import PrefixKeys


class Chunking:
    """Chunks as long as the budget of a step allows, so that states fall on boundaries.

    A chunk ends on the checkpoint grid or with the prompt. It stops at the last boundary that can
    be cached; a chunk that starts off the grid stops at the next boundary.
    """

    def __init__(self, *, block_size: int, checkpoint_grid: int) -> None:
        self.block_size = block_size
        self.checkpoint_grid = checkpoint_grid

    def tokens(
        self,
        computed: int,
        num_prompt_tokens: int,
        num_tokens: int,
        left: int,
        stops: Sequence[int] = (),
    ) -> int:
        """Tokens of the next chunk; 0 when the rest of the budget does not reach a valid end.

        Args:
            computed: tokens that have state in memory.
            num_prompt_tokens: prompt length of the request as it arrived.
            num_tokens: tokens that must have state before the next one can be generated.
            left: tokens that the step can still take.
            stops: boundaries that no chunk passes (`policies.placement`), in ascending order.
        """
        grid = self.checkpoint_grid
        end = min(computed + left, num_tokens)
        if computed % grid:
            return max(min(end, (computed // grid + 1) * grid) - computed, 0)
        last_boundary = num_tokens // grid * grid
        if computed < last_boundary:
            end = min(end, last_boundary)
        if stops:
            end = min(end, self._next_stop(computed, stops, num_tokens))
        if end < num_tokens:
            end = end // grid * grid
        return max(end - computed, 0)

    def _next_stop(self, computed: int, stops: Sequence[int], num_tokens: int) -> int:
        """The first stop beyond `computed`, or the end."""
        index = bisect_right(stops, computed)
        if index == len(stops):
            return num_tokens
        if stops[index] % self.checkpoint_grid:
            raise ValueError(
                f"a chunk cannot stop at {stops[index]}: the checkpoint grid is "
                f"{self.checkpoint_grid}"
            )
        return stops[index]

    def one_by_one(self, computed: int, num_prompt_tokens: int) -> bool:
        """Whether the next chunk is a single token, computed and charged like a decode."""
        return False

    def keys(self, keys: PrefixKeys, num_prompt_tokens: int) -> PrefixKeys:
        """Cache keys of the states that a request computes, given the keys of its tokens."""
        return keys


class CanonicalChunking(Chunking):
    """Chunks whose ends depend on the prompt's length alone (`engine.exact`).

    They end at every boundary, so that no stop is left to keep.
    """

    def tokens(
        self,
        computed: int,
        num_prompt_tokens: int,
        num_tokens: int,
        left: int,
        stops: Sequence[int] = (),
    ) -> int:
        if self.one_by_one(computed, num_prompt_tokens):
            return min(1, left)
        grid = self.checkpoint_grid
        end = min((computed // grid + 1) * grid, num_prompt_tokens)
        return end - computed if end - computed <= left else 0

    def one_by_one(self, computed: int, num_prompt_tokens: int) -> bool:
        return computed >= num_prompt_tokens

    def keys(self, keys: PrefixKeys, num_prompt_tokens: int) -> PrefixKeys:
        """Keys that contain the prompt's length beyond the prompt's last boundary.

        Up to that boundary the bits follow from the tokens. Later tokens were computed in a
        shorter chunk or one by one, depending on the prompt's length.
        """
        last_boundary = num_prompt_tokens // self.checkpoint_grid
        last_block = last_boundary * self.checkpoint_grid // self.block_size
        return PrefixKeys(
            attention=_WithLength(keys.attention, last_block, num_prompt_tokens),
            checkpoints=_WithLength(keys.checkpoints, last_boundary, num_prompt_tokens),
        )


def chunking(*, block_size: int, checkpoint_grid: int, exact: bool) -> Chunking:
    """The rule that `engine.exact` chooses."""
    kind = CanonicalChunking if exact else Chunking
    return kind(block_size=block_size, checkpoint_grid=checkpoint_grid)


class _WithLength(Sequence[Hashable]):
    """A live view of keys that adds a length to those from index `first` on."""

    __slots__ = ("_first", "_keys", "_length")

    def __init__(self, keys: Sequence[Hashable], first: int, length: int) -> None:
        self._keys = keys
        self._first = first
        self._length = length

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            start, _, step = index.indices(len(self))
            assert step == 1
            plain = self._keys[index]
            common = max(self._first - start, 0)
            return [*plain[:common], *((key, self._length) for key in plain[common:])]
        key = self._keys[index]
        return key if index < self._first else (key, self._length)
