"""S3: S2 with the ragged end of a prompt and the generated tokens packed in slots of tail slabs.

page  [ KV of a block ]   or   [ SSM 0 ] [ SSM 1 ] [ SSM 2 ]   and a slot of a slab, or
tail  [ KV of 16 tokens | KV of 16 tokens of another request | ... ]

Not from the paper. What a request wastes falls from half a page to half a tail block; its rules are
in `hsexp.memory.tails`.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import PositiveInt

from hsexp.memory.geometry import StateGeometry
from hsexp.memory.organizations.s2 import S2, SlabSettings
from hsexp.memory.pool import PagePool
from hsexp.memory.tails import PackedTails


class S3Config(SlabSettings):
    """S3: S2 with packed tails."""

    allows_branches: ClassVar[bool] = PackedTails.allows_branches

    kind: Literal["s3"]
    tail_block_size: PositiveInt
    """Tokens of one block in a tail slab; a whole number of them fills a page."""

    @property
    def kernel_block_size(self) -> int:
        return self.tail_block_size


class S3(S2):
    name: ClassVar[str] = "s3"

    def __init__(self, config: S3Config, geometry: StateGeometry) -> None:
        super().__init__(config, geometry)
        if self.block_size % self.kernel_block_size:
            raise ValueError(
                f"tail_block_size {self.kernel_block_size} must divide block_size {self.block_size}"
            )

    def build_attention(self, pools: Sequence[PagePool]) -> PackedTails:
        return PackedTails(
            pools[0], block_size=self.block_size, tail_block_size=self.kernel_block_size
        )
