"""Eviction: the order in which free pages get a new owner.

    pool      which pages are referenced, which are free, and what each one caches
    queue     the free ones, cached or not, the next to be reassigned first

An order is one file: a queue, and the settings that make it. `EvictionConfig` lists ours; a user's
own one is named by its module and class.
"""

from typing import Annotated

from pydantic import Field

from hsexp.config.fields import OrOwn
from hsexp.memory.policies.eviction.lru import LruEviction
from hsexp.memory.policies.eviction.paper import PaperEviction
from hsexp.memory.policies.eviction.queue import EvictionSettings
from hsexp.memory.policies.eviction.replay_length import ReplayLength
from hsexp.memory.policies.eviction.restart_point import RestartPoint
from hsexp.memory.policies.eviction.value_per_byte import ValuePerByte

EvictionConfig = Annotated[
    PaperEviction | LruEviction | RestartPoint | ValuePerByte | ReplayLength,
    Field(discriminator="kind"),
    OrOwn(EvictionSettings),
]

PAPER = PaperEviction(kind="paper", name="paper")
"""The order of a memory that names none."""
