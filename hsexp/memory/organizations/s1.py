"""S1: attention-sized pages; a checkpoint is SSM member pages and a convolution page (3.3).

page  [ KV of a block ]   or   [ SSM 0 ] [ SSM 1 ] [ SSM 2 ] [ conv | unused ]
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

from hsexp.memory.checkpoint import PagedStateStore, StateStore
from hsexp.memory.geometry import StateGeometry
from hsexp.memory.organizations.base import (
    SharedPoolOrganization,
    SharedPoolSettings,
    StateMix,
    StatePlaces,
)
from hsexp.memory.pool import PagePool


class S1Config(SharedPoolSettings):
    """S1: paged recurrent checkpoints (Section 3.3)."""

    pages_states: ClassVar[bool] = True

    kind: Literal["s1"]


class S1(SharedPoolOrganization):
    name: ClassVar[str] = "s1"

    def __init__(self, config: SharedPoolSettings, geometry: StateGeometry) -> None:
        super().__init__(config, geometry)
        self.page_bytes = config.block_size * geometry.kv_token_bytes
        self.num_members = geometry.composites * -(-geometry.ssm_bytes // self.page_bytes)
        self.num_conv_pages = geometry.composites if geometry.conv_bytes else 0
        if geometry.conv_bytes > self.page_bytes:
            raise ValueError(
                f"block_size {config.block_size} makes pages of {self.page_bytes} bytes, "
                f"too small for a convolution state of {geometry.conv_bytes}"
            )

    def build_states(self, pools: Sequence[PagePool]) -> StateStore:
        return PagedStateStore(
            pools[0],
            pages_per_state=self.num_members + self.num_conv_pages,
        )

    @property
    def places(self) -> StatePlaces:
        """SSM states in pages of their own, a convolution state at the start of another page."""
        return StatePlaces(
            page_bytes=self.page_bytes,
            num_members=self.num_members // self.geometry.composites,
            conv_offset_bytes=0,
            conv_step_bytes=0,
            lines_per_page=1,
        )

    def mix_bytes(self, mix: StateMix) -> int:
        pages = (
            self.attention_objects(mix) + (self.num_members + self.num_conv_pages) * mix.checkpoints
        )
        return self.page_bytes * pages
