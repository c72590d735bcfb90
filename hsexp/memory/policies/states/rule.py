"""The seam: at each step of a request the memory asks its rule which state the step writes.

begin         what the last step left is published or given up, before room is needed
needs_state   whether the step takes a state, so that there must be room for one
take_state    takes it
publish       what the step completes, or what it is about to overwrite

make_room     gives up what is not needed, so that nobody is preempted for it
leave         the request is released or preempted
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from hsexp.config.fields import Choice
from hsexp.memory.branching.copies import Copies
from hsexp.memory.cache import Cache
from hsexp.memory.policies.reservation.rule import Reservation
from hsexp.memory.policies.retention import Retention
from hsexp.memory.sequence import Hit, SequenceMemory


class StateRule(ABC):
    """How the running requests of one memory own states."""

    lets_branch: bool = True
    """Whether a running request can be forked, kept as a leaf, or extended by drafts."""

    @abstractmethod
    def max_states(self, *, crosses: bool) -> int:
        """Most states that a request holds at once while it runs alone.

        Args:
            crosses: whether it crosses a boundary of the checkpoint grid.
        """

    @abstractmethod
    def num_planned(self, hit: Hit, num_tokens: int) -> int:
        """States beside the first one that a prefill takes room for, after this hit."""

    @abstractmethod
    def num_left(self, sequence: SequenceMemory, computed: int, end: int) -> int:
        """Planned states that a prefill has yet to take after a step over [computed, end)."""

    @abstractmethod
    def begin(self, sequence: SequenceMemory, computed: int) -> None:
        """A step goes on from `computed` tokens."""

    @abstractmethod
    def needs_state(self, sequence: SequenceMemory, end: int) -> bool:
        """Whether a step to `end` takes a state."""

    @abstractmethod
    def take_state(self, sequence: SequenceMemory, computed: int) -> None:
        """Take the state of the step. There is room for it."""

    @abstractmethod
    def publish(self, sequence: SequenceMemory, computed: int, end: int) -> None:
        """The step has all its room, and will be computed."""

    def make_room(self) -> bool:
        """Give up what nobody needs for the coming step. Returns whether anything became free."""
        return False

    def counters(self) -> dict[str, int]:
        """Totals since the start that only this rule has."""
        return {}

    def idle_end(self, sequence: SequenceMemory, end: int) -> int:
        """Tokens up to which steps after `end` take, publish and give up no state; 0 if the next
        one may."""
        return 0

    @abstractmethod
    def leave(self, sequence: SequenceMemory, computed: int) -> None:
        """The request stops after `computed` tokens: publish them, and withdraw what the coming
        step would have computed."""


class StatesSettings(Choice):
    """Settings of a rule of states."""

    copies: ClassVar[bool] = False
    """Whether a step may copy states before it computes; an engine has to carry that out."""

    def refusal(self, *, retention: bool, branches: bool) -> str | None:
        """Why the rule cannot be combined with others; None if it can.

        Args:
            retention: superseded states are retained.
            branches: running requests fork, leave leaves, or draft tokens.
        """
        return None

    @abstractmethod
    def build(
        self, cache: Cache, *, copies: Copies, retention: Retention, reservation: Reservation
    ) -> StateRule:
        """The rule of one memory."""
