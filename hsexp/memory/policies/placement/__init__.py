"""Placement: where prefills leave checkpoints, beside those where their chunks end anyway.

A rule is one file: where a prefill stops, and the settings of that. `PlacementConfig` lists ours; a
user's own one is named by its module and class.
"""

from typing import Annotated

from pydantic import Field

from hsexp.config.fields import OrOwn
from hsexp.memory.policies.placement.chunk_ends import ChunkEnds
from hsexp.memory.policies.placement.every import Every
from hsexp.memory.policies.placement.junction import Junction
from hsexp.memory.policies.placement.rule import PlacementSettings

PlacementConfig = Annotated[
    ChunkEnds | Junction | Every, Field(discriminator="kind"), OrOwn(PlacementSettings)
]

CHUNK_ENDS = ChunkEnds(kind="chunk_ends", name="chunk_ends")
"""The placement of a memory that names none."""
