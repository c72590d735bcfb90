"""An organization: how attention KV, recurrent and convolution state are laid out in a budget.

A subclass defines three things: how a budget becomes pools (`plan`), where states are kept
(`build_states`, `places`), and the bytes of a set of state objects (`mix_bytes`). All other code is
shared.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

from pydantic import PositiveInt

from hsexp.config.base import Config
from hsexp.config.fields import Name, OpenFraction
from hsexp.memory.attention import AttentionStore, WholePages
from hsexp.memory.checkpoint import StateStore
from hsexp.memory.geometry import ModelShape, StateGeometry
from hsexp.memory.policies.eviction.paper import ReleaseOrder
from hsexp.memory.pool import PagePool, PoolSpec


class OrganizationSettings(Config):
    name: Name
    """Value on a campaign's axis; variants of one kind differ in name."""
    block_size: PositiveInt
    """Tokens of one attention block."""
    reserve_fraction: OpenFraction
    """Fraction of blocks that admission always keeps free, in addition to the headroom."""
    num_admission_states: PositiveInt
    """Recurrent states that admission reserves for the request itself."""
    release_order: ReleaseOrder
    allows_branches: ClassVar[bool] = WholePages.allows_branches
    """Whether sequences can be forked, keep leaves and write drafts."""
    pages_states: ClassVar[bool] = False
    """Whether a state takes several pages, which its kernel reads one by one (Appendix B.9)."""

    def fitted(self, model: ModelShape) -> Self:
        """The settings with what is left open to the model."""
        return self

    def open_size(self, model: ModelShape) -> str | None:
        """A size of the fitted settings that nobody measured or chose, for a note."""
        return None

    @property
    def kernel_block_size(self) -> int:
        """Tokens of the smallest attention block, which is a block of vLLM's kernels."""
        return self.block_size


class SharedPoolSettings(OrganizationSettings):
    """Settings of an organization whose state types share one pool."""

    checkpoint_grid: PositiveInt
    """Tokens between checkpoint boundaries."""


@dataclass(frozen=True, kw_only=True)
class PoolPlan:
    """Pools of one organization under one nominal budget, in bytes of one layer (Table B-2)."""

    organization: str
    nominal_bytes: int
    pools: tuple[PoolSpec, ...]
    """Attention's pool first; a shared pool is the only one."""

    @property
    def total_bytes(self) -> int:
        return sum(pool.total_bytes for pool in self.pools)


@dataclass(frozen=True, kw_only=True)
class StateMix:
    """A logical set of states: attention in tokens, checkpoints by count (Section 2.2)."""

    attention_tokens: int
    checkpoints: int
    slabs: int | None = None
    """Allocated slabs; None uses the fewest."""


@dataclass(frozen=True, kw_only=True)
class StatePlaces:
    """Places of a checkpoint's composites in its pages and in its convolution line.

        pages   [ SSM pages of composite 0 | ... of composite c - 1 ]  then one for each composite
                where convolution states have pages of their own

    An SSM state begins at the first byte of its first page.
    """

    page_bytes: int
    num_members: int
    """Pages of one composite's SSM state."""
    conv_offset_bytes: int
    """First byte of a convolution state in its page or line."""
    conv_step_bytes: int
    """Distance between the convolution states of two composites in a shared line; 0 where each
    has a page, one of the checkpoint's last."""
    lines_per_page: int
    """Convolution lines in a page; 1 where a line is a page."""

    @classmethod
    def whole_pages(cls, geometry: StateGeometry, page_bytes: int) -> Self:
        """Places where a composite is one page: its SSM state, then its convolution state."""
        return cls(
            page_bytes=page_bytes,
            num_members=1,
            conv_offset_bytes=geometry.ssm_bytes,
            conv_step_bytes=0,
            lines_per_page=1,
        )


class Organization(ABC):
    """Sizes and pools of one organization for one model geometry."""

    name: ClassVar[str]
    config: OrganizationSettings
    block_size: int
    """Tokens of an attention block."""
    checkpoint_grid: int
    """Tokens between checkpoint boundaries."""

    def __init__(self, geometry: StateGeometry) -> None:
        self.geometry = geometry

    def _require_whole_blocks(self) -> None:
        """A hit consists of whole blocks, so every boundary must be the end of a block."""
        if self.checkpoint_grid % self.block_size:
            raise ValueError(
                f"block_size {self.block_size} must divide the checkpoint grid of "
                f"{self.checkpoint_grid} tokens"
            )

    @abstractmethod
    def plan(self, nominal_bytes: int) -> PoolPlan:
        """Turn a nominal budget into whole pages (Appendix B.3).

        Raises:
            ValueError: the budget is too small for a pool of two pages.
        """

    @property
    @abstractmethod
    def attention_page_bytes(self) -> int:
        """Bytes of a page of attention KV, padding included."""

    def build_attention(self, pools: Sequence[PagePool]) -> AttentionStore:
        """The store of attention KV over the planned pools."""
        return WholePages(pools[0], block_size=self.block_size)

    @abstractmethod
    def build_states(self, pools: Sequence[PagePool]) -> StateStore:
        """The store of recurrent and convolution states over the planned pools."""

    @property
    def kernel_block_size(self) -> int:
        """Tokens of the smallest attention block, which is a block of vLLM's kernels."""
        return self.config.kernel_block_size

    @property
    def allows_branches(self) -> bool:
        """Whether sequences can be forked, keep leaves and write drafts."""
        return self.config.allows_branches

    @property
    @abstractmethod
    def places(self) -> StatePlaces:
        """Places of states in their pages."""

    @abstractmethod
    def mix_bytes(self, mix: StateMix) -> int:
        """Allocated bytes for a logical state set after rounding to units (Eqs. 1-4)."""

    def capacity(self, nominal_bytes: int, mix: StateMix) -> int:
        """How often the whole mix fits the budget, ideally packed (Eq. A8; D0: Eq. D2).

        Raises:
            ValueError: the mix is empty, so that any number of it would fit.
        """
        if mix.attention_tokens <= 0 and mix.checkpoints <= 0:
            raise ValueError(
                "a mix needs attention_tokens or checkpoints, "
                f"got {mix.attention_tokens} and {mix.checkpoints}"
            )
        low, high = 0, 1
        while self.fits(nominal_bytes, mix, high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self.fits(nominal_bytes, mix, middle):
                low = middle
            else:
                high = middle
        return low

    def fits(self, nominal_bytes: int, mix: StateMix, repeats: int) -> bool:
        """Whether the mix fits `repeats` times, each repeat rounded up to whole blocks."""
        block = self.kernel_block_size
        repeated = StateMix(
            attention_tokens=-(-mix.attention_tokens // block) * block * repeats,
            checkpoints=mix.checkpoints * repeats,
        )
        return self.mix_bytes(repeated) <= nominal_bytes

    def min_slabs(self, mix: StateMix) -> int:
        """Fewest slabs for the mix; 0 for organizations without slabs."""
        return 0

    def limits(self, nominal_bytes: int) -> dict[str, Fraction]:
        """Bytes that each pool may take of a nominal budget, before rounding to pages."""
        return {"shared": Fraction(nominal_bytes)}

    def attention_objects(self, mix: StateMix) -> int:
        """Attention blocks that hold the mix's tokens."""
        return -(-mix.attention_tokens // self.block_size)


class SharedPoolOrganization(Organization):
    """An organization whose state types share the equal pages of one pool."""

    page_bytes: int

    def __init__(self, config: SharedPoolSettings, geometry: StateGeometry) -> None:
        super().__init__(geometry)
        self.config = config
        self.block_size = config.block_size
        self.checkpoint_grid = config.checkpoint_grid
        self._require_whole_blocks()

    @property
    def attention_page_bytes(self) -> int:
        return self.page_bytes

    def plan(self, nominal_bytes: int) -> PoolPlan:
        num_pages = nearest_pages(nominal_bytes, self.page_bytes)
        pool = PoolSpec(name="shared", num_pages=num_pages, page_bytes=self.page_bytes)
        return PoolPlan(organization=self.name, nominal_bytes=nominal_bytes, pools=(pool,))


def nearest_pages(nominal_bytes: int, page_bytes: int) -> int:
    """Planner matching: the whole number of pages nearest to the budget (Table B-2)."""
    return (2 * nominal_bytes + page_bytes) // (2 * page_bytes)
