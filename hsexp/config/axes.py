"""The axes of a campaign, each declared once.

A block's fields, the arms of an analysis, what the command line can pin, and how the planner pairs
and resolves cells all follow from `AXES`. A new axis is one entry here, and its default in
`conf/config.yaml` where the command line can pin it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, PositiveFloat, PositiveInt, create_model

from hsexp.config.base import Config
from hsexp.config.fields import Fraction, Name, OpenFraction, Seed
from hsexp.memory.config import BudgetConfig, MemoryConfig
from hsexp.memory.organizations import OrganizationConfig
from hsexp.memory.policies.eviction import EvictionConfig
from hsexp.memory.policies.pinning import PinningConfig
from hsexp.memory.policies.retention import RetentionConfig
from hsexp.memory.policies.waiting import WaitingConfig
from hsexp.workload.isolation import IsolationConfig


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One setting that a campaign can vary from cell to cell."""

    name: str
    """Its field in a block, its column in a ledger."""
    type: Any = Name
    """Type of one value in a block."""
    meaning: str
    options: Any = None
    """For an axis that is a Hydra group of the same name: type of the group's options. Blocks name
    options, and the command line pins one. None where the axis is not a group."""
    spelling: str = ""
    """The setting as the command line spells it; empty where that is the name."""
    pairs: bool = False
    """Whether runs must agree in it to form a pair: the same requests under the same load."""
    neutral: tuple[Any, ...] | None = None
    """Values of a block that does not name the axis; None where every block must."""
    is_implied: bool = False
    """Whether a cell leaves the axis out where it has its neutral value. So an axis that is new
    changes nothing about the cells that do not vary it, and ledgers without it stay as they are."""

    @property
    def path(self) -> tuple[str, ...]:
        """The setting's place in a composed configuration."""
        return tuple((self.spelling or self.name).split("."))

    def pinned(self, launch: Any) -> tuple[Any, ...] | None:
        """The values that a launch pins the axis to; None leaves them to the campaign."""
        value = launch
        for part in self.path:
            value = value.get(part) if isinstance(value, dict) else getattr(value, part)
        if value is None:
            return None
        if self.options is not None:
            return (value.name,)
        return tuple(value) if self is SEEDS else (value,)


SEEDS = Axis(name="seeds", type=Seed, meaning="Independent repeats.")

AXES = (
    Axis(
        name="budget",
        options=BudgetConfig,
        meaning="Nominal bytes for all state of one layer.",
        pairs=True,
    ),
    Axis(
        name="rate_per_s",
        type=PositiveFloat | None,
        meaning="Offered requests per second; null replays a trace's own arrivals.",
        spelling="arrivals.rate_per_s",
        pairs=True,
    ),
    Axis(
        name="cap",
        type=PositiveInt,
        meaning="Most running requests.",
        spelling="admission.cap",
        pairs=True,
    ),
    Axis(
        name="sharing",
        type=Fraction | None,
        meaning="Fraction q of requests that share their context; null leaves it to a trace.",
        spelling="workload.sharing",
        pairs=True,
    ),
    Axis(
        name="headroom",
        type=OpenFraction,
        meaning="Fraction f of all blocks that must stay free at admission.",
        spelling="admission.headroom",
        neutral=(0.0,),  # vLLM keeps none (Section 4.4)
    ),
    Axis(
        name="retention",
        options=RetentionConfig,
        meaning="Producer-side checkpoint lifetime.",
        neutral=("off",),  # the paper names none before Q8
    ),
    Axis(
        name="pinning",
        options=PinningConfig,
        meaning="Extra references taken at preemption.",
        neutral=("off",),  # vLLM has none
    ),
    Axis(
        name="eviction",
        options=EvictionConfig,
        meaning="Order in which free pages get a new owner.",
        neutral=("paper",),  # each organization has its own
        is_implied=True,
    ),
    Axis(
        name="waiting",
        options=WaitingConfig,
        meaning="Which waiting request is asked for admission next.",
        neutral=("first_come",),  # vLLM's
        is_implied=True,
    ),
    Axis(
        name="isolation",
        options=IsolationConfig,
        meaning="Whether requests may reuse each other's state.",
        pairs=True,
        neutral=("share",),  # reuse between requests is what q means
    ),
    Axis(
        name="trace",
        type=bool,
        meaning="Whether state depths are recorded at queue entry and admission (Q7).",
        neutral=(False,),
    ),
    Axis(
        name="organization",
        options=OrganizationConfig,
        meaning="How the three state types are laid out in the budget.",
    ),
    SEEDS,
)
"""Axes in the order in which a plan nests them; seeds are outermost (`hsexp.plan.planner`)."""

NEUTRAL = {axis.name: axis.neutral[0] for axis in AXES if axis.neutral is not None}
"""The value of an axis in a cell, or in a row of a ledger, that does not name it."""

ARM_AXES = (
    *(axis for axis in AXES if axis.name == "organization"),
    *(axis for axis in AXES if axis.name not in ("organization", "seeds")),
)
"""Axes that distinguish the arms of a campaign, in the order of a cell's axes: organization first.
"""


MEMORY_AXES = tuple(
    axis for axis in AXES if axis.options is not None and axis.name in MemoryConfig.model_fields
)
"""Axes that choose a part of the memory by its name; a server has the same choices."""


def stated(axes: Mapping[str, Any]) -> dict[str, Any]:
    """The axes of a cell as it names them: without those that are implied."""
    implied = {axis.name: axis.neutral for axis in AXES if axis.is_implied}
    return {name: value for name, value in axes.items() if (value,) != implied.get(name)}


def value_of(axes: Mapping[str, Any], name: str) -> Any:
    """The value of an axis of a cell, or of a row of a ledger, which may leave it out.

    Raises:
        KeyError: it may not.
    """
    neutral = NEUTRAL.get(name)
    return axes[name] if neutral is None else axes.get(name, neutral)


def axis_fields(
    name: str,
    axes: tuple[Axis, ...],
    type_of: Callable[[Axis], Any],
    default: Callable[[Axis], Any],
) -> Any:
    """A settings class with one field an axis, to be inherited from.

    Args:
        type_of: type of the field of an axis.
        default: its default; `...` makes it required.
    """
    fields: dict[str, Any] = {
        axis.name: (Annotated[type_of(axis), Field(description=axis.meaning)], default(axis))
        for axis in axes
    }
    return create_model(name, __base__=Config, **fields)
