"""The seam: at an admission the memory asks its reservation what must be free in addition.

    need   missing blocks of the full prompt + pages of the hit       every reservation
           + the states that the rule of states plans for it          `num_states`
           + what other requests were promised and have yet to take   `outstanding`
           + pages that stay free in every pool                       `spare_pages`

Beside this need the headroom stays free, and the reserve of the organization as far as the
reservation keeps it (`reserve_fraction`). A request that would run alone needs its first state, and
no spare pages.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from hsexp.config.fields import Choice
from hsexp.memory.attention import AttentionStore
from hsexp.memory.sequence import SequenceMemory


class Reservation(ABC):
    """What the admissions of one memory count in addition."""

    reserve_fraction: float
    """Fraction of blocks that admission keeps free in addition to the headroom."""
    spare_pages: int = 0
    """Pages of each pool that an admission beside other requests leaves free."""
    makes_promises: bool = False
    """Whether the need of one request depends on what others have yet to take."""

    @abstractmethod
    def num_states(self, num_planned: int) -> int:
        """States that an admission counts for the request itself.

        Args:
            num_planned: states beside the first one that it is going to take.
        """

    def outstanding(self, sequences: Iterable[SequenceMemory]) -> "Outstanding":
        """What running requests were promised and have yet to take."""
        return NOTHING


@dataclass(frozen=True, kw_only=True, slots=True)
class Outstanding:
    """Promises that are not kept yet."""

    blocks: int
    """Attention pages."""
    slots: int
    """Attention blocks in shared pages (`hsexp.memory.tails`)."""
    states: int


NOTHING = Outstanding(blocks=0, slots=0, states=0)


class ReservationSettings(Choice):
    """Settings of a reservation."""

    @abstractmethod
    def build(
        self, *, attention: AttentionStore, reserve_fraction: float, num_admission_states: int
    ) -> Reservation:
        """The reservation of one memory.

        Args:
            attention: the store that counts blocks.
            reserve_fraction: as in the settings of the organization.
            num_admission_states: likewise.
        """
