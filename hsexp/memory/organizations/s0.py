"""S0: one coarse page for an attention block or for a whole checkpoint (Section 3.2).

page  [ KV of a block | unused ]   or   [ SSM | conv ]
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

from hsexp.memory.checkpoint import PagedStateStore
from hsexp.memory.geometry import StateGeometry
from hsexp.memory.organizations.base import (
    SharedPoolOrganization,
    SharedPoolSettings,
    StateMix,
    StatePlaces,
)
from hsexp.memory.pool import PagePool


class S0Config(SharedPoolSettings):
    """S0: coarse shared pages (Section 3.2)."""

    kind: Literal["s0"]


class S0(SharedPoolOrganization):
    name: ClassVar[str] = "s0"

    def __init__(self, config: S0Config, geometry: StateGeometry) -> None:
        super().__init__(config, geometry)
        self.page_bytes = max(geometry.composite_bytes, config.block_size * geometry.kv_token_bytes)

    def build_states(self, pools: Sequence[PagePool]) -> PagedStateStore:
        return PagedStateStore(pools[0], pages_per_state=self.geometry.composites)

    @property
    def places(self) -> StatePlaces:
        return StatePlaces.whole_pages(self.geometry, self.page_bytes)

    def mix_bytes(self, mix: StateMix) -> int:
        pages = self.attention_objects(mix) + self.geometry.composites * mix.checkpoints
        return self.page_bytes * pages
