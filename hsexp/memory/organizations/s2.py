"""S2: S1 with the convolution states packed in slots of shared slabs (Section 3.4).

page  [ KV of a block ]   or   [ SSM 0 ] [ SSM 1 ] [ SSM 2 ]   and a slot of
slab  [ conv | conv | conv | ... ]

With several recurrent layers for each attention layer a checkpoint's slot holds all of their
convolution states, one after the other.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Self

from pydantic import PositiveInt

from hsexp.memory.geometry import ModelShape, StateGeometry
from hsexp.memory.organizations.base import SharedPoolSettings, StateMix, StatePlaces
from hsexp.memory.organizations.s1 import S1
from hsexp.memory.pool import PagePool
from hsexp.memory.slab import SlabStateStore


class SlabSettings(SharedPoolSettings):
    """Settings of an organization whose convolution states have slots in slabs."""

    pages_states: ClassVar[bool] = True

    slot_bytes: PositiveInt | None
    """Bytes of one convolution slot; the convolution states of a checkpoint must fit. Null uses the
    smallest power of two that holds them."""

    def fitted(self, model: ModelShape) -> Self:
        return self.model_copy(update={"slot_bytes": self.slot_of(StateGeometry.of(model))})

    def slot_of(self, geometry: StateGeometry) -> int | None:
        """Bytes of a slot; None where there is no convolution state to hold."""
        needed = geometry.composites * geometry.conv_bytes
        if self.slot_bytes is not None or not needed:
            return self.slot_bytes
        return 1 << (needed - 1).bit_length()


class S2Config(SlabSettings):
    """S2: S1 with convolution slots packed in slabs (Section 3.4)."""

    kind: Literal["s2"]


class S2(S1):
    name: ClassVar[str] = "s2"

    def __init__(self, config: SlabSettings, geometry: StateGeometry) -> None:
        super().__init__(config, geometry)
        slot_bytes = config.slot_of(geometry)
        if not geometry.conv_bytes or slot_bytes is None:
            raise ValueError(
                f"{config.name} packs convolution states, and the model has none; s1 is the same "
                "without slabs"
            )
        self.slot_bytes = slot_bytes
        self._require_slots(slot_bytes)
        self.num_slots = self.page_bytes // slot_bytes

    def _require_slots(self, slot_bytes: int) -> None:
        """A slot holds the convolution states of a checkpoint, one of each composite."""
        num_states, page_bytes = self.geometry.composites, self.page_bytes
        needed = num_states * self.geometry.conv_bytes
        states = f"a convolution state of {needed} bytes"
        if num_states > 1:
            each = self.geometry.conv_bytes
            states = f"{num_states} convolution states of {each} bytes, {needed} in all,"
        if needed > page_bytes:
            raise ValueError(
                f"block_size {self.block_size} makes pages of {page_bytes} bytes, "
                f"too small for {states.rstrip(',')}"
            )
        if not needed <= slot_bytes <= page_bytes:
            fitting = range(page_bytes // needed, 0, -1)
            most = next(count for count in fitting if page_bytes % count == 0)
            raise ValueError(
                f"slot_bytes {slot_bytes} must hold {states} and "
                f"fit a page of {page_bytes}; {page_bytes // most} makes {most} slots a page"
            )

    def build_states(self, pools: Sequence[PagePool]) -> SlabStateStore:
        return SlabStateStore(
            pools[0],
            pages_per_state=self.num_members,
            num_slots=self.num_slots,
        )

    @property
    def places(self) -> StatePlaces:
        """As in S1, but the convolution states share a line, which is a slot."""
        return replace(
            super().places,
            conv_step_bytes=self.geometry.conv_bytes,
            lines_per_page=self.num_slots,
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
