"""Random batches over random page maps, and what float64 arithmetic makes of them.

Composite 0 is the null state. Every byte that no state owns is NaN, so that a kernel which reads it
shows; `Pool.untouched` tells whether a kernel wrote where it must not.
"""

from dataclasses import dataclass

import torch

from hsexp.engine.kernels.ops import DecodeUpdate

NAN = float("nan")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One layer's states."""

    num_heads: int
    head_dim: int
    d_state: int
    num_groups: int
    heads_per_member: int

    @property
    def num_members(self) -> int:
        return self.num_heads // self.heads_per_member


FALCON_7B = Shape(num_heads=24, head_dim=128, d_state=256, num_groups=1, heads_per_member=8)
"""Three member pages of 512 KiB in bfloat16."""
UNEVEN = Shape(num_heads=6, head_dim=24, d_state=20, num_groups=2, heads_per_member=2)
"""No power of two, and groups of three heads that begin inside a member page."""
SMALL = Shape(num_heads=2, head_dim=16, d_state=32, num_groups=1, heads_per_member=1)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What each row of a batch reads and writes."""

    source: torch.Tensor
    target: torch.Tensor
    num_composites: int

    @property
    def owned(self) -> torch.Tensor:
        return self.target > 0


def random_rows(num_rows: int, generator: torch.Generator) -> Rows:
    """In place, out of place, from one checkpoint that two rows share, from nothing, and padding.

    The first row always owns a state; a batch of eight or more has every kind.
    """
    composites = torch.randperm(2 * num_rows, generator=generator).int() + 1
    source, target = composites[:num_rows].clone(), composites[num_rows:].clone()
    kinds = torch.arange(num_rows) % 8
    target[kinds % 2 == 0] = source[kinds % 2 == 0]  # rows 0, 2, 4, 6: in place
    source[kinds == 3] = source[torch.nonzero(kinds == 3) - 2].flatten()  # as row 1
    source[kinds == 5] = 0
    target[kinds == 6] = 0  # padding, with a source left over
    source[kinds == 7], target[kinds == 7] = -1, -1
    return Rows(source=source, target=target, num_composites=2 * num_rows + 1)


class Pool:
    """Places of equal size in one buffer of NaN, handed to composites at random."""

    def __init__(
        self,
        rows: Rows,
        *,
        places_per_state: int,
        place: tuple[int, ...],
        stride: int,
        dtype: torch.dtype,
        generator: torch.Generator,
    ) -> None:
        owned = (rows.num_composites - 1) * places_per_state
        num_places = 2 * owned + 1
        self.buffer = torch.full((num_places * stride,), NAN, dtype=dtype)
        inner = [1]
        for size in reversed(place[1:]):
            inner.insert(0, inner[0] * size)
        self.view = self.buffer.as_strided((num_places, *place), (stride, *inner))
        free = torch.randperm(num_places - 1, generator=generator).int() + 1
        self.places = torch.zeros((places_per_state, rows.num_composites), dtype=torch.int32)
        self.places[:, 1:] = free[:owned].view(places_per_state, -1)
        self._rows = rows

    def fill(self, generator: torch.Generator) -> None:
        """Values for the states that rows read; the ones that are only written stay NaN."""
        for composite in self._rows.source[self._rows.source > 0].unique():
            for place in self.places[:, composite]:
                values = torch.randn(self.view[place].shape, generator=generator)
                self.view[place] = values.to(self.view.dtype)

    def start(self, device: str) -> Rows:
        """Everything to the device; what is there now is what a kernel finds. The rows, there."""
        self.buffer = self.buffer.to(device)
        self.view = self.buffer.as_strided(self.view.shape, self.view.stride())
        self.places = self.places.to(device)
        self._before = self.buffer.clone()
        self._rows = Rows(
            source=self._rows.source.to(device),
            target=self._rows.target.to(device),
            num_composites=self._rows.num_composites,
        )
        return self._rows

    def at(self, composites: torch.Tensor) -> torch.Tensor:
        """[places of a state, rows]: where the rows' composites lie, as a step stages it.

        It is a part of a wider buffer, between places of other states. What is not positive is at
        the places of composite 0.
        """
        found = self.places.index_select(1, composites.clamp(min=0))
        buffer = torch.full_like(self.places[:, :1], len(self.view) - 1).repeat(
            1, len(composites) + 3
        )
        staged = buffer[:, 1 : 1 + len(composites)]
        staged.copy_(found)
        return staged

    @property
    def unchanged(self) -> bool:
        """Nothing was written at all."""
        return same_bits(self.buffer, self._before)

    def states(self, composites: torch.Tensor, *, before: bool = False) -> torch.Tensor:
        """[rows, places of a state, ...] of positive composites, now or before any kernel."""
        buffer = self._before if before else self.buffer
        view = buffer.as_strided(self.view.shape, self.view.stride())
        return view[self.places[:, composites]].transpose(0, 1)

    def untouched(self) -> bool:
        """Every byte outside the rows' targets is what it was."""
        after = self.buffer.clone()
        view = after.as_strided(self.view.shape, self.view.stride())
        before = self._before.as_strided(self.view.shape, self.view.stride())
        written = self.places[:, self._rows.target[self._rows.owned]].flatten()
        view[written] = before[written]
        return same_bits(after, self._before)


def same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Equality of bytes: NaN equals itself, and zero does not equal minus zero."""
    ours, theirs = (tensor.flatten().contiguous().view(torch.uint8) for tensor in (ours, theirs))
    return torch.equal(ours, theirs)


# -- the recurrent state ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DecodeBatch:
    """One token for each row, with the layer's weights."""

    x: torch.Tensor
    dt: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    d: torch.Tensor
    dt_bias: torch.Tensor

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return (self.x, self.dt, self.a, self.b, self.c, self.d, self.dt_bias)

    def update(
        self,
        pages: torch.Tensor,
        source: torch.Tensor,
        target: torch.Tensor,
        out: torch.Tensor,
    ) -> DecodeUpdate:
        return DecodeUpdate(ssm_pages=pages, source=source, target=target, out=out, **vars(self))

    def rows(self, chosen: torch.Tensor) -> "DecodeBatch":
        return DecodeBatch(
            x=self.x[chosen],
            # Expanded again: indexing would copy the rows of a tied dt.
            dt=self.dt[chosen, :, :1].expand(-1, -1, self.x.shape[2])
            if self.dt.stride(-1) == 0
            else self.dt[chosen],
            a=self.a,
            b=self.b[chosen],
            c=self.c[chosen],
            d=self.d,
            dt_bias=self.dt_bias,
        )


def decode_batch(
    shape: Shape,
    num_rows: int,
    dtype: torch.dtype,
    generator: torch.Generator,
    device: str,
    *,
    tied: bool = True,
) -> DecodeBatch:
    """Like a layer's: x, dt, B and C are parts of one projection, so their rows are far apart.

    Args:
        tied: a head has one A, dt and dt_bias, as in Mamba2.
    """
    width = shape.num_heads * shape.head_dim
    cells = shape.num_groups * shape.d_state
    free = 1 if tied else shape.head_dim
    sizes = [width, cells, cells, shape.num_heads * free]
    projection = torch.randn(num_rows, sum(sizes), generator=generator).to(device, dtype)
    x, b, c, dt = torch.split(projection, sizes, dim=1)
    a = -8 * torch.rand(shape.num_heads, free, generator=generator)
    dt_bias = torch.randn(shape.num_heads, free, generator=generator) - 2
    d = torch.randn(shape.num_heads, 1, generator=generator)
    head_dim = shape.head_dim
    return DecodeBatch(
        x=x.view(num_rows, shape.num_heads, head_dim),
        dt=dt.view(num_rows, shape.num_heads, free).expand(-1, -1, head_dim),
        a=a.to(device)[:, :, None].expand(-1, head_dim, shape.d_state),
        b=b.view(num_rows, shape.num_groups, shape.d_state),
        c=c.view(num_rows, shape.num_groups, shape.d_state),
        d=d.to(device, dtype).expand(-1, head_dim),
        dt_bias=dt_bias.to(device, dtype).expand(-1, head_dim),
    )


def advance_in_float64(
    states: torch.Tensor, batch: DecodeBatch
) -> tuple[torch.Tensor, torch.Tensor]:
    """The recurrence of Mamba2 as it is written down: (outputs, next states).

    Args:
        states: [rows, heads, head_dim, d_state].
    """
    x, dt, a, b, c, d, dt_bias = (tensor.double() for tensor in batch.tensors)
    heads_per_group = x.shape[1] // b.shape[1]
    b, c = (tensor.repeat_interleave(heads_per_group, dim=1) for tensor in (b, c))
    dt = torch.log1p(torch.exp(dt + dt_bias))
    decay = torch.exp(torch.einsum("hdn,rhd->rhdn", a, dt))
    after = states.double() * decay + torch.einsum("rhd,rhn,rhd->rhdn", dt, b, x)
    return torch.einsum("rhdn,rhn->rhd", after, c) + d * x, after


# -- the convolution -------------------------------------------------------------------------------


def convolve_in_float64(
    history: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    silu: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(outputs, next histories) of rows whose history is [rows, width - 1, channels]."""
    tokens = torch.cat([history.double(), x.double()[:, None]], dim=1)
    out = torch.einsum("rtc,ct->rc", tokens, weight.double())
    if bias is not None:
        out = out + bias.double()
    if silu:
        out = out * torch.sigmoid(out)
    return out, tokens[:, 1:]
