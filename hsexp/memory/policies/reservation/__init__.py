"""Reservation: what an admission counts beside the missing blocks and the pages of its hit.

A reservation is one file: the rule, and the settings that make it. `ReservationConfig` lists ours;
a user's own one is named by its module and class.
"""

from typing import Annotated

from pydantic import Field

from hsexp.config.fields import OrOwn
from hsexp.memory.policies.reservation.full_prompt import FullPrompt
from hsexp.memory.policies.reservation.promised import Promised
from hsexp.memory.policies.reservation.rule import ReservationSettings

ReservationConfig = Annotated[
    FullPrompt | Promised, Field(discriminator="kind"), OrOwn(ReservationSettings)
]

FULL_PROMPT = FullPrompt(kind="full_prompt", name="full_prompt")
"""The reservation of a memory that names none."""
