"""Leaves: which states off the checkpoint grid stay in the cache for later requests.

    turn 1   [ prompt ]| answer |            ends at 1,100 tokens: a leaf there
    turn 2   [ prompt ][ answer ][ message ]|     goes on from 1,100, and not from 1,024

`off` keeps none. With `final` a finished request leaves its last state, with the block that it did
not fill (`hsexp.memory.branching.leaves`). Nobody has asked for such a restart point yet, so every
order of eviction sees an unproven one, and any other need may take it.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from hsexp.config.base import Config
from hsexp.config.fields import Name


class NoLeaves(Config):
    """Only states at boundaries stay; it has no settings."""

    max_final: ClassVar[int] = 0

    kind: Literal["off"]
    name: Name

    def refusal(self, *, allows_branches: bool, exact: bool) -> str | None:
        return None


class FinalLeaves(Config):
    """A finished request leaves its last state."""

    kind: Literal["final"]
    name: Name
    max_final: PositiveInt
    """Most of them at a time; one more takes the place of the oldest."""

    def refusal(self, *, allows_branches: bool, exact: bool) -> str | None:
        """Why a memory cannot keep them; None if it can.

        Args:
            allows_branches: whether its sequences can share a block that is not full.
            exact: whether chunks end at canonical positions.
        """
        if not allows_branches:
            return "its sequences cannot share a block that is not full"
        if exact:
            return "canonical chunks begin at boundaries, and exact asks for them"
        return None


LeavesConfig = Annotated[NoLeaves | FinalLeaves, Field(discriminator="kind")]

NO_LEAVES = NoLeaves(kind="off", name="off")
"""The rule of a memory that names none."""
