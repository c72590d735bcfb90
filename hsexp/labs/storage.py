"""Storage of state sets and budgets in every organization: arithmetic on their sizes, no run."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from hsexp.config.campaigns import FeasibilityConfig, MixConfig
from hsexp.memory import MemoryConfig
from hsexp.memory.config import BudgetConfig
from hsexp.memory.organizations import PoolPlan, StateMix
from hsexp.memory.organizations.d0 import D0Config


@dataclass(frozen=True, kw_only=True)
class UnitRow:
    """Allocation of one organization for the smallest state of each kind (Table 1)."""

    organization: str
    block_tokens: int
    grid_tokens: int
    block_bytes: int
    checkpoint_bytes: int
    """Bytes of one checkpoint alone, rounded up to whole pages."""


@dataclass(frozen=True, kw_only=True)
class StorageRow:
    """One state set: allocated bytes and ideal capacity by organization."""

    mix: StateMix
    slabs: int
    """Slabs that S2 allocates; 0 where no organization has slabs."""
    allocated_bytes: dict[str, int]
    capacity: dict[str, int]
    """Whole repeats of the mix that fit the capacity budget (A8, D2)."""


@dataclass(frozen=True, kw_only=True)
class BudgetRow:
    """Pools of one organization under a nominal budget (Table B-2)."""

    budget: BudgetConfig
    organization: str
    plan: PoolPlan


@dataclass(frozen=True, kw_only=True)
class FeasibilityRow:
    """One state set against a budget (Table A-2)."""

    organization: str
    attention_bytes: int
    recurrent_bytes: int
    limits_bytes: dict[str, Fraction]
    """Limits by pool; a shared pool has one."""
    feasible: bool


def unit_rows(memories: Sequence[MemoryConfig]) -> list[UnitRow]:
    """Units of each organization."""
    rows = []
    for memory in memories:
        layout = memory.layout
        block = StateMix(attention_tokens=layout.block_size, checkpoints=0)
        checkpoint = StateMix(attention_tokens=0, checkpoints=1)
        rows.append(
            UnitRow(
                organization=memory.organization.name,
                block_tokens=layout.block_size,
                grid_tokens=layout.checkpoint_grid,
                block_bytes=layout.mix_bytes(block),
                checkpoint_bytes=layout.mix_bytes(checkpoint),
            )
        )
    return rows


def storage_rows(
    memories: Sequence[MemoryConfig], mixes: Sequence[MixConfig], capacity_bytes: int
) -> list[StorageRow]:
    """Bytes of each state set (Table A-1), and how many times it fits (Appendix A).

    Raises:
        ValueError: a mix has fewer slabs than its checkpoints need.
    """
    layouts = {memory.organization.name: memory.layout for memory in memories}
    rows = []
    for config in mixes:
        mix = StateMix(
            attention_tokens=config.attention_tokens,
            checkpoints=config.checkpoints,
            slabs=config.slabs,
        )
        ideal = StateMix(attention_tokens=mix.attention_tokens, checkpoints=mix.checkpoints)
        fewest = max((layout.min_slabs(mix) for layout in layouts.values()), default=0)
        rows.append(
            StorageRow(
                mix=mix,
                slabs=mix.slabs or fewest,
                allocated_bytes={name: each.mix_bytes(mix) for name, each in layouts.items()},
                capacity={
                    name: each.capacity(capacity_bytes, ideal) for name, each in layouts.items()
                },
            )
        )
    return rows


def budget_rows(
    memories: Sequence[MemoryConfig], budgets: Sequence[BudgetConfig]
) -> list[BudgetRow]:
    """Whole pages and bytes of each organization under each budget."""
    return [
        BudgetRow(
            budget=budget,
            organization=memory.organization.name,
            plan=memory.layout.plan(budget.bytes),
        )
        for budget in budgets
        for memory in memories
    ]


def feasibility_rows(
    memories: Sequence[MemoryConfig], config: FeasibilityConfig
) -> list[FeasibilityRow]:
    """The state set of `config` in D0, with the split of `config`, and in the shared pools."""
    mix = StateMix(attention_tokens=config.mix.attention_tokens, checkpoints=config.mix.checkpoints)
    attention = StateMix(attention_tokens=mix.attention_tokens, checkpoints=0)
    rows = []
    for memory in memories:
        layout = _split(memory, config.attention_fraction).layout
        attention_bytes = layout.mix_bytes(attention)
        rows.append(
            FeasibilityRow(
                organization=memory.organization.name,
                attention_bytes=attention_bytes,
                recurrent_bytes=layout.mix_bytes(mix) - attention_bytes,
                limits_bytes=layout.limits(config.nominal_bytes),
                feasible=layout.fits(config.nominal_bytes, mix, 1),
            )
        )
    return rows


def _split(memory: MemoryConfig, attention_fraction: float) -> MemoryConfig:
    """The memory with another split of the budget; one with a shared pool stays as it is."""
    organization = memory.organization
    if not isinstance(organization, D0Config):
        return memory
    changed = organization.model_copy(update={"attention_fraction": attention_fraction})
    return memory.model_copy(update={"organization": changed})
