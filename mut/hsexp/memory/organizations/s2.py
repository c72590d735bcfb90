"""S2: S1 with the convolution states packed in slots of shared slabs (Section 3.4).

page  [ KV of a block ]   or   [ SSM 0 ] [ SSM 1 ] [ SSM 2 ]   and a slot of
slab  [ conv | conv | conv | ... ]
"""

from collections.abc import Sequence
from typing import ClassVar

from hsexp.config.schema import S2Config
from hsexp.geometry import StateGeometry
from hsexp.memory.organizations.base import StateMix
from hsexp.memory.organizations.s1 import S1
from hsexp.memory.pool import PagePool
from hsexp.memory.slab import SlabStateStore


class S2(S1):
    name: ClassVar[str] = "s2"

    def __init__(self, config: S2Config, geometry: StateGeometry) -> None:
        super().__init__(config, geometry)
        if geometry.composites != 1:
            raise ValueError(
                f"s2 packs one convolution state a checkpoint, and this model has "
                f"{geometry.composites} recurrent layers for each attention layer"
            )
        if not geometry.conv_bytes <= config.slot_bytes <= self.page_bytes:
            raise ValueError(
                f"slot_bytes {config.slot_bytes} must hold a convolution state of "
                f"{geometry.conv_bytes} bytes and fit a page of {self.page_bytes}"
            )
        self.num_slots = self.page_bytes // config.slot_bytes

    def build_states(self, pools: Sequence[PagePool]) -> SlabStateStore:
        return SlabStateStore(
            pools[0],
            self.config.release_order,
            pages_per_state=self.num_members,
            num_slots=self.num_slots,
        )

    def min_slabs(self, mix: StateMix) -> int:
        return -(-mix.checkpoints // self.num_slots)

    def mix_bytes(self, mix: StateMix) -> int:
        fewest = self.min_slabs(mix)
        slabs = fewest if mix.slabs is None else mix.slabs
        if slabs < fewest:
            raise ValueError(f"{slabs} slabs cannot hold {mix.checkpoints} convolution states")
        pages = self.attention_objects(mix) + self.num_members * mix.checkpoints + slabs
        return self.page_bytes * pages
