"""Promised: an admission counts what it will take, and what those before it have yet to take.

    free 40    A was admitted with 30 blocks and has taken 8: 22 are promised
               B needs 15 blocks, 4 pages of state and 2 spare pages: 22 + 21 > 40, refused

So the prompts of admitted requests do not preempt each other, although no fixed fraction stays
free. Only their output can outgrow the memory.
"""

from collections.abc import Iterable
from typing import Literal

from pydantic import NonNegativeInt

from hsexp.memory.attention import AttentionStore
from hsexp.memory.policies.reservation.rule import Outstanding, Reservation, ReservationSettings
from hsexp.memory.sequence import SequenceMemory


class Promised(ReservationSettings):
    """The states that it will take, and the promises to others."""

    kind: Literal["promised"]
    spare_pages: NonNegativeInt
    """Pages of each pool that an admission beside other requests leaves free."""

    def build(
        self, *, attention: AttentionStore, reserve_fraction: float, num_admission_states: int
    ) -> Reservation:
        return Promises(attention, spare_pages=self.spare_pages)


class Promises(Reservation):
    """Counts from the live sequences what each of them was promised."""

    reserve_fraction = 0.0
    makes_promises = True

    def __init__(self, attention: AttentionStore, *, spare_pages: int) -> None:
        self.spare_pages = spare_pages
        self._attention = attention

    def num_states(self, num_planned: int) -> int:
        return 1 + num_planned

    def outstanding(self, sequences: Iterable[SequenceMemory]) -> Outstanding:
        missing, blocks, slots, states = self._attention.missing, 0, 0, 0
        for sequence in sequences:
            pages, in_slabs = missing(sequence, sequence.num_admitted_tokens)
            blocks += max(pages, 0)
            slots += max(in_slabs, 0)
            states += sequence.num_planned
        return Outstanding(blocks=blocks, slots=slots, states=states)
