"""The CPU's operations over paged states against float64, and against writes to what others adopt.

Rows read and write in place, cross from a checkpoint to a new state, two from the same checkpoint,
or start from nothing. There are no padded rows on a CPU.
"""

import pytest
import torch
from kernel_cases import (
    SMALL,
    Pool,
    Rows,
    Shape,
    advance_in_float64,
    convolve_in_float64,
    decode_batch,
    random_rows,
    same_bits,
)

from hsexp.config.base import ConfigError
from hsexp.engine.kernels.cpu import CpuOps
from hsexp.engine.paged import ops_for
from hsexp.memory.checkpoint import NO_LINE

UNEVEN = Shape(num_heads=6, head_dim=24, d_state=32, num_groups=2, heads_per_member=2)
"""Groups of three heads that begin inside a member page; vLLM's kernel needs whole vectors of
`d_state`."""
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
DTYPES = list(TOLERANCE)
CHANNELS, WIDTH = 256, 4


def owned_rows(generator: torch.Generator) -> Rows:
    rows = random_rows(24, generator)
    return Rows(
        source=rows.source[rows.owned],
        target=rows.target[rows.owned],
        num_composites=rows.num_composites,
    )


def state_pool(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> tuple[Rows, Pool]:
    rows = owned_rows(generator)
    pool = Pool(
        rows,
        places_per_state=shape.num_members,
        place=(shape.heads_per_member, shape.head_dim, shape.d_state),
        stride=shape.heads_per_member * shape.head_dim * shape.d_state,
        dtype=dtype,
        generator=generator,
    )
    pool.fill(generator)
    return pool.start("cpu"), pool


def read(rows: Rows, pool: Pool) -> torch.Tensor:
    """[rows, places of a state, ...], zeros where there is no source."""
    found = pool.states(rows.source, before=True)
    fresh = (rows.source == 0).view(-1, *[1] * (found.dim() - 1))
    return torch.where(fresh, 0, found)


def test_a_device_takes_its_own_operations_or_none() -> None:
    assert ops_for(torch.device("cpu")).name == "cpu-ops"
    assert ops_for(torch.device("cuda")).name == "triton-fused"
    with pytest.raises(ConfigError, match="cpu or cuda, got xpu"):
        ops_for(torch.device("xpu"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [SMALL, UNEVEN], ids=["small", "uneven"])
def test_an_update_is_the_recurrence_and_leaves_every_checkpoint_as_it_was(
    shape: Shape, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    rows, pool = state_pool(shape, dtype, generator)
    batch = decode_batch(shape, len(rows.source), dtype, generator, "cpu")
    out = torch.full_like(batch.x, float("nan"), memory_format=torch.contiguous_format)
    CpuOps().state_update(batch.update(pool.view, pool.at(rows.source), pool.at(rows.target), out))
    expected, states = advance_in_float64(read(rows, pool).flatten(1, 2), batch)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=10 * tolerance)
    found = pool.states(rows.target).flatten(1, 2).double()
    torch.testing.assert_close(found, states, rtol=tolerance, atol=tolerance)
    assert pool.untouched()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_convolution_moves_on_in_its_own_line(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = owned_rows(generator)
    pool = Pool(
        rows,
        places_per_state=1,
        place=(WIDTH - 1, CHANNELS),
        stride=1024,
        dtype=dtype,
        generator=generator,
    )
    pool.places[:, 0] = NO_LINE
    pool.fill(generator)
    pool.start("cpu")
    x = torch.randn(len(rows.source), CHANNELS, generator=generator).to(dtype)
    weight = torch.randn(CHANNELS, WIDTH, generator=generator).to(dtype)
    bias = torch.randn(CHANNELS, generator=generator).to(dtype)
    expected, lines = convolve_in_float64(read(rows, pool)[:, 0], x, weight, bias, silu=True)
    out = CpuOps().conv_update(
        x, pool.view, pool.at(rows.source)[0], pool.at(rows.target)[0], weight, bias, "silu"
    )
    torch.testing.assert_close(out.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert torch.equal(pool.states(rows.target)[:, 0].double(), lines)
    assert pool.untouched()


def test_gathered_states_are_the_sources_and_scattered_ones_land_in_the_targets() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, pool = state_pool(UNEVEN, torch.float32, generator)
    states = CpuOps().gather_states(pool.view, pool.at(rows.source))
    assert same_bits(states, read(rows, pool).flatten(1, 2))
    assert pool.unchanged
    CpuOps().scatter_states(pool.view, pool.at(rows.target), states)
    assert same_bits(pool.states(rows.target).flatten(1, 2), states)
    assert pool.untouched()
