"""D0: native units in two static pools, each checked on its own (Section 3.5).

attention pool  [ 16 tokens ] [ 16 tokens ] ...
recurrent pool  [ SSM | conv ] [ SSM | conv ] ...
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PositiveInt

from hsexp.memory.checkpoint import PagedStateStore
from hsexp.memory.geometry import ModelShape, StateGeometry
from hsexp.memory.organizations.base import (
    Organization,
    OrganizationSettings,
    PoolPlan,
    StateMix,
    StatePlaces,
)
from hsexp.memory.pool import PagePool, PoolSpec


class D0Config(OrganizationSettings):
    """D0: native units in two static pools (Section 3.5)."""

    kind: Literal["d0"]
    checkpoint_multiple: PositiveInt
    """The native checkpoint grid is the smallest multiple of this many tokens whose KV is at least
    as large as one recurrent composite (Falcon: 1,792)."""
    checkpoint_grid: PositiveInt | None
    """Tokens between checkpoint boundaries; null uses the native grid."""
    attention_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] | None
    """Attention's share of the budget; null uses the model's screened split, or where there is none
    the share that attention has of the bytes of one checkpoint interval."""

    def fitted(self, model: ModelShape) -> Self:
        if self.attention_fraction is not None or model.d0_attention_fraction is not None:
            return self
        geometry = StateGeometry.of(model)
        attention = self.grid_of(geometry) * geometry.kv_token_bytes
        checkpoint = geometry.composites * geometry.composite_bytes
        return self.model_copy(
            update={"attention_fraction": round(attention / (attention + checkpoint), 6)}
        )

    def open_size(self, model: ModelShape) -> str | None:
        left_open = self.model_copy(update={"attention_fraction": None})
        if model.d0_attention_fraction is not None or left_open.fitted(model) != self:
            return None
        return (
            f"{self.name}: attention has {self.attention_fraction:g} of the budget, its share of "
            f"the bytes of a checkpoint interval; no split was screened for model {model.name}: "
            "campaign=split_screen does it"
        )

    def grid_of(self, geometry: StateGeometry) -> int:
        """Tokens between checkpoint boundaries. The native grid is the smallest multiple of
        `checkpoint_multiple` tokens whose KV covers one composite."""
        if self.checkpoint_grid is not None:
            return self.checkpoint_grid
        tokens = -(-geometry.composite_bytes // geometry.kv_token_bytes)
        return self.checkpoint_multiple * -(-tokens // self.checkpoint_multiple)


class D0(Organization):
    name: ClassVar[str] = "d0"
    config: D0Config

    def __init__(
        self, config: D0Config, geometry: StateGeometry, *, attention_fraction: float
    ) -> None:
        super().__init__(geometry)
        self.config = config
        self.block_size = config.block_size
        self.unit_bytes = config.block_size * geometry.kv_token_bytes
        self.checkpoint_grid = config.grid_of(geometry)
        self._require_whole_blocks()
        self.attention_fraction = Fraction(str(attention_fraction))

    def plan(self, nominal_bytes: int) -> PoolPlan:
        limits = self.limits(nominal_bytes)
        composite = self.geometry.composite_bytes
        attention = math.floor(limits["attention"] / self.unit_bytes)
        recurrent = math.floor(limits["recurrent"] / composite)
        pools = (
            PoolSpec(name="attention", num_pages=attention, page_bytes=self.unit_bytes),
            PoolSpec(name="recurrent", num_pages=recurrent, page_bytes=composite),
        )
        return PoolPlan(organization=self.name, nominal_bytes=nominal_bytes, pools=pools)

    @property
    def attention_page_bytes(self) -> int:
        return self.unit_bytes

    def build_states(self, pools: Sequence[PagePool]) -> PagedStateStore:
        return PagedStateStore(pools[1], pages_per_state=self.geometry.composites)

    @property
    def places(self) -> StatePlaces:
        return StatePlaces.whole_pages(self.geometry, self.geometry.composite_bytes)

    def mix_bytes(self, mix: StateMix) -> int:
        return (
            self.unit_bytes * self.attention_objects(mix) + self._checkpoint_bytes * mix.checkpoints
        )

    @property
    def _checkpoint_bytes(self) -> int:
        return self.geometry.composites * self.geometry.composite_bytes

    def fits(self, nominal_bytes: int, mix: StateMix, repeats: int) -> bool:
        attention = self.unit_bytes * self.attention_objects(mix) * repeats
        recurrent = self._checkpoint_bytes * mix.checkpoints * repeats
        limits = self.limits(nominal_bytes)
        return attention <= limits["attention"] and recurrent <= limits["recurrent"]

    def limits(self, nominal_bytes: int) -> dict[str, Fraction]:
        attention = self.attention_fraction * nominal_bytes
        return {"attention": attention, "recurrent": nominal_bytes - attention}
