"""Branches: sequences that continue one state, and the rule by which they may write it.

    tokens      0 ........... 8 ........... 16 .... 20            block 8, fork after 20 tokens
    parent      [ page 4     ][ page 5     ][ page 6 |  ]   state P      references
    child       [ page 4     ][ page 5     ][ page 6 |  ]   state P      2, 2, 2 and 2

    parent      [ page 4     ][ page 5     ][ page 9 |  ]   state Q      its first write copied
    child       [ page 4     ][ page 5     ][ page 6 |  ]   state P      the last holder: in place

A fork moves nothing. The next token would overwrite the partial tail block and the recurrent and
convolution state. They are read-only while somebody else holds them: the first writer copies them,
and the last holder writes in place. A step that crosses into a new block or a new checkpoint
interval reads the shared one and writes a new one anyway, so it copies nothing.

A leaf (`hsexp.memory.branching.leaves`) counts as a holder while it is kept. Copies and their
references: `hsexp.memory.branching.copies`.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from hsexp.memory.branching.copies import Copies
from hsexp.memory.branching.leaves import LeafKey, Leaves
from hsexp.memory.cache import Cache
from hsexp.memory.checkpoint import Checkpoint
from hsexp.memory.faults import MemoryFault
from hsexp.memory.sequence import Copy, Hit, SequenceMemory


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharer:
    """A sequence that must check for other holders before it writes, and its length until then."""

    sequence: SequenceMemory
    num_tokens: int


class Branching:
    """Sharing between the sequences of one cache: decides when a write needs a copy.

    Invariant: `sharers` contains every sequence off the checkpoint grid whose tail or state is also
    held by another sequence, a leaf or a copy in flight. All other sequences write in place.
    """

    def __init__(self, cache: Cache, *, max_leaves: int, max_final: int = 0) -> None:
        self.cache = cache
        self.sharers: dict[int | str, Sharer] = {}
        """Sharers by request."""
        self.leaves = Leaves(cache, max_leaves=max_leaves, max_final=max_final)
        self.copies = Copies(cache)

    # -- forks ---------------------------------------------------------------------------------

    def fork_point(self, parent: SequenceMemory, num_tokens: int) -> Hit:
        """The restart point at the end of a running sequence.

        Raises:
            MemoryFault: the parent does not run, or cannot stand at `num_tokens`.
        """
        self._require_standing(parent, num_tokens)
        return Hit(
            tokens=num_tokens,
            blocks=tuple(parent.blocks[: -(-num_tokens // self.cache.block_size)]),
            checkpoint=parent.state,
        )

    def _require_standing(self, sequence: SequenceMemory, num_tokens: int) -> None:
        """Refuse if the sequence's state cannot be that of `num_tokens` tokens."""
        cache, who = self.cache, f"request {sequence.request_id}"
        if not cache.attention.allows_branches:
            raise MemoryFault(f"{who} cannot be forked or kept: its tail shares pages with others")
        if cache.sequences.get(sequence.request_id) is not sequence:
            raise MemoryFault(f"{who} does not run and cannot be forked or kept")
        sharer = self.sharers.get(sequence.request_id)
        if (
            num_tokens < 1
            or (num_tokens - 1) // cache.checkpoint_grid != sequence.state_index
            or num_tokens > len(sequence.blocks) * cache.block_size
            or (sharer is not None and num_tokens != sharer.num_tokens)
        ):
            raise MemoryFault(f"{who} does not stand at {num_tokens} tokens")

    def copy_all(self, sequence: SequenceMemory, num_tokens: int) -> None:
        """Copy every block and the state of a sequence, so that it shares nothing.

        There must be room.
        """
        self.sharers.pop(sequence.request_id, None)
        for block in range(len(sequence.blocks)):
            self.copies.list_page(sequence, block, num_tokens)
        self.copies.list_state(sequence, num_tokens)
        if num_tokens % self.cache.checkpoint_grid == 0:
            self.share(sequence, num_tokens)

    def share(self, sequence: SequenceMemory, num_tokens: int) -> None:
        """Note that others may hold the sequence's tail and state: it must check before it writes.

        At a boundary of the grid it writes to neither of them again.
        """
        if num_tokens % self.cache.checkpoint_grid:
            self.sharers[sequence.request_id] = Sharer(sequence=sequence, num_tokens=num_tokens)
            sequence.quiet_end = 0
        else:
            assert sequence.state is not None
            sequence.state.tokens = num_tokens

    # -- writing -------------------------------------------------------------------------------

    def own(
        self, sequence: SequenceMemory, computed: int, *, new_blocks: int, new_state: bool
    ) -> bool:
        """Copy shared pages and states that a step from `computed` on would write in place.

        A sequence that shares nothing has nothing to do.

        Args:
            new_blocks: pages that the step takes in addition to the copies.
            new_state: whether the step writes a new state, so that it only reads the present one.

        Returns:
            False when there is not enough room for copies, blocks and state; nothing has moved.

        Raises:
            MemoryFault: a copy of the sequence is in flight, or it does not stand at `computed`.
        """
        sharer = self.sharers.get(sequence.request_id)
        if sharer is None:
            return True
        if computed != sharer.num_tokens:
            raise MemoryFault(
                f"request {sequence.request_id} stands at {sharer.num_tokens} tokens and cannot "
                f"continue from {computed}"
            )
        if self.copies.is_copying(sequence):
            raise MemoryFault(f"request {sequence.request_id} writes while its copy is in flight")
        cache = self.cache
        for leaves_count in (True, False):
            copy_tail, copy_state = self._shared_at(sequence, computed, leaves_count=leaves_count)
            copy_state = copy_state and not new_state
            if cache.has_room(new_blocks + copy_tail, new_state or copy_state):
                break
        else:
            return False
        del self.sharers[sequence.request_id]
        block, offset = divmod(computed, cache.block_size)
        if copy_tail:
            self.copies.list_page(sequence, block, computed)
        elif offset:
            self.leaves.forget_of(cache.attention_pool.entries[sequence.blocks[block]])
        if copy_state:
            self.copies.list_state(sequence, computed)
        elif not new_state:
            assert sequence.state is not None
            self.leaves.forget_of(sequence.state.key)
        return True

    def make_private(self, sequence: SequenceMemory) -> bool:
        """Copy at the fork instead of at the first write. False means not enough room."""
        sharer = self.sharers.get(sequence.request_id)
        return sharer is None or self.own(
            sequence, sharer.num_tokens, new_blocks=0, new_state=False
        )

    def owed(self) -> tuple[int, int]:
        """(pages, states) that running branches will still copy if each writes one more token."""
        size = self.cache.block_size
        owed: Counter[int | Checkpoint] = Counter()
        for sharer in self.sharers.values():
            sequence = sharer.sequence
            if self.copies.is_copying(sequence):
                continue  # it has its pages
            block, offset = divmod(sharer.num_tokens, size)
            if offset:
                owed[sequence.blocks[block]] += 1
            assert sequence.state is not None
            owed[sequence.state] += 1
        pages = states = 0
        for held, count in owed.items():
            # The last of the sharers writes in place, unless somebody else holds it as well.
            count -= self.copies.num_holders(held) == count and self._key_of(held) is None
            if isinstance(held, Checkpoint):
                states += count
            else:
                pages += count
        return pages, states

    def _shared_at(
        self, sequence: SequenceMemory, num_tokens: int, *, leaves_count: bool
    ) -> tuple[bool, bool]:
        """Whether others hold the sequence's partial tail, and whether they hold its state.

        Args:
            leaves_count: whether a leaf is a holder.
        """
        block, offset = divmod(num_tokens, self.cache.block_size)
        state = sequence.state
        assert state is not None
        return (
            offset > 0 and self._is_shared(sequence.blocks[block], leaves_count=leaves_count),
            self._is_shared(state, leaves_count=leaves_count),
        )

    def _is_shared(self, held: int | Checkpoint, *, leaves_count: bool) -> bool:
        return self.copies.num_holders(held) > 1 or (
            leaves_count and self._key_of(held) is not None
        )

    def _key_of(self, held: int | Checkpoint) -> Hashable | None:
        if isinstance(held, Checkpoint):
            return held.key
        key: Hashable | None = self.cache.attention_pool.entries[held]
        return key

    # -- copies concurrent with steps ----------------------------------------------------------

    def begin_copy(self, sequence: SequenceMemory) -> list[Copy]:
        """Start the copies that the next token of a branch needs, while steps run.

        The sequence keeps the shared page and state until `complete_copy`; until then it cannot be
        extended, and nobody else may write them. Returns an empty list if nothing is shared.

        Raises:
            MemoryFault: there is not enough room (nothing has moved), its copy is in flight, or
                a copy of the current step has yet to write its source.
        """
        if self.copies.is_copying(sequence):
            raise MemoryFault(f"the copy of request {sequence.request_id} is in flight already")
        if self.copies.is_awaited_by(sequence):
            raise MemoryFault(
                f"request {sequence.request_id} begins a copy before its listed copies are done"
            )
        sharer = self.sharers.get(sequence.request_id)
        if sharer is None:
            return []
        num_tokens = sharer.num_tokens
        copy_tail, copy_state = self._shared_at(sequence, num_tokens, leaves_count=True)
        if not self.cache.has_room(int(copy_tail), copy_state):
            raise MemoryFault(f"no room for the copies of request {sequence.request_id}")
        begun = []
        if copy_tail:
            block = num_tokens // self.cache.block_size
            begun.append(self.copies.begin_page(sequence, block, num_tokens))
        if copy_state:
            begun.append(self.copies.begin_state(sequence, num_tokens))
        return begun

    def complete_copy(self, copy: Copy) -> None:
        """Finish a copy: the sequence gets its target, then the source is released.

        Raises:
            MemoryFault: the copy is not in flight.
        """
        self.copies.complete(copy)

    def forgo_copies(self, sequence: SequenceMemory) -> bool:
        """Drop copies due before the coming step whose sources nobody else holds any more.

        The sequence then writes in place. It must not be in the step yet. Returns whether anything
        became free.
        """
        sources = self.copies.forgo(sequence)
        for source in sources:
            self.leaves.forget_of(self._key_of(source))
        return bool(sources)

    def on_released(self, sequence: SequenceMemory) -> None:
        """Forget a sequence that has left."""
        self.sharers.pop(sequence.request_id, None)
        self.copies.on_released(sequence)

    # -- leaves --------------------------------------------------------------------------------

    def keep_leaf(self, sequence: SequenceMemory, num_tokens: int, key: Hashable) -> bool:
        """Keep the end of a running sequence as a restart point for others.

        The leaf stays unchanged while it is cached: the sequence copies at its next write. Nothing
        is kept on the checkpoint grid, since the ordinary lookup finds that point, nor while the
        sequence awaits a copy.

        Args:
            key: identifies the tokens before it and their cache salt; see `exact_prefix`.

        Returns:
            Whether a leaf of this key is cached now.

        Raises:
            MemoryFault: the sequence does not run, or cannot stand at `num_tokens`.
        """
        self._require_standing(sequence, num_tokens)
        on_grid = num_tokens % self.cache.checkpoint_grid == 0
        if on_grid or self.copies.is_awaited_by(sequence):
            return False
        if self.leaves.has(key, num_tokens):
            return True
        if not self.leaves.keep(sequence, num_tokens, key):
            return False
        self.share(sequence, num_tokens)
        return True

    # -- recount -------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Check that `sharers` has every sequence that may share, and recount the leaves."""
        cache = self.cache
        assert len(self.leaves) <= self.leaves.max_leaves
        for request_id, sharer in self.sharers.items():
            assert cache.sequences.get(request_id) is sharer.sequence
            assert sharer.num_tokens % cache.checkpoint_grid and sharer.sequence.quiet_end == 0
        entries = cache.attention_pool.entries
        for sequence in cache.sequences.values():
            if sequence.request_id in self.sharers:
                continue
            assert not self.copies.is_copying(sequence)
            assert not any(isinstance(entries[page], LeafKey) for page in sequence.blocks)
            state = sequence.state
            if state is not None:  # a boundary is never written again, and anybody may hold it
                assert not isinstance(state.key, LeafKey)
                is_boundary = state.tokens > 0 and state.tokens % cache.checkpoint_grid == 0
                assert is_boundary or self.copies.num_holders(state) == 1
