"""Branches: several sequences that continue one state, and who may write what of it.

    tokens      0 ........... 8 ........... 16 .... 20            block 8, fork after 20 tokens
    parent      [ page 4     ][ page 5     ][ page 6 |  ]   state P      references
    child       [ page 4     ][ page 5     ][ page 6 |  ]   state P      2, 2, 2 and 2

    parent      [ page 4     ][ page 5     ][ page 9 |  ]   state Q      its first write copied
    child       [ page 4     ][ page 5     ][ page 6 |  ]   state P      the last holder: in place

A fork moves nothing. What the next token would overwrite, the partial tail block and the recurrent
and convolution state, is read-only while somebody else holds it: the first writer copies it, and
the last holder writes in place. A step that crosses into a new block or a new checkpoint interval
reads the shared one and writes a new one anyway, so it copies nothing.

A restart point may also be kept of a sequence that goes away: a LEAF, the state and the tail at any
length under the exact tokens before it. It lies in the cache, gives way to any other need, and
counts as a holder while it is there.

What copies are, and what they hold meanwhile: `hsexp.memory.copies`.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hsexp.memory.checkpoint import Checkpoint
from hsexp.memory.copies import Copies, Copy
from hsexp.memory.pool import MemoryFault
from hsexp.memory.sequence import Hit, PrefixKeys, SequenceMemory

if TYPE_CHECKING:
    from hsexp.memory.hybrid import HybridMemory


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafKey:
    """Names a leaf's state and its tail page, apart from the keys of the checkpoint grid."""

    key: Hashable


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharer:
    """A sequence that must look before it writes, and the tokens that it stands at until then."""

    sequence: SequenceMemory
    num_tokens: int


def exact_prefix(
    keys: PrefixKeys,
    block_size: int,
    tokens: Sequence[int],
    *,
    num_tokens: int | None = None,
    salt: Hashable = None,
) -> Hashable:
    """The key of a leaf after exactly these tokens: the hash of their full blocks, and the rest.

    Args:
        keys: of the sequence; its attention keys reach over the full blocks of `tokens`.
        num_tokens: how many of the tokens; None takes all.
        salt: the cache salt, which the key of a full block already contains.
    """
    end = len(tokens) if num_tokens is None else num_tokens
    num_full = end // block_size
    above = keys.attention[num_full - 1] if num_full else ("salt", salt)
    return (above, tuple(tokens[num_full * block_size : end]))


class Branching:
    """Forks, leaves and copies of one memory.

    Invariant: a sequence that stands off the checkpoint grid, and whose tail or state another one,
    a leaf or a copy in flight holds as well, is in `sharers`. Who is not there writes in place.
    """

    def __init__(self, memory: "HybridMemory", *, max_leaves: int) -> None:
        self.memory = memory
        self.max_leaves = max_leaves
        self.sharers: dict[int | str, Sharer] = {}
        """By request."""
        self.leaves: dict[LeafKey, None] = {}
        """Kept leaves, the oldest first; some may have been evicted since."""
        self.copies = Copies(memory)

    # -- forks ---------------------------------------------------------------------------------

    def fork_point(self, parent: SequenceMemory, num_tokens: int) -> Hit:
        """The restart point that a running sequence is at.

        Raises:
            MemoryFault: the parent does not run, or cannot stand at `num_tokens`.
        """
        self._require_standing(parent, num_tokens)
        return Hit(
            tokens=num_tokens,
            blocks=tuple(parent.blocks[: -(-num_tokens // self.memory.block_size)]),
            checkpoint=parent.state,
        )

    def _require_standing(self, sequence: SequenceMemory, num_tokens: int) -> None:
        """That the sequence's state may be that of `num_tokens`: as far as can be told here."""
        memory, who = self.memory, f"request {sequence.request_id}"
        if memory.sequences.get(sequence.request_id) is not sequence:
            raise MemoryFault(f"{who} is forked or kept but does not run")
        sharer = self.sharers.get(sequence.request_id)
        if (
            num_tokens < 1
            or (num_tokens - 1) // memory.checkpoint_grid != sequence.state_index
            or num_tokens > len(sequence.blocks) * memory.block_size
            or (sharer is not None and num_tokens != sharer.num_tokens)
        ):
            raise MemoryFault(f"{who} does not stand at {num_tokens} tokens")

    def fork(self, parent: SequenceMemory, child: SequenceMemory, num_tokens: int) -> None:
        """Start `child` from what `parent` has computed. Takes no page.

        A sequence is forked before it is extended in a step: afterwards its state is about to be
        overwritten.

        Raises:
            MemoryFault: the parent does not run, or cannot stand at `num_tokens`.
        """
        memory, point = self.memory, self.fork_point(parent, num_tokens)
        # Full blocks have their keys before the child counts them as published.
        memory.publish_computed(parent, num_tokens)
        memory.admit(child, point)
        self.share(parent, num_tokens)

    def fork_by_copying(
        self, parent: SequenceMemory, child: SequenceMemory, num_tokens: int
    ) -> bool:
        """The reference: `child` gets copies of every block and of the state, and shares nothing.

        False means that there is not enough room; nothing has moved.
        """
        memory, point = self.memory, self.fork_point(parent, num_tokens)
        if not memory.has_room(len(point.blocks), True):
            return False
        memory.publish_computed(parent, num_tokens)
        memory.admit(child, point)
        self.sharers.pop(child.request_id, None)
        for block in range(len(point.blocks)):
            self.copies.list_page(child, block, num_tokens)
        self.copies.list_state(child, num_tokens)
        if num_tokens % memory.checkpoint_grid == 0:
            self.share(child, num_tokens)
        return True

    def share(self, sequence: SequenceMemory, num_tokens: int) -> None:
        """Others may hold what the sequence stands at, so that it looks before it writes.

        At a boundary of the grid it will write nothing of what is there.
        """
        if num_tokens % self.memory.checkpoint_grid:
            self.sharers[sequence.request_id] = Sharer(sequence=sequence, num_tokens=num_tokens)
            sequence.quiet_end = 0
        else:
            assert sequence.state is not None
            sequence.state.tokens = num_tokens

    # -- writing -------------------------------------------------------------------------------

    def own(
        self, sequence: SequenceMemory, computed: int, *, new_blocks: int, new_state: bool
    ) -> bool:
        """Make private what a step from `computed` on writes in place, copying what is shared.

        A sequence that shares nothing has nothing to do.

        Args:
            new_blocks: pages that the step takes beside the copies.
            new_state: it writes a new state, so that the present one is only read.

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
                f"request {sequence.request_id} stands at {sharer.num_tokens} tokens and cannot go "
                f"on from {computed}"
            )
        if self.copies.is_copying(sequence):
            raise MemoryFault(f"request {sequence.request_id} writes while its copy is in flight")
        memory = self.memory
        block = computed // memory.block_size if computed % memory.block_size else None
        for leaves_count in (True, False):
            copy_tail = block is not None and self._is_shared_page(
                sequence.blocks[block], leaves_count=leaves_count
            )
            copy_state = not new_state and self._is_shared_state(
                sequence.state, leaves_count=leaves_count
            )
            if memory.has_room(new_blocks + copy_tail, new_state or copy_state):
                break
        else:
            return False
        del self.sharers[sequence.request_id]
        if block is not None:
            if copy_tail:
                self.copies.list_page(sequence, block, computed)
            else:
                self._forget_leaf_of(memory.attention_pool.entries[sequence.blocks[block]])
        if copy_state:
            self.copies.list_state(sequence, computed)
        elif not new_state:
            assert sequence.state is not None
            self._forget_leaf_of(sequence.state.key)
        return True

    def make_private(self, sequence: SequenceMemory) -> bool:
        """Copy at the fork what would be copied at the first write. False: not enough room."""
        sharer = self.sharers.get(sequence.request_id)
        return sharer is None or self.own(
            sequence, sharer.num_tokens, new_blocks=0, new_state=False
        )

    def owed(self) -> tuple[int, int]:
        """(pages, states) that running branches will still copy if each writes one more token."""
        size, entries = self.memory.block_size, self.memory.attention_pool.entries
        tails: Counter[int] = Counter()
        states: Counter[Checkpoint] = Counter()
        for sharer in self.sharers.values():
            sequence = sharer.sequence
            if self.copies.is_copying(sequence):
                continue  # it has its pages
            block, offset = divmod(sharer.num_tokens, size)
            if offset:
                tails[sequence.blocks[block]] += 1
            assert sequence.state is not None
            states[sequence.state] += 1
        # The last of the sharers writes in place, unless somebody else holds on to it.
        pages = sum(
            count - (self.copies.num_holders(page) == count and entries[page] is None)
            for page, count in tails.items()
        )
        return pages, sum(
            count - (self.copies.num_holders(state) == count and state.key is None)
            for state, count in states.items()
        )

    def _is_shared_page(self, page: int, *, leaves_count: bool) -> bool:
        entry = self.memory.attention_pool.entries[page]
        return self.copies.num_holders(page) > 1 or (leaves_count and entry is not None)

    def _is_shared_state(self, state: Checkpoint | None, *, leaves_count: bool) -> bool:
        assert state is not None
        return self.copies.num_holders(state) > 1 or (leaves_count and state.key is not None)

    # -- copies beside the steps ---------------------------------------------------------------

    def begin_copy(self, sequence: SequenceMemory) -> list[Copy]:
        """Start the copies that the next token of a branch needs, beside the running steps.

        The table keeps naming the shared page and state until `complete_copy`; until then the
        sequence cannot be extended and nobody else may write them. Empty: it owns all already.

        Raises:
            MemoryFault: there is not enough room (nothing has moved), or its copy is in flight.
        """
        if self.copies.is_copying(sequence):
            raise MemoryFault(f"the copy of request {sequence.request_id} is in flight already")
        sharer = self.sharers.get(sequence.request_id)
        if sharer is None:
            return []
        memory, num_tokens = self.memory, sharer.num_tokens
        block, offset = divmod(num_tokens, memory.block_size)
        copy_tail = offset > 0 and self._is_shared_page(sequence.blocks[block], leaves_count=True)
        copy_state = self._is_shared_state(sequence.state, leaves_count=True)
        if not memory.has_room(int(copy_tail), copy_state):
            raise MemoryFault(f"no room for the copies of request {sequence.request_id}")
        begun = []
        if copy_tail:
            begun.append(self.copies.begin_page(sequence, block, num_tokens))
        if copy_state:
            begun.append(self.copies.begin_state(sequence, num_tokens))
        return begun

    def complete_copy(self, copy: Copy) -> None:
        """The copy is done: only now the table names it, and then the source is given up.

        Raises:
            MemoryFault: the copy is not in flight.
        """
        self.copies.complete(copy)

    def on_released(self, sequence: SequenceMemory) -> None:
        """A sequence has left."""
        self.sharers.pop(sequence.request_id, None)
        self.copies.on_released(sequence)

    # -- leaves --------------------------------------------------------------------------------

    def keep_leaf(self, sequence: SequenceMemory, num_tokens: int, key: Hashable) -> bool:
        """Keep where a running sequence stands as a restart point for others.

        It is theirs as long as it is cached: the sequence itself copies at its next write. On the
        checkpoint grid nothing is kept, since the ordinary lookup finds that point; nor before a
        copy that the sequence waits for.

        Args:
            key: names the tokens before it and their cache salt: see `exact_prefix`.

        Returns:
            Whether a leaf of this key is there now.

        Raises:
            MemoryFault: the sequence does not run, or cannot stand at `num_tokens`.
        """
        memory, leaf, state = self.memory, LeafKey(key=key), sequence.state
        self._require_standing(sequence, num_tokens)
        on_grid = num_tokens % memory.checkpoint_grid == 0
        if self.max_leaves == 0 or on_grid or self.copies.is_awaited_by(sequence):
            return False
        assert state is not None
        block, offset = divmod(num_tokens, memory.block_size)
        if leaf in memory.checkpoint_index.oldest and (
            not offset or leaf in memory.block_index.oldest
        ):
            return True
        if state.key is not None:  # it is a leaf already, by another name
            return False
        self._forget_leaf(leaf)  # what is left of an evicted one
        memory.publish_computed(sequence, num_tokens)
        if offset:
            memory.attention_pool.entries[sequence.blocks[block]] = leaf
            memory.block_index.add(leaf, sequence.blocks[block])
        state.tokens = num_tokens
        state.published_step = memory.step
        memory.states.publish(state, leaf)
        memory.checkpoint_index.add(leaf, state)
        memory.supply += 1
        if memory.observer is not None:
            memory.observer.on_publish(sequence, "checkpoint", leaf, num_tokens)
        self.share(sequence, num_tokens)
        self.leaves[leaf] = None
        while len(self.leaves) > self.max_leaves:
            self._forget_leaf(next(iter(self.leaves)))
        return True

    def find_leaf(self, sequence: SequenceMemory, key: Hashable) -> Hit | None:
        """The kept restart point of this key, without touching it; None if any part is gone."""
        memory, leaf = self.memory, LeafKey(key=key)
        state = memory.checkpoint_index.oldest.get(leaf)
        if state is None:
            return None
        block, offset = divmod(state.tokens, memory.block_size)
        keys = [*sequence.keys.attention[:block], *([leaf] if offset else [])]
        blocks = [memory.block_index.oldest.get(each) for each in keys]
        pages = [page for page in blocks if page is not None]
        if len(pages) < len(blocks):
            return None
        return Hit(
            tokens=state.tokens,
            blocks=pages,
            checkpoint=state,
            ready=state.published_step < memory.step and memory.are_computed(pages),
        )

    def deepest_leaf(
        self,
        sequence: SequenceMemory,
        tokens: Sequence[int],
        *,
        num_tokens: int,
        salt: Hashable = None,
    ) -> Hit | None:
        """The deepest kept restart point within the first `num_tokens` tokens; None without any.

        Args:
            tokens: of the sequence; its attention keys reach over the full blocks of `num_tokens`.
            salt: as in `exact_prefix`.
        """
        found, size = None, self.memory.block_size
        for leaf in self.leaves:
            state = self.memory.checkpoint_index.oldest.get(leaf)
            if state is None or not (found.tokens if found else 0) < state.tokens <= num_tokens:
                continue
            key = exact_prefix(sequence.keys, size, tokens, num_tokens=state.tokens, salt=salt)
            if leaf.key == key:
                found = self.find_leaf(sequence, key) or found
        return found

    def _forget_leaf_of(self, key: Hashable) -> None:
        if isinstance(key, LeafKey):
            self._forget_leaf(key)

    def _forget_leaf(self, leaf: LeafKey) -> None:
        """Take the leaf's key away; who holds its page or state keeps them."""
        memory = self.memory
        self.leaves.pop(leaf, None)
        state = memory.checkpoint_index.oldest.get(leaf)
        if state is not None:
            memory.lose_checkpoint(state, cause="leaf")
        page = memory.block_index.oldest.get(leaf)
        if page is not None:
            memory.lose(memory.attention_pool, page, leaf, cause="leaf")

    # -- recount -------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Who may share is known to share; what is listed or in flight has an owner."""
        memory = self.memory
        assert len(self.leaves) <= self.max_leaves
        for request_id, sharer in self.sharers.items():
            assert memory.sequences.get(request_id) is sharer.sequence
            assert sharer.num_tokens % memory.checkpoint_grid and sharer.sequence.quiet_end == 0
        entries = memory.attention_pool.entries
        for sequence in memory.sequences.values():
            if sequence.request_id in self.sharers:
                continue
            assert not self.copies.is_copying(sequence)
            assert not any(isinstance(entries[page], LeafKey) for page in sequence.blocks)
            state = sequence.state
            if state is not None:  # a boundary is never written again, and anybody may hold it
                assert not isinstance(state.key, LeafKey)
                is_boundary = state.tokens > 0 and state.tokens % memory.checkpoint_grid == 0
                assert is_boundary or self.copies.num_holders(state) == 1
