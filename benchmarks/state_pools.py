"""Pools of states as large as a server's: in pages, contiguous, and in S0's padded pages.

pages       [ slab of convolution lines ] [ member ] [ member ] ...     at random, as after hours
contiguous  [ SSM ][ SSM ] ...    [ conv ][ conv ] ...
padded      [ conv | SSM ][ conv | SSM ] ...                            one page a state, as S0 has
"""

from dataclasses import dataclass

import torch
from paged_calls import Filter, Paged, Stock, Token


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Sizes of one layer's states."""

    num_heads: int
    head_dim: int
    d_state: int
    num_groups: int
    heads_per_member: int
    slots: int
    """Convolution lines of a page."""
    width: int = 4

    @property
    def channels(self) -> int:
        return self.num_heads * self.head_dim + 2 * self.num_groups * self.d_state

    @property
    def num_members(self) -> int:
        return self.num_heads // self.heads_per_member

    @property
    def page_size(self) -> int:
        """Elements."""
        return self.heads_per_member * self.head_dim * self.d_state

    @property
    def state_size(self) -> int:
        return self.num_members * self.page_size

    @property
    def line_size(self) -> int:
        return (self.width - 1) * self.channels


FALCON_7B = Layer(
    num_heads=24, head_dim=128, d_state=256, num_groups=1, heads_per_member=8, slots=16
)
"""In bfloat16: pages of 512 KiB, slots of 32 KiB."""
GRANITE = Layer(num_heads=64, head_dim=64, d_state=128, num_groups=1, heads_per_member=64, slots=4)
"""In bfloat16: pages of 1 MiB, which hold a whole state or the lines of four checkpoints."""
TINY = Layer(num_heads=4, head_dim=16, d_state=32, num_groups=1, heads_per_member=2, slots=2)


class PagedPool:
    """States in pages of one buffer, which composites got at random."""

    def __init__(
        self, layer: Layer, num_bytes: int, dtype: torch.dtype, device: str, seed: int
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        num_pages = num_bytes // (layer.page_size * dtype.itemsize)
        self.num_states = int((num_pages - 2) / (layer.num_members + 1 / layer.slots))
        num_slabs = -(-self.num_states // layer.slots)
        self.buffer = torch.zeros(num_pages * layer.page_size, dtype=dtype, device=device)
        pages = torch.randperm(num_pages - 1, generator=generator) + 1  # page 0 is the null page
        slabs, owned = pages[:num_slabs], pages[num_slabs:]
        members = torch.zeros((layer.num_members, self.num_states + 1), dtype=torch.int32)
        num_owned = self.num_states * layer.num_members
        members[:, 1:] = owned[:num_owned].view(layer.num_members, self.num_states)
        slots = (slabs[:, None] * layer.slots + torch.arange(layer.slots)).flatten()
        lines = torch.full((self.num_states + 1,), -1, dtype=torch.int32)
        lines[1:] = slots[torch.randperm(len(slots), generator=generator)[: self.num_states]]
        head = layer.head_dim * layer.d_state
        self.paged = Paged(
            pages=self.buffer.as_strided(
                (num_pages, layer.heads_per_member, layer.head_dim, layer.d_state),
                (layer.page_size, head, layer.d_state, 1),
            ),
            members=members.to(device),
            conv_lines=self.buffer.as_strided(
                (num_pages * layer.slots, layer.width - 1, layer.channels),
                (layer.page_size // layer.slots, layer.channels, 1),
            ),
            lines=lines.to(device),
        )

    @property
    def num_bytes(self) -> int:
        return self.buffer.numel() * self.buffer.element_size()

    @property
    def last_page_byte(self) -> int:
        """Where the last page that a state owns begins."""
        page_bytes = self.paged.pages.stride(0) * self.buffer.element_size()
        return int(self.paged.members.max()) * page_bytes


class StockPool:
    """States of vLLM's own layout; state 0 is the null state."""

    def __init__(
        self, layer: Layer, num_bytes: int, dtype: torch.dtype, device: str, *, padded: bool
    ) -> None:
        size = layer.line_size + layer.state_size
        self.num_states = num_bytes // (size * dtype.itemsize) - 1
        count = self.num_states + 1
        self.buffer = torch.zeros(count * size, dtype=dtype, device=device)
        lines_size = layer.line_size if padded else count * layer.line_size
        strides = (size, size) if padded else (layer.line_size, layer.state_size)
        head = layer.head_dim * layer.d_state
        self.stock = Stock(
            histories=self.buffer.as_strided(
                (count, layer.width - 1, layer.channels), (strides[0], layer.channels, 1)
            ),
            states=self.buffer[lines_size:].as_strided(
                (count, layer.num_heads, layer.head_dim, layer.d_state),
                (strides[1], head, layer.d_state, 1),
            ),
        )

    @property
    def num_bytes(self) -> int:
        return self.buffer.numel() * self.buffer.element_size()


def row_sets(num_rows: int, num_states: int, device: str, *, most: int) -> list[torch.Tensor]:
    """Disjoint sets of states, from 1 to `num_states`, in a random order."""
    order = torch.randperm(num_states, generator=torch.Generator().manual_seed(num_rows)).int() + 1
    num_sets = min(num_states // num_rows, most)
    return list(order[: num_sets * num_rows].view(num_sets, num_rows).to(device))


class Inputs:
    """Random inputs of a layer."""

    def __init__(self, layer: Layer, dtype: torch.dtype, device: str, seed: int = 0) -> None:
        self._layer, self._dtype, self._device = layer, dtype, device
        self._generator = torch.Generator().manual_seed(seed)

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator).to(self._device, self._dtype)

    def token(self, num_rows: int) -> Token:
        layer, dim = self._layer, self._layer.head_dim
        a = -torch.rand(layer.num_heads, generator=self._generator).to(self._device)
        b, c = (self.random(num_rows, layer.num_groups, layer.d_state) for _ in range(2))
        d, dt_bias = (self.random(layer.num_heads)[:, None].expand(-1, dim) for _ in range(2))
        return Token(
            x=self.random(num_rows, layer.num_heads, dim),
            dt=self.random(num_rows, layer.num_heads)[:, :, None].expand(-1, -1, dim),
            a=a[:, None, None].expand(-1, dim, layer.d_state),
            b=b,
            c=c,
            d=d,
            dt_bias=dt_bias,
        )

    def filter(self) -> Filter:
        layer = self._layer
        return Filter(
            weight=self.random(layer.channels, layer.width), bias=self.random(layer.channels)
        )

    def states(self, num_rows: int) -> torch.Tensor:
        layer = self._layer
        return self.random(num_rows, layer.num_heads, layer.head_dim, layer.d_state)
