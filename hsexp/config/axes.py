"""The axes of a campaign, each declared once.

A block's fields, the arms of an analysis, what the command line can pin, a server's choices, and
how the planner pairs and resolves cells all follow from `Axes`. A new axis is one entry here, and
its default in `conf/config.yaml` where the command line can pin it.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import PositiveFloat, PositiveInt

from hsexp.config.axis import Axis, Nested, Option, Part, Repeats, Setting, declared
from hsexp.config.fields import Fraction, OpenFraction, Seed
from hsexp.memory.config import BudgetConfig
from hsexp.memory.organizations import OrganizationConfig
from hsexp.memory.policies.eviction import EvictionConfig
from hsexp.memory.policies.leaves import LeavesConfig
from hsexp.memory.policies.pinning import PinningConfig
from hsexp.memory.policies.placement import PlacementConfig
from hsexp.memory.policies.reservation import ReservationConfig
from hsexp.memory.policies.retention import RetentionConfig
from hsexp.memory.policies.states import StatesConfig
from hsexp.memory.policies.waiting import WaitingConfig
from hsexp.workload.isolation import IsolationConfig


class Axes:
    """Every axis, in the order in which a plan nests them; repeats are outermost."""

    budget: ClassVar[
        Annotated[
            Option[BudgetConfig],
            Axis(meaning="Nominal bytes for all state of one layer.", pairs=True),
        ]
    ]
    rate_per_s: ClassVar[
        Annotated[
            Nested[PositiveFloat | None],
            Axis(
                meaning="Offered requests per second; null replays a trace's own arrivals.",
                spelling="arrivals.rate_per_s",
                pairs=True,
            ),
        ]
    ]
    cap: ClassVar[
        Annotated[
            Nested[PositiveInt],
            Axis(meaning="Most running requests.", spelling="admission.cap", pairs=True),
        ]
    ]
    sharing: ClassVar[
        Annotated[
            Nested[Fraction | None],
            Axis(
                meaning="Fraction q of requests that share their context; null leaves it to a "
                "trace.",
                spelling="workload.sharing",
                pairs=True,
            ),
        ]
    ]
    headroom: ClassVar[
        Annotated[
            Nested[OpenFraction],
            Axis(
                meaning="Fraction f of all blocks that must stay free at admission.",
                spelling="admission.headroom",
                neutral=(0.0,),  # vLLM keeps none (Section 4.4)
            ),
        ]
    ]
    retention: ClassVar[
        Annotated[
            Part[RetentionConfig],
            Axis(
                meaning="Producer-side checkpoint lifetime.",
                neutral=("off",),  # the paper names none before Q8
            ),
        ]
    ]
    pinning: ClassVar[
        Annotated[
            Part[PinningConfig],
            Axis(
                meaning="Extra references taken at preemption.",
                neutral=("off",),  # vLLM has none
            ),
        ]
    ]
    eviction: ClassVar[
        Annotated[
            Part[EvictionConfig],
            Axis(
                meaning="Order in which free pages get a new owner.",
                neutral=("paper",),  # each organization has its own
                is_implied=True,
            ),
        ]
    ]
    waiting: ClassVar[
        Annotated[
            Part[WaitingConfig],
            Axis(
                meaning="Which waiting request is asked for admission next.",
                neutral=("first_come",),  # vLLM's
                is_implied=True,
            ),
        ]
    ]
    placement: ClassVar[
        Annotated[
            Part[PlacementConfig],
            Axis(
                meaning="Where prefills leave checkpoints.",
                neutral=("chunk_ends",),  # inferred: the paper names no other rule
                is_implied=True,
            ),
        ]
    ]
    reservation: ClassVar[
        Annotated[
            Part[ReservationConfig],
            Axis(
                meaning="What an admission counts beside its prompt.",
                neutral=("full_prompt",),  # each organization has its own numbers
                is_implied=True,
            ),
        ]
    ]
    states: ClassVar[
        Annotated[
            Part[StatesConfig],
            Axis(
                meaning="How a running request owns its recurrent state.",
                neutral=("per_boundary",),  # the paper's, and vLLM's
                is_implied=True,
            ),
        ]
    ]
    leaves: ClassVar[
        Annotated[
            Part[LeavesConfig],
            Axis(
                meaning="Which states off the checkpoint grid stay in the cache.",
                neutral=("off",),  # the paper keeps none, nor does vLLM
                is_implied=True,
            ),
        ]
    ]
    isolation: ClassVar[
        Annotated[
            Option[IsolationConfig],
            Axis(
                meaning="Whether requests may reuse each other's state.",
                pairs=True,
                neutral=("share",),  # reuse between requests is what q means
            ),
        ]
    ]
    trace: ClassVar[
        Annotated[
            Setting[bool],
            Axis(
                meaning="Whether state depths are recorded at queue entry and admission (Q7).",
                neutral=(False,),
            ),
        ]
    ]
    step_time_factor: ClassVar[
        Annotated[
            Setting[PositiveFloat],
            Axis(
                meaning="Factor on every step time of the simulated device.",
                neutral=(1.0,),
                is_implied=True,
            ),
        ]
    ]
    organization: ClassVar[
        Annotated[
            Part[OrganizationConfig],
            Axis(meaning="How the three state types are laid out in the budget."),
        ]
    ]
    seeds: ClassVar[Annotated[Repeats[Seed], Axis(meaning="Independent repeats.")]]


AXES = declared(Axes)
"""The declarations as data, in their order."""

(SEEDS,) = (axis for axis in AXES if axis.is_repeat)

*_OUTER_AXES, _INNERMOST_AXIS = (axis for axis in AXES if axis is not SEEDS)

ARM_AXES = (_INNERMOST_AXIS, *_OUTER_AXES)
"""Axes that distinguish the arms of a campaign, in the order of a cell's axes: the innermost, which
is the organization, comes first."""

NEUTRAL = {axis.name: axis.neutral[0] for axis in AXES if axis.neutral is not None}
"""The value of an axis in a cell, or in a row of a ledger, that does not name it."""

MEMORY_AXES = tuple(axis for axis in AXES if axis.is_part)
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
