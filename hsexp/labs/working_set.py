"""The memory that a trace's shared prefixes take: blocks of attention KV and checkpoints, counted.

A request resumes where attention KV and a checkpoint are, so an unlimited cache needs every block
that two requests ask for, and a checkpoint wherever one resumes. No run, no budget.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from hsexp.memory import MemoryConfig
from hsexp.memory.organizations import StateMix
from hsexp.workload.traces.statistics import Sharing


@dataclass(frozen=True, kw_only=True)
class WorkingSet:
    """One organization's share of a trace that an unlimited cache would reuse, and its bytes."""

    organization: str
    block_tokens: int
    checkpoint_grid: int
    """Tokens between the places at which a request can resume."""
    reused_fraction: float
    """Fraction of the prompt tokens that is reused."""
    reused_bytes: int
    """Blocks that several requests ask for, and checkpoints at which one resumes; all layers."""
    all_bytes: int
    """Every block of every request, and a checkpoint at every place; all layers."""


def working_sets(sharing: Sharing, memories: Iterable[MemoryConfig]) -> list[WorkingSet]:
    """The working set of a trace in each organization."""
    return [_working_set(sharing, memory) for memory in memories]


def _working_set(sharing: Sharing, memory: MemoryConfig) -> WorkingSet:
    layout, num_layers = memory.layout, memory.model.num_attention_layers
    block, grid = layout.block_size, layout.checkpoint_grid

    def num_bytes(num_blocks: int, checkpoints: int) -> int:
        mix = StateMix(attention_tokens=num_blocks * block, checkpoints=checkpoints)
        return layout.mix_bytes(mix) * num_layers

    return WorkingSet(
        organization=memory.organization.name,
        block_tokens=block,
        checkpoint_grid=grid,
        reused_fraction=sharing.fraction(grid),
        reused_bytes=num_bytes(
            sharing.num_units(block, asked_twice=True), sharing.num_resumed(grid)
        ),
        all_bytes=num_bytes(
            sharing.num_units(block, asked_twice=False),
            sharing.num_units(grid, asked_twice=False),
        ),
    )
