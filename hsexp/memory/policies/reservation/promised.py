"""Promised: an admission counts what it will take, and what those before it have yet to take.

    free 40    A was admitted with 30 blocks and has taken 8: 22 are promised
               B needs 15 blocks, 4 pages of state and 2 spare pages: 22 + 21 > 40, refused

So the prompts of admitted requests do not preempt each other, although no fixed fraction stays
free. Only their output can outgrow the memory.
"""

from collections.abc import Iterable
from typing import Literal

from pydantic import NonNegativeInt

from hsexp.memory.policies.reservation.rule import Reservation, ReservationSettings
from hsexp.memory.sequence import SequenceMemory


class Promised(ReservationSettings):
    """The states that it will take, and the promises to others."""

    kind: Literal["promised"]
    spare_pages: NonNegativeInt
    """Pages of each pool that an admission beside other requests leaves free."""

    def build(
        self, *, block_size: int, reserve_fraction: float, num_admission_states: int
    ) -> Reservation:
        return Promises(block_size=block_size, spare_pages=self.spare_pages)


class Promises(Reservation):
    """Counts from the live sequences what each of them was promised."""

    reserve_fraction = 0.0
    makes_promises = True

    def __init__(self, *, block_size: int, spare_pages: int) -> None:
        self.spare_pages = spare_pages
        self._block_size = block_size

    def num_states(self, num_planned: int) -> int:
        return 1 + num_planned

    def outstanding(self, sequences: Iterable[SequenceMemory]) -> tuple[int, int]:
        size, blocks, states = self._block_size, 0, 0
        for sequence in sequences:
            blocks += max(-(-sequence.num_admitted_tokens // size) - len(sequence.blocks), 0)
            states += sequence.num_planned
        return blocks, states
