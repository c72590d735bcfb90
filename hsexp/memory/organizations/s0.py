"""S0: one coarse page for an attention block or for a whole checkpoint (Section 3.2).

page  [ KV of a block | unused ]   or   [ SSM | conv ]
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

from hsexp.memory.checkpoint import PagedStateStore
from hsexp.memory.geometry import StateGeometry
from hsexp.memory.organizations.base import (
    Organization,
    PoolPlan,
    SharedPoolSettings,
    StateMix,
    StatePlaces,
    nearest_pages,
)
from hsexp.memory.pool import PagePool, PoolSpec


class S0Config(SharedPoolSettings):
    """S0: coarse shared pages (Section 3.2)."""

    kind: Literal["s0"]


class S0(Organization):
    name: ClassVar[str] = "s0"

    def __init__(self, config: S0Config, geometry: StateGeometry) -> None:
        super().__init__(geometry)
        self.config = config
        self.block_size = config.block_size
        self.checkpoint_grid = config.checkpoint_grid
        self._require_whole_blocks()
        self.page_bytes = max(geometry.composite_bytes, config.block_size * geometry.kv_token_bytes)

    def plan(self, nominal_bytes: int) -> PoolPlan:
        num_pages = nearest_pages(nominal_bytes, self.page_bytes)
        pool = PoolSpec(name="shared", num_pages=num_pages, page_bytes=self.page_bytes)
        return PoolPlan(organization=self.name, nominal_bytes=nominal_bytes, pools=(pool,))

    def build_states(self, pools: Sequence[PagePool]) -> PagedStateStore:
        return PagedStateStore(pools[0], pages_per_state=self.geometry.composites)

    @property
    def places(self) -> StatePlaces:
        return StatePlaces.whole_pages(self.geometry, self.page_bytes)

    def mix_bytes(self, mix: StateMix) -> int:
        pages = self.attention_objects(mix) + self.geometry.composites * mix.checkpoints
        return self.page_bytes * pages
