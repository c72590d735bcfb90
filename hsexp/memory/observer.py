"""Events of the memory core and of the scheduler above it.

`hsexp.trace` records them all. An absent observer costs one comparison an operation.
"""

from collections.abc import Hashable, Sequence
from typing import Literal

from hsexp.memory.checkpoint import Checkpoint
from hsexp.memory.pool import PageUse
from hsexp.memory.sequence import Copy, Hit, Refusal, SequenceMemory
from hsexp.memory.stretches import StepStretch

Act = Literal["admit", "extend", "release", "preempt", "unpin", "copies", "give_way", "reset"]
"""What the memory is doing: the cause of every page that moves and of every entry that is lost."""
LossCause = Literal["reassigned", "slab", "withdrawn", "reset", "leaf"]


class Observer:
    """Override the events that you need. Methods must not call back into the memory.

    Lists of pages and keys may be the memory's own: copy what you keep and do not change them.
    """

    # -- the queue ---------------------------------------------------------------------------------

    def on_enter(self, sequence: SequenceMemory, num_tokens: int) -> None:
        """A request joined the queue, for the first time or after a preemption."""

    def on_lookup(self, sequence: SequenceMemory, hit: Hit) -> None:
        """A waiting request looked for its deepest joint restart point."""

    def on_refuse(self, sequence: SequenceMemory, refusal: Refusal, need: Sequence[int]) -> None:
        """An admission was refused; nothing has moved.

        Args:
            need: pages of each pool.
        """

    def on_refuse_again(self, sequence: SequenceMemory, count: int) -> None:
        """The same admission was refused `count` more times; nothing that it needs has changed."""

    def on_adopt(self, sequence: SequenceMemory, hit: Hit) -> None:
        """An admitted request took references on its hit (tokens may be 0)."""

    # -- pages -------------------------------------------------------------------------------------

    def on_act(self, request_id: int | str | None, act: Act) -> None:
        """Whatever moves or is lost from here on is for this request (None: for no single one)."""

    def on_take(self, pool: int, pages: Sequence[int], use: PageUse) -> None:
        """Pages left the free queue for a new owner; what they cached was lost just before.

        Args:
            pool: number of the pool.
        """

    def on_hold(self, pool: int, pages: Sequence[int]) -> None:
        """A reference was added to each page."""

    def on_free(self, pool: int, pages: Sequence[int]) -> None:
        """A reference was dropped from each page."""

    def on_short(self, sequence: SequenceMemory, need: Sequence[int]) -> None:
        """A running request found no room for its next step; somebody is preempted for it.

        Args:
            need: pages of each pool.
        """

    def on_state(self, sequence: SequenceMemory, state: Checkpoint) -> None:
        """A request got a new state."""

    def on_copy(self, sequence: SequenceMemory, copy: Copy) -> None:
        """A branch got a page or a state of its own, into which the shared one is copied."""

    # -- cached entries ----------------------------------------------------------------------------

    def on_publish_blocks(
        self,
        sequence: SequenceMemory,
        first: int,
        keys: Sequence[Hashable],
        pages: Sequence[int],
        *,
        ahead: bool,
    ) -> None:
        """Attention blocks became visible under their keys.

        Args:
            first: index of the first block in its request.
            ahead: whether the step that is being scheduled has yet to compute them.
        """

    def on_publish_state(self, sequence: SequenceMemory, state: Checkpoint, *, ahead: bool) -> None:
        """A state became visible under its key."""

    def on_lose_blocks(self, pool: int, pages: Sequence[int], cause: LossCause) -> None:
        """The keys of these attention pages are gone."""

    def on_lose_state(self, state: Checkpoint, cause: LossCause) -> None:
        """A checkpoint was lost; its key is gone, its pages are not."""

    def on_keep(
        self, request_id: int | str, state: Checkpoint, reason: Literal["retained", "pinned"]
    ) -> None:
        """A policy took or kept a reference beyond execution."""

    # -- the schedule ------------------------------------------------------------------------------

    def on_release(self, sequence: SequenceMemory, num_tokens: int, *, preempted: bool) -> None:
        """A request left after `num_tokens` computed tokens and dropped its references."""

    def on_chunk(self, request_id: int | str, step: int, start: int, num_tokens: int) -> None:
        """A step prefilled these tokens of a request."""

    def on_steps(self, stretch: StepStretch) -> None:
        """A step ran. The stretch may still grow by steps that are equal to it."""


class PoolWatcher:
    """Tells an observer what moves in one pool (`PoolWatch`)."""

    __slots__ = ("_observer", "_pool")

    def __init__(self, observer: Observer, pool: int) -> None:
        self._observer = observer
        self._pool = pool

    def on_take(self, pages: Sequence[int], use: PageUse) -> None:
        self._observer.on_take(self._pool, pages, use)

    def on_hold(self, pages: Sequence[int]) -> None:
        self._observer.on_hold(self._pool, pages)

    def on_free(self, pages: Sequence[int]) -> None:
        self._observer.on_free(self._pool, pages)
