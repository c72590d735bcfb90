"""Events of the memory core. An absent observer costs one comparison an operation."""

from collections.abc import Hashable
from typing import Literal

from hsexp.memory.checkpoint import Checkpoint
from hsexp.memory.sequence import Copy, Depths, Hit, Refusal, SequenceMemory

Kind = Literal["attention", "checkpoint"]
LossCause = Literal["reassigned", "slab", "withdrawn", "reset", "leaf"]


class Observer:
    """Override the events that you need. Methods must not call back into the memory."""

    def on_enter(self, sequence: SequenceMemory, depths: Depths) -> None:
        """A request joined the queue."""

    def on_lookup(self, sequence: SequenceMemory, hit: Hit, depths: Depths) -> None:
        """A waiting request looked for its deepest joint restart point."""

    def on_refuse(self, sequence: SequenceMemory, refusal: Refusal) -> None:
        """An admission was refused; nothing has moved."""

    def on_adopt(self, sequence: SequenceMemory, hit: Hit) -> None:
        """An admitted request took references on its hit (tokens may be 0)."""

    def on_allocate(self, sequence: SequenceMemory, num_blocks: int, num_states: int) -> None:
        """New attention blocks and states were taken for the coming step."""

    def on_copy(self, sequence: SequenceMemory, copy: Copy) -> None:
        """A branch got a page or a state of its own, into which the shared one is copied."""

    def on_publish(self, sequence: SequenceMemory, kind: Kind, key: Hashable, tokens: int) -> None:
        """An entry became visible under its key."""

    def on_lose(self, kind: Kind, key: Hashable, cause: LossCause) -> None:
        """An entry was lost; its key is gone."""

    def on_hold(self, checkpoint: Checkpoint, reason: Literal["retained", "pinned"]) -> None:
        """A policy took or kept a reference beyond execution."""

    def on_release(self, sequence: SequenceMemory, preempted: bool) -> None:
        """A request left and dropped its references."""
