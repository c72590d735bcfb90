"""States: how a running request owns its recurrent and convolution state.

A rule is one file: the rule, and the settings that make it. `StatesConfig` lists ours; a user's own
one is named by its module and class.
"""

from typing import Annotated

from pydantic import Field

from hsexp.config.fields import OrOwn
from hsexp.memory.policies.states.in_place import InPlace
from hsexp.memory.policies.states.per_boundary import PerBoundary
from hsexp.memory.policies.states.rule import StatesSettings

StatesConfig = Annotated[PerBoundary | InPlace, Field(discriminator="kind"), OrOwn(StatesSettings)]

PER_BOUNDARY = PerBoundary(kind="per_boundary", name="per_boundary")
"""The rule of a memory that names none."""
