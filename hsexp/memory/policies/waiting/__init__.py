"""Waiting: which waiting request is asked for admission next.

An order is one file: the rule, and the settings that make it. `WaitingConfig` lists ours; a user's
own one is named by its module and class.
"""

from typing import Annotated

from pydantic import Field

from hsexp.config.fields import OrOwn
from hsexp.memory.policies.waiting.first_come import FirstCome
from hsexp.memory.policies.waiting.hit_first import HitFirst
from hsexp.memory.policies.waiting.order import WaitingSettings

WaitingConfig = Annotated[FirstCome | HitFirst, Field(discriminator="kind"), OrOwn(WaitingSettings)]

FIRST_COME = FirstCome(kind="first_come", name="first_come")
"""The order of a scheduler whose settings name none."""
