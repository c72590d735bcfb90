"""The full prompt, and the states and the reserve of the organization: the rule of the paper.

What other requests have yet to take is not counted. The reserve, a fixed fraction of all blocks,
stands for it.
"""

from typing import Literal

from hsexp.memory.attention import AttentionStore
from hsexp.memory.policies.reservation.rule import Reservation, ReservationSettings


class FullPrompt(ReservationSettings):
    """The organization's own numbers; it has no settings."""

    kind: Literal["full_prompt"]

    def build(
        self, *, attention: AttentionStore, reserve_fraction: float, num_admission_states: int
    ) -> Reservation:
        return OrganizationsNumbers(
            reserve_fraction=reserve_fraction, num_states=num_admission_states
        )


class OrganizationsNumbers(Reservation):
    """A fixed number of states and a fixed fraction of blocks."""

    def __init__(self, *, reserve_fraction: float, num_states: int) -> None:
        self.reserve_fraction = reserve_fraction
        self._num_states = num_states

    def num_states(self, num_planned: int) -> int:
        return self._num_states
