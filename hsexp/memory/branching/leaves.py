"""Leaves: restart points at any length, kept from sequences that continue or leave.

A leaf is the state and the partial tail block of one sequence, under the exact tokens before them.
It is a cached entry: any other need may evict it, and nobody writes it while it is cached.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from hsexp.memory.cache import Cache
from hsexp.memory.sequence import MISS, Hit, PrefixKeys, SequenceMemory


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafKey:
    """Key of a leaf's state and of its tail page; differs from all keys of the checkpoint grid."""

    key: Hashable


def exact_prefix(
    keys: PrefixKeys,
    block_size: int,
    tokens: Sequence[int],
    *,
    num_tokens: int | None = None,
    salt: Hashable = None,
) -> Hashable:
    """Key of a leaf after exactly these tokens: the hash of their full blocks, and the rest.

    Args:
        keys: keys of the sequence; the attention keys cover the full blocks of `tokens`.
        num_tokens: how many of the tokens; None uses all.
        salt: the cache salt, which the key of a full block already contains.
    """
    end = len(tokens) if num_tokens is None else num_tokens
    num_full = end // block_size
    above = keys.attention[num_full - 1] if num_full else ("salt", salt)
    return (above, tuple(tokens[num_full * block_size : end]))


class Leaves:
    """The leaves of one cache."""

    def __init__(self, cache: Cache, *, max_leaves: int, max_final: int) -> None:
        """
        Args:
            max_leaves: most leaves that running requests keep; 0 means that none does.
            max_final: likewise of finished requests. There is one limit for all, their sum.
        """
        self.cache = cache
        self.lets_fork = max_leaves > 0
        """Whether running requests keep leaves."""
        self.keeps_final = max_final > 0
        """Whether finished requests leave one."""
        self.max_leaves = max_leaves + max_final
        self._kept: dict[LeafKey, Hashable] = {}
        """Leaves, the oldest first, and the last full block before each; some may have been evicted
        since."""
        self._behind: dict[Hashable, dict[LeafKey, None]] = {}
        """Leaves by the last full block before them; None is the block of those without any."""

    def __len__(self) -> int:
        return len(self._kept)

    def has(self, key: Hashable, num_tokens: int) -> bool:
        """Whether the state of this leaf is cached, and its tail if it has one."""
        cache, leaf = self.cache, LeafKey(key=key)
        return leaf in cache.checkpoint_index.oldest and (
            num_tokens % cache.block_size == 0 or leaf in cache.block_index.oldest
        )

    def keep(self, sequence: SequenceMemory, num_tokens: int, key: Hashable) -> bool:
        """Publish the end of the sequence as a leaf, and lose the oldest beyond `max_leaves`.

        Returns False if no leaves are kept, or the state is published already under another key.
        """
        cache, leaf, state = self.cache, LeafKey(key=key), sequence.state
        assert state is not None
        if self.max_leaves == 0 or state.key is not None:
            return False
        self._forget(leaf)  # remains of an evicted leaf of this key
        cache.publish_computed(sequence, num_tokens)
        block, offset = divmod(num_tokens, cache.block_size)
        if offset:
            cache.attention_pool.entries[sequence.blocks[block]] = leaf
            cache.block_index.add(leaf, sequence.blocks[block])
        state.tokens = num_tokens
        state.published_step = cache.step
        cache.states.publish(state, leaf)
        cache.checkpoint_index.add(leaf, state)
        cache.supply += 1
        if cache.prefixes is not None:
            tail = sequence.blocks[block] if offset else None
            cache.prefixes.add_leaf(state, sequence.keys, tail)
        if cache.observer is not None:
            if offset:
                page = (sequence.blocks[block],)
                cache.observer.on_publish_blocks(sequence, block, (leaf,), page, ahead=False)
            cache.observer.on_publish_state(sequence, state, ahead=True)
        above = sequence.keys.attention[block - 1] if block else None
        self._kept[leaf] = above
        self._behind.setdefault(above, {})[leaf] = None
        while len(self._kept) > self.max_leaves:
            self._forget(next(iter(self._kept)))
        return True

    def find(self, sequence: SequenceMemory, key: Hashable) -> Hit | None:
        """The leaf of this key, without taking a reference; None if any part is gone."""
        hit = self._look_at(sequence, LeafKey(key=key))
        return hit if hit.tokens else None

    def _look_at(self, sequence: SequenceMemory, leaf: LeafKey) -> Hit:
        """The leaf, or a miss with its gap. A lost tail is not a gap: only a new leaf has one."""
        cache = self.cache
        state = cache.checkpoint_index.oldest.get(leaf)
        if state is None:
            return MISS
        oldest = cache.block_index.oldest
        block, offset = divmod(state.tokens, cache.block_size)
        pages = []
        for key in sequence.keys.attention[:block]:
            if key not in oldest:
                return Hit(tokens=0, gap=key)
            pages.append(oldest[key])
        if offset:
            if leaf not in oldest:
                return MISS
            pages.append(oldest[leaf])
        return Hit(
            tokens=state.tokens,
            blocks=pages,
            checkpoint=state,
            ready=cache.is_computed(state) and cache.are_computed(pages),
        )

    def find_deepest(
        self,
        sequence: SequenceMemory,
        tokens: Sequence[int],
        *,
        num_tokens: int,
        salt: Hashable = None,
    ) -> Hit | None:
        """The deepest leaf within the first `num_tokens` tokens.

        A miss with a gap means that a leaf could be found after the block in the gap is published.
        None means that there is neither a leaf nor a gap. A hit has the gap of a deeper leaf.

        Args:
            tokens: tokens of the sequence; its attention keys cover their first `num_tokens`.
            salt: as in `exact_prefix`.
        """

        def exact(length: int) -> Hashable:
            size = self.cache.block_size
            return exact_prefix(sequence.keys, size, tokens, num_tokens=length, salt=salt)

        return self.deepest(sequence, exact, num_tokens=num_tokens)

    def deepest(
        self, sequence: SequenceMemory, exact: Callable[[int], Hashable], *, num_tokens: int
    ) -> Hit | None:
        """Like `find_deepest`, for a caller with keys of its own.

        Args:
            exact: the key of a leaf after exactly so many tokens of the sequence.
        """
        found, blocks, size = MISS, sequence.keys.attention, self.cache.block_size
        num_full = min(num_tokens // size, len(blocks)) if self._kept else -1
        while num_full >= 0 and not found.tokens:
            for leaf in self._behind.get(blocks[num_full - 1] if num_full else None, ()):
                state = self.cache.checkpoint_index.oldest.get(leaf)
                if state is None or not found.tokens < state.tokens <= num_tokens:
                    continue
                if leaf.key == exact(state.tokens):
                    found = found.or_deeper(self._look_at(sequence, leaf))
            num_full -= 1
        return found if found.tokens or found.gap is not None else None

    def forget_of(self, entry: Hashable) -> None:
        """Lose the leaf whose state or tail has this key, if the key is a leaf's."""
        if isinstance(entry, LeafKey):
            self._forget(entry)

    def _forget(self, leaf: LeafKey) -> None:
        """Remove the leaf's key; holders of its page or state keep them."""
        cache = self.cache
        cache.supply += 1
        if leaf in self._kept:
            above = self._kept.pop(leaf)
            siblings = self._behind[above]
            del siblings[leaf]
            if not siblings:
                del self._behind[above]
        state = cache.checkpoint_index.oldest.get(leaf)
        if state is not None:
            cache.lose_checkpoint(state, cause="leaf")
        page = cache.block_index.oldest.get(leaf)
        if page is not None:
            cache.lose(cache.attention_pool, page, leaf, cause="leaf")
