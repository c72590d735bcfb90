"""Physical copies of pages and states: which are due, and what they hold until they are done.

    listed        of the step that is being scheduled. `take` hands them out; an engine carries them
                  out in that order, before the step writes anything.
    in flight     beside the steps, from `begin_...` to `complete`; nobody writes their sources.

Either way a source keeps a reference of its own, so that it has no new owner before it is read.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hsexp.memory.checkpoint import NO_LINE, Checkpoint
from hsexp.memory.pool import MemoryFault
from hsexp.memory.sequence import SequenceMemory

if TYPE_CHECKING:
    from hsexp.memory.hybrid import HybridMemory


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """One physical copy of a page or a state."""

    kind: Literal["attention", "state"]
    request_id: int | str
    """Whose copy it is."""
    source: tuple[int, ...]
    """An attention page, or the pages of a state, its representative first."""
    target: tuple[int, ...]
    num_tokens: int
    """Valid tokens: of the page, or those that the state stands at."""
    step: int
    source_line: int = NO_LINE
    """Convolution line of a state that has one outside its pages."""
    target_line: int = NO_LINE


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


class Copies:
    """Copies of one memory that are not done yet, and how many were."""

    def __init__(self, memory: "HybridMemory") -> None:
        self.memory = memory
        self.num_done: Counter[str] = Counter()
        """Copies by kind that were handed out or completed."""
        self._listed: list[_Pending] = []
        self._in_flight: dict[Copy, _Pending] = {}

    # -- of a step -----------------------------------------------------------------------------

    def list_page(self, sequence: SequenceMemory, block: int, num_tokens: int) -> None:
        """Give the sequence, which stands at `num_tokens`, a page of its own for one of its blocks.

        The copy takes over its reference on the source.
        """
        self._list(sequence, self._page_copy(sequence, block, num_tokens))

    def list_state(self, sequence: SequenceMemory, num_tokens: int) -> None:
        """The same for its state."""
        self._list(sequence, self._state_copy(sequence, num_tokens))

    def _list(self, sequence: SequenceMemory, pending: _Pending) -> None:
        self._map(sequence, pending)
        self._listed.append(pending)

    def take(self) -> list[Copy]:
        """The copies of the step that was scheduled, in the order in which they must be done.

        They come after any wiping of new pages and before the step's first write. From here on
        the engine's order protects the sources: who gets their pages writes in a later step.
        """
        listed, self._listed[:] = list(self._listed), ()
        for pending in listed:
            self._drop(pending.source)
            self.num_done[pending.copy.kind] += 1
        return [pending.copy for pending in listed]

    # -- beside the steps ----------------------------------------------------------------------

    def begin_page(self, sequence: SequenceMemory, block: int, num_tokens: int) -> Copy:
        """Start to copy a block; the sequence names the source until the copy is complete."""
        self.memory.attention_pool.hold((sequence.blocks[block],))
        return self._begin(self._page_copy(sequence, block, num_tokens))

    def begin_state(self, sequence: SequenceMemory, num_tokens: int) -> Copy:
        """The same for its state."""
        assert sequence.state is not None
        self.memory.states.hold(sequence.state)
        return self._begin(self._state_copy(sequence, num_tokens))

    def _begin(self, pending: _Pending) -> Copy:
        self._in_flight[pending.copy] = pending
        return pending.copy

    def complete(self, copy: Copy) -> None:
        """Let the sequence name the target, then give the source up.

        Raises:
            MemoryFault: the copy is not in flight.
        """
        pending = self._in_flight.pop(copy, None)
        if pending is None:
            raise MemoryFault(f"{copy} is completed but not in flight")
        self.num_done[copy.kind] += 1
        sequence = pending.sequence
        self._drop(pending.source)
        if sequence is None:
            self._drop(pending.target)
            return
        self._drop(self._map(sequence, pending))

    def on_released(self, sequence: SequenceMemory) -> None:
        """A sequence has left: copies in flight end without it, and a listed one whose target
        nobody holds any more is not done at all."""
        for pending in self._in_flight.values():
            if pending.sequence is sequence:
                pending.sequence = None
        for pending in reversed(self._listed[:]):  # a target may be the source of a later one
            if self._num_references(pending.target) == 0:
                self._listed.remove(pending)
                self._drop(pending.source)

    # -- what they hold ------------------------------------------------------------------------

    def num_holders(self, held: int | Checkpoint) -> int:
        """References without those of listed copies, which are done before anything writes."""
        return self._num_references(held) - sum(each.source == held for each in self._listed)

    def _num_references(self, held: int | Checkpoint) -> int:
        return held.refs if isinstance(held, Checkpoint) else self.memory.attention_pool.refs[held]

    def is_copying(self, sequence: SequenceMemory) -> bool:
        """Whether a copy of the sequence is in flight."""
        return any(pending.sequence is sequence for pending in self._in_flight.values())

    def is_awaited_by(self, sequence: SequenceMemory) -> bool:
        """Whether what the sequence names is the target of a listed copy."""
        return any(
            pending.target is sequence.state or pending.target in sequence.blocks
            for pending in self._listed
        )

    def held_pages(self) -> Iterator[int]:
        """Attention pages that copies hold, once a reference: sources, and targets in flight."""
        for held in self._held():
            if not isinstance(held, Checkpoint):
                yield held

    def held_states(self) -> Iterator[Checkpoint]:
        """The same of states."""
        for held in self._held():
            if isinstance(held, Checkpoint):
                yield held

    def _held(self) -> Iterator[int | Checkpoint]:
        for pending in self._listed:
            yield pending.source
        for pending in self._in_flight.values():
            yield pending.source
            yield pending.target

    # -- inside --------------------------------------------------------------------------------

    def _page_copy(self, sequence: SequenceMemory, block: int, num_tokens: int) -> _Pending:
        memory, source = self.memory, sequence.blocks[block]
        target = memory.attention_pool.take(1)[0]
        copy = Copy(
            kind="attention",
            request_id=sequence.request_id,
            source=(source,),
            target=(target,),
            num_tokens=min(num_tokens - block * memory.block_size, memory.block_size),
            step=memory.step,
        )
        self._tell(sequence, copy)
        return _Pending(copy=copy, sequence=sequence, source=source, target=target, block=block)

    def _state_copy(self, sequence: SequenceMemory, num_tokens: int) -> _Pending:
        memory, source = self.memory, sequence.state
        assert source is not None
        target = memory.states.allocate()
        copy = Copy(
            kind="state",
            request_id=sequence.request_id,
            source=tuple(source.pages),
            target=tuple(target.pages),
            num_tokens=num_tokens,
            step=memory.step,
            source_line=source.line,
            target_line=target.line,
        )
        self._tell(sequence, copy)
        return _Pending(copy=copy, sequence=sequence, source=source, target=target)

    def _tell(self, sequence: SequenceMemory, copy: Copy) -> None:
        if self.memory.observer is not None:
            self.memory.observer.on_copy(sequence, copy)

    def _map(self, sequence: SequenceMemory, pending: _Pending) -> int | Checkpoint:
        """Let the sequence name the target. Returns what it named before."""
        target = pending.target
        if isinstance(target, Checkpoint):
            before: int | Checkpoint | None = sequence.state
            assert before is not None
            sequence.state = target
            return before
        page, sequence.blocks[pending.block] = sequence.blocks[pending.block], target
        return page

    def _drop(self, held: int | Checkpoint) -> None:
        memory = self.memory
        if isinstance(held, Checkpoint):
            memory.states.release(held)
        else:
            order = memory.order
            memory.attention_pool.release((held,), hashed=order.hashed, plain=order.plain_attention)
        memory.supply += 1
