"""Physical copies of pages and states: those that are due, and their references until then.

    listed        due before the step that is being scheduled. `take` returns them; an engine
                  carries them out in that order, before the step writes anything.
    in flight     concurrent with steps, from `begin_...` to `complete`; nobody writes their
                  sources.

In both cases the copy holds a reference on its source, so that the source gets no new owner before
it is read.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from hsexp.memory.cache import Cache
from hsexp.memory.checkpoint import Checkpoint
from hsexp.memory.faults import MemoryFault
from hsexp.memory.sequence import Copy, SequenceMemory


@dataclass(kw_only=True, slots=True, eq=False)
class _Pending:
    """A copy that is listed or in flight; it holds a reference on its source."""

    copy: Copy
    sequence: SequenceMemory | None
    """None once its sequence has left."""
    source: int | Checkpoint
    target: int | Checkpoint
    block: int = -1
    """Place of the page in the block table."""
    is_checkpoint: bool = False
    """The target is a checkpoint of its own: the copy holds it, and no sequence does."""

    def map_target(self) -> int | Checkpoint:
        """Put the target into the sequence. Returns the page or state that was in its place."""
        assert self.sequence is not None
        before = self.named_by(self.sequence)
        assert before is not None
        self.map(self.sequence, self.target)
        return before

    def named_by(self, sequence: SequenceMemory) -> int | Checkpoint | None:
        """The page or state of a sequence in the place of the copy."""
        if isinstance(self.target, Checkpoint):
            return sequence.state
        return sequence.blocks[self.block] if self.block < len(sequence.blocks) else None

    def map(self, sequence: SequenceMemory, held: int | Checkpoint) -> None:
        """Put the source or the target into a sequence, in the place of the copy."""
        if isinstance(held, Checkpoint):
            sequence.state = held
        else:
            sequence.blocks[self.block] = held


class Copies:
    """Copies of one cache that are not done yet, and counts of those done.

    Copies in flight have no class of their own: the holders of a source, and what a sequence gives
    back when it leaves, are counted over both kinds.
    """

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.num_done: Counter[str] = Counter()
        """Copies by kind that were handed out or completed."""
        self._listed: list[_Pending] = []
        self._in_flight: dict[Copy, _Pending] = {}

    # -- of a step -----------------------------------------------------------------------------

    def list_page(self, sequence: SequenceMemory, block: int, num_tokens: int) -> None:
        """Give the sequence, which is at `num_tokens`, a page of its own for one of its blocks.

        The copy takes over its reference on the source.
        """
        self._list(self._page_copy(sequence, block, num_tokens))

    def list_state(self, sequence: SequenceMemory, num_tokens: int) -> None:
        """Give the sequence a state of its own; same references as `list_page`."""
        self._list(self._state_copy(sequence, num_tokens))

    def _list(self, pending: _Pending) -> None:
        pending.map_target()
        self._listed.append(pending)
        if isinstance(pending.target, Checkpoint):
            pending.target.awaits_copy = True

    def list_checkpoint(self, sequence: SequenceMemory, num_tokens: int) -> Checkpoint:
        """Copy the state to a checkpoint of its own, which is cached once the copy is done."""
        assert sequence.state is not None
        self.cache.states.hold(sequence.state)
        pending = self._state_copy(sequence, num_tokens)
        pending.is_checkpoint = True
        self._listed.append(pending)
        assert isinstance(pending.target, Checkpoint)
        pending.target.awaits_copy = True
        return pending.target

    def give_up_checkpoints(self, sequence: SequenceMemory | None = None) -> bool:
        """Drop listed copies to checkpoints. Returns whether there were any.

        Args:
            sequence: whose; None drops those of every sequence.
        """
        given_up = [
            pending
            for pending in self._listed
            if pending.is_checkpoint and sequence in (None, pending.sequence)
        ]
        for pending in given_up:
            self._listed.remove(pending)
            assert isinstance(pending.target, Checkpoint)
            if pending.target.key is not None:
                self.cache.lose_checkpoint(pending.target, cause="withdrawn")
            self._drop(pending.target)
            self._drop(pending.source)
        return bool(given_up)

    def take(self) -> list[Copy]:
        """The copies before the step that was scheduled, in the order in which they must be done.

        Do them after any wiping of new pages and before the step's first write. From here on the
        engine's order protects the sources: a new owner of their pages writes in a later step.
        """
        listed, self._listed[:] = list(self._listed), ()
        for pending in listed:
            if isinstance(pending.target, Checkpoint):
                pending.target.awaits_copy = False
            self._drop(pending.source)
            if pending.is_checkpoint:
                self._drop(pending.target)
            self.num_done[pending.copy.kind] += 1
        return [pending.copy for pending in listed]

    def forgo(self, sequence: SequenceMemory) -> list[int | Checkpoint]:
        """Drop listed copies that the sequence does not need, and return their sources.

        A copy is not needed where only it holds its source, and only the sequence its target: the
        sequence then uses the source again.
        """
        sources = []
        for pending in reversed(self._listed[:]):  # a source may be the target of an earlier one
            source, target = pending.source, pending.target
            if (
                pending.named_by(sequence) == target
                and self._num_references(source) == self._num_references(target) == 1
            ):
                self._listed.remove(pending)
                pending.map(sequence, source)  # with the copy's reference
                self._drop(target)
                sources.append(source)
        return sources

    # -- beside the steps ----------------------------------------------------------------------

    def begin_page(self, sequence: SequenceMemory, block: int, num_tokens: int) -> Copy:
        """Start to copy a block; the sequence keeps the source until the copy is complete."""
        self.cache.attention_pool.hold((sequence.blocks[block],))
        pending = self._page_copy(sequence, block, num_tokens)
        self._in_flight[pending.copy] = pending
        return pending.copy

    def begin_state(self, sequence: SequenceMemory, num_tokens: int) -> Copy:
        """Start to copy the state; the sequence keeps the source until the copy is complete."""
        assert sequence.state is not None
        self.cache.states.hold(sequence.state)
        pending = self._state_copy(sequence, num_tokens)
        self._in_flight[pending.copy] = pending
        return pending.copy

    def complete(self, copy: Copy) -> None:
        """Put the target into the sequence, then release the source.

        Raises:
            MemoryFault: the copy is not in flight.
        """
        pending = self._in_flight.pop(copy, None)
        if pending is None:
            raise MemoryFault(f"{copy} is completed but not in flight")
        self.num_done[copy.kind] += 1
        self._drop(pending.source)
        # Its sequence may have left; otherwise the table's own reference goes.
        self._drop(pending.target if pending.sequence is None else pending.map_target())

    def on_released(self, sequence: SequenceMemory) -> None:
        """A sequence has left: drop listed copies whose targets nobody holds any more.

        Its copies in flight end without it.
        """
        for pending in self._in_flight.values():
            if pending.sequence is sequence:
                pending.sequence = None
        for pending in reversed(self._listed[:]):  # a target may be the source of a later one
            if self._num_references(pending.target) == 0:
                self._listed.remove(pending)
                self._drop(pending.source)

    # -- references ----------------------------------------------------------------------------

    def num_holders(self, held: int | Checkpoint) -> int:
        """References, except those of listed copies, which are done before anything writes."""
        return self._num_references(held) - sum(each.source == held for each in self._listed)

    def _num_references(self, held: int | Checkpoint) -> int:
        return held.refs if isinstance(held, Checkpoint) else self.cache.attention_pool.refs[held]

    def is_copying(self, sequence: SequenceMemory) -> bool:
        """Whether a copy of the sequence is in flight."""
        return any(pending.sequence is sequence for pending in self._in_flight.values())

    def is_awaited_by(self, sequence: SequenceMemory) -> bool:
        """Whether a page or the state of the sequence is the target of a listed copy."""
        return any(
            pending.target is sequence.state or pending.target in sequence.blocks
            for pending in self._listed
        )

    def held(self) -> Iterator[int | Checkpoint]:
        """Attention pages and states, once for each reference: sources, targets in flight, and
        checkpoints."""
        for pending in self._listed:
            yield pending.source
            if pending.is_checkpoint:
                yield pending.target
        for pending in self._in_flight.values():
            yield pending.source
            yield pending.target

    # -- inside --------------------------------------------------------------------------------

    def _page_copy(self, sequence: SequenceMemory, block: int, num_tokens: int) -> _Pending:
        cache, source = self.cache, sequence.blocks[block]
        target = cache.attention_pool.take(1)[0]
        copy = Copy(
            kind="attention",
            request_id=sequence.request_id,
            source=(source,),
            target=(target,),
            num_tokens=min(num_tokens - block * cache.block_size, cache.block_size),
            step=cache.step,
        )
        self._notify(sequence, copy)
        return _Pending(copy=copy, sequence=sequence, source=source, target=target, block=block)

    def _state_copy(self, sequence: SequenceMemory, num_tokens: int) -> _Pending:
        cache, source = self.cache, sequence.state
        assert source is not None
        target = cache.states.allocate()
        copy = Copy(
            kind="state",
            request_id=sequence.request_id,
            source=tuple(source.pages),
            target=tuple(target.pages),
            num_tokens=num_tokens,
            step=cache.step,
            source_line=source.line,
            target_line=target.line,
        )
        self._notify(sequence, copy)
        return _Pending(copy=copy, sequence=sequence, source=source, target=target)

    def _notify(self, sequence: SequenceMemory, copy: Copy) -> None:
        if self.cache.observer is not None:
            self.cache.observer.on_copy(sequence, copy)

    def _drop(self, held: int | Checkpoint) -> None:
        if isinstance(held, Checkpoint):
            self.cache.release_state(held)
        else:
            self.cache.release_blocks((held,))
