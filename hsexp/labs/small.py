"""A memory small enough to draw: blocks of 4 tokens, checkpoints every 8."""

from hsexp.config.base import parse_union
from hsexp.config.catalog import read_option
from hsexp.labs.lines import Lab
from hsexp.memory.config import MemoryConfig
from hsexp.memory.geometry import ModelConfig
from hsexp.memory.organizations import OrganizationConfig
from hsexp.memory.organizations.d0 import D0Config

BLOCK_TOKENS = 4
GRID_TOKENS = 8
_MODEL = "falcon_h1_7b"
_NUM_STATES = 16
"""Composites that fit in half of the budget; the other half holds blocks."""


def small_lab() -> Lab:
    """A lab with D0, whose attention pool holds only blocks, and small blocks."""
    native = parse_union(OrganizationConfig, read_option("organization", "d0"), path="d0")
    assert isinstance(native, D0Config)
    config = native.model_copy(
        update={
            "block_size": BLOCK_TOKENS,
            "checkpoint_grid": GRID_TOKENS,
            "attention_fraction": 0.5,
        }
    )
    model = ModelConfig.parse(read_option("model", _MODEL))
    memory = MemoryConfig.without_policies(model=model, organization=config)
    geometry = memory.layout.geometry
    return Lab(memory, 2 * _NUM_STATES * geometry.composites * geometry.composite_bytes)
