"""The Triton kernels against float64, against vLLM's contiguous kernels, and against wild writes.

On a GPU as they are; without one tests/engine/test_kernels.py runs this file in Triton's
interpreter. That holds bfloat16 as bits: it converts them, by truncation where a GPU rounds, but
cannot multiply them. Our kernels convert before they compute; stock's convolution does not, and its
bfloat16 case is left to a GPU.
"""

import pytest
import torch
from kernel_cases import (
    FALCON_7B,
    SMALL,
    UNEVEN,
    DecodeBatch,
    Pool,
    Rows,
    Shape,
    advance_in_float64,
    convolve_in_float64,
    decode_batch,
    random_rows,
    same_bits,
)
from triton_on_cpu import INTERPRETED
from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update
from vllm.model_executor.layers.mamba.ops.mamba_ssm import (
    override_ssm_config,
    selective_state_update,
)

from hsexp.engine.kernels.conv_update import conv_update
from hsexp.engine.kernels.cpu import unfused_state_update
from hsexp.engine.kernels.state_update import fused_state_update
from hsexp.engine.kernels.transfer import carry_lines, gather_states, scatter_states
from hsexp.memory.checkpoint import NO_LINE

pytestmark = pytest.mark.usefixtures("wide_tiles")

BATCHES = (1, 8, 32, 53)
DTYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""Relative and absolute: a truncated bfloat16 is off by up to 2**-7 of itself."""


def state_case(
    shape: Shape, num_rows: int, state_dtype: torch.dtype, device: str, generator: torch.Generator
) -> tuple[Rows, Pool]:
    rows = random_rows(num_rows, generator)
    place = (shape.heads_per_member, shape.head_dim, shape.d_state)
    pool = Pool(
        rows,
        places_per_state=shape.num_members,
        place=place,
        stride=shape.heads_per_member * shape.head_dim * shape.d_state,
        dtype=state_dtype,
        generator=generator,
    )
    pool.fill(generator)
    return pool.start(device), pool


def whole(states: torch.Tensor) -> torch.Tensor:
    """[rows, members, heads of a member, ...] -> [rows, heads, ...]."""
    return states.flatten(1, 2)


def states_before(rows: Rows, pool: Pool, chosen: torch.Tensor) -> torch.Tensor:
    """What the chosen rows read; zeros where they have no source."""
    source = rows.source[chosen]
    found = whole(pool.states(source.clamp(min=0), before=True))
    return torch.where((source > 0)[:, None, None, None], found, 0)


def update(rows: Rows, pool: Pool, batch: DecodeBatch) -> torch.Tensor:
    out = torch.full_like(batch.x, float("nan"), memory_format=torch.contiguous_format)
    fused_state_update(
        batch.update(pool.view, pool.at(rows.source), pool.at(rows.target), out),
        is_blackwell=False,
    )
    return out


STATE_CASES = [
    pytest.param(FALCON_7B, 2, torch.bfloat16, torch.bfloat16, id="falcon-2-bf16"),
    pytest.param(FALCON_7B, 1, torch.float32, torch.float32, id="falcon-1-fp32"),
    pytest.param(UNEVEN, 8, torch.bfloat16, torch.bfloat16, id="uneven-8-bf16"),
    pytest.param(UNEVEN, 8, torch.float32, torch.float32, id="uneven-8-fp32"),
    pytest.param(SMALL, 8, torch.bfloat16, torch.float32, id="small-8-bf16-in-fp32-states"),
    *(
        pytest.param(SMALL, num_rows, dtype, dtype, id=f"small-{num_rows}-{str(dtype)[6:]}")
        for num_rows in BATCHES
        for dtype in DTYPES
    ),
]


@pytest.mark.parametrize(("shape", "num_rows", "dtype", "state_dtype"), STATE_CASES)
def test_a_fused_update_is_the_recurrence_and_writes_its_targets_only(
    shape: Shape,
    num_rows: int,
    dtype: torch.dtype,
    state_dtype: torch.dtype,
    device_name: str,
) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    rows, pool = state_case(shape, num_rows, state_dtype, device_name, generator)
    batch = decode_batch(shape, num_rows, dtype, generator, device_name)
    out = update(rows, pool, batch)
    owned = rows.owned
    expected, states = advance_in_float64(states_before(rows, pool, owned), batch.rows(owned))
    tolerance = TOLERANCE[dtype] * shape.d_state**0.5
    torch.testing.assert_close(out[owned].double(), expected, rtol=tolerance, atol=tolerance)
    found = whole(pool.states(rows.target[owned])).double()
    tolerance = TOLERANCE[state_dtype]
    torch.testing.assert_close(found, states, rtol=tolerance, atol=tolerance)
    assert pool.untouched()
    assert same_bits(out[~owned], torch.zeros_like(out[~owned]))


def test_dimensions_of_a_head_need_not_share_their_step(device_name: str) -> None:
    generator = torch.Generator().manual_seed(7)
    rows, pool = state_case(UNEVEN, 8, torch.float32, device_name, generator)
    batch = decode_batch(UNEVEN, 8, torch.float32, generator, device_name, tied=False)
    out = update(rows, pool, batch)
    expected, states = advance_in_float64(
        states_before(rows, pool, rows.owned), batch.rows(rows.owned)
    )
    torch.testing.assert_close(out[rows.owned].double(), expected, rtol=1e-4, atol=1e-4)
    found = whole(pool.states(rows.target[rows.owned])).double()
    torch.testing.assert_close(found, states, rtol=1e-5, atol=1e-5)
    assert pool.untouched()


@pytest.mark.parametrize(("shape", "num_rows", "dtype", "state_dtype"), STATE_CASES)
def test_paged_and_contiguous_states_give_the_same_bits(
    shape: Shape,
    num_rows: int,
    dtype: torch.dtype,
    state_dtype: torch.dtype,
    device_name: str,
) -> None:
    """Our kernel over one page a state, in order, and vLLM's over the same."""
    generator = torch.Generator().manual_seed(num_rows)
    rows, pool = state_case(shape, num_rows, state_dtype, device_name, generator)
    batch = decode_batch(shape, num_rows, dtype, generator, device_name)
    composites = torch.arange(rows.num_composites, dtype=torch.int32, device=device_name)
    ours = whole(pool.states(composites))
    theirs = ours.clone()
    out = update(rows, pool, batch)

    contiguous = torch.full_like(out, float("nan"))
    source, target = (ids.clamp(min=0)[None] for ids in (rows.source, rows.target))
    fused_state_update(batch.update(ours, source, target, contiguous), is_blackwell=False)
    assert same_bits(contiguous, out)
    assert same_bits(ours[rows.target[rows.owned]], whole(pool.states(rows.target[rows.owned])))

    # vLLM's kernel does not store what starts from nothing.
    stored = rows.owned & (rows.source > 0)
    null = torch.zeros_like(rows.source)
    source, target = (torch.where(stored, ids, null) for ids in (rows.source, rows.target))
    x, dt, a, b, c, d, dt_bias = batch.tensors
    stock = torch.full_like(out, float("nan"))
    selective_state_update(
        theirs, x, dt, a, b, c, D=d, dt_bias=dt_bias, dt_softplus=True,
        state_batch_indices=source, dst_state_batch_indices=target, out=stock,
    )  # fmt: skip
    assert same_bits(stock[stored], out[stored])
    assert same_bits(theirs[target[stored]], whole(pool.states(target[stored])))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [SMALL, UNEVEN, FALCON_7B], ids=["small", "uneven", "falcon"])
def test_one_launch_gives_the_bits_of_one_launch_a_member(
    shape: Shape, dtype: torch.dtype, device_name: str
) -> None:
    num_rows = 2 if shape is FALCON_7B else 8
    generator = torch.Generator().manual_seed(num_rows)
    rows, pool = state_case(shape, num_rows, dtype, device_name, generator)
    batch = decode_batch(shape, num_rows, dtype, generator, device_name)
    pages = pool.view.clone()
    # vLLM's kernel does not store what starts from nothing.
    stored = rows.owned & (rows.source > 0)
    source, target = rows.source[stored], rows.target[stored]
    chosen = batch.rows(stored)
    unfused = torch.full_like(chosen.x, float("nan"), memory_format=torch.contiguous_format)
    with override_ssm_config((128, 8)):  # else vLLM chooses tiles by rows x heads
        out = update(rows, pool, batch)
        unfused_state_update(chosen.update(pages, pool.at(source), pool.at(target), unfused))
    assert same_bits(unfused, out[stored])
    assert same_bits(pages[pool.places[:, target]], pool.view[pool.places[:, target]])


# -- the convolution -------------------------------------------------------------------------------


def line_case(
    num_rows: int, num_channels: int, width: int, dtype: torch.dtype, device: str
) -> tuple[Rows, Pool, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Lines with a gap behind each, as slots of 32 KiB hold 21; tokens, weight and bias."""
    generator = torch.Generator().manual_seed(num_rows)
    rows = random_rows(num_rows, generator)
    pool = Pool(
        rows,
        places_per_state=1,
        place=(width - 1, num_channels),
        stride=(width - 1) * num_channels + 5,
        dtype=dtype,
        generator=generator,
    )
    pool.places[:, 0] = NO_LINE
    pool.fill(generator)
    rows = pool.start(device)
    projection = torch.randn(num_rows, num_channels + 8, generator=generator).to(device, dtype)
    weight = torch.randn(num_channels, width, generator=generator).to(device, dtype)
    bias = torch.randn(num_channels, generator=generator).to(device, dtype)
    return rows, pool, projection[:, 4 : 4 + num_channels], weight, bias


LINE_CASES = [
    *((num_rows, 40, 4, dtype) for num_rows in BATCHES for dtype in (*DTYPES, torch.float16)),
    *((8, channels, width, torch.float32) for channels, width in ((3584, 4), (300, 2))),
]


def histories(rows: Rows, pool: Pool, chosen: torch.Tensor) -> torch.Tensor:
    source = rows.source[chosen]
    found = pool.states(source.clamp(min=1), before=True)[:, 0]
    return torch.where((source > 0)[:, None, None], found, 0)


@pytest.mark.parametrize(("num_rows", "channels", "width", "dtype"), LINE_CASES)
@pytest.mark.parametrize("activation", ["silu", None])
def test_a_convolution_reads_one_line_and_moves_on_in_another(
    num_rows: int,
    channels: int,
    width: int,
    dtype: torch.dtype,
    activation: str | None,
    device_name: str,
) -> None:
    rows, pool, x, weight, bias = line_case(num_rows, channels, width, dtype, device_name)
    if activation is None:
        bias = None
    tokens = x.clone()
    out = conv_update(
        x, pool.view, pool.at(rows.source)[0], pool.at(rows.target)[0], weight, bias, activation
    )
    expected, lines = convolve_in_float64(
        histories(rows, pool, rows.owned), tokens[rows.owned], weight, bias,
        silu=activation is not None,
    )  # fmt: skip
    tolerance = 4 * TOLERANCE[dtype]  # every product is rounded
    torch.testing.assert_close(out[rows.owned].double(), expected, rtol=tolerance, atol=tolerance)
    found = pool.states(rows.target[rows.owned])[:, 0]
    assert torch.equal(found.double(), lines)
    assert pool.untouched()
    assert same_bits(out[~rows.owned], tokens[~rows.owned])


@pytest.mark.parametrize(("num_rows", "channels", "width", "dtype"), LINE_CASES)
def test_lines_and_contiguous_histories_give_the_same_bits(
    num_rows: int, channels: int, width: int, dtype: torch.dtype, device_name: str
) -> None:
    if INTERPRETED and dtype is torch.bfloat16:
        pytest.skip("vLLM's kernel multiplies bfloat16, which the interpreter cannot")
    rows, pool, x, weight, bias = line_case(num_rows, channels, width, dtype, device_name)
    history = histories(rows, pool, rows.owned).transpose(1, 2).contiguous()
    stock = causal_conv1d_update(
        x[rows.owned],
        history,
        weight,
        bias,
        "silu",
        conv_state_indices=torch.arange(len(history), dtype=torch.int32, device=device_name),
        null_block_id=NO_LINE,
    )
    out = conv_update(
        x, pool.view, pool.at(rows.source)[0], pool.at(rows.target)[0], weight, bias, "silu"
    )
    assert same_bits(out[rows.owned], stock)
    found = pool.states(rows.target[rows.owned])[:, 0]
    assert same_bits(found.transpose(1, 2), history)


def test_tokens_of_another_type_are_convolved_in_the_type_of_the_lines(device_name: str) -> None:
    rows, pool, x, weight, bias = line_case(8, 300, 4, torch.float32, device_name)
    tokens = x.to(torch.bfloat16)
    out = conv_update(
        tokens.clone(), pool.view, pool.at(rows.source)[0], pool.at(rows.target)[0], weight, bias,
        "silu",
    )  # fmt: skip
    expected, lines = convolve_in_float64(
        histories(rows, pool, rows.owned), tokens[rows.owned], weight, bias, silu=True
    )
    torch.testing.assert_close(out[rows.owned].double(), expected, rtol=1e-2, atol=1e-2)
    assert torch.equal(pool.states(rows.target[rows.owned])[:, 0].double(), lines)


# -- prefill ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "num_rows"), [(FALCON_7B, 3), *((UNEVEN, num_rows) for num_rows in BATCHES)]
)
def test_gathered_states_are_the_sources_and_zeros_where_there_is_none(
    shape: Shape, num_rows: int, dtype: torch.dtype, device_name: str
) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    rows, pool = state_case(shape, num_rows, dtype, device_name, generator)
    states = gather_states(pool.view, pool.at(rows.source))
    every = torch.ones_like(rows.owned)
    assert states.is_contiguous()
    assert same_bits(states, states_before(rows, pool, every))
    assert pool.unchanged


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "num_rows"), [(FALCON_7B, 3), *((UNEVEN, num_rows) for num_rows in BATCHES)]
)
def test_scattered_states_land_in_their_targets_only(
    shape: Shape, num_rows: int, dtype: torch.dtype, device_name: str
) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    rows, pool = state_case(shape, num_rows, dtype, device_name, generator)
    size = (num_rows, shape.num_heads, shape.head_dim, shape.d_state)
    states = torch.randn(size, generator=generator).to(device_name, dtype)
    scatter_states(pool.view, pool.at(rows.target), states)
    assert same_bits(whole(pool.states(rows.target[rows.owned])), states[rows.owned])
    assert pool.untouched()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", BATCHES)
def test_lines_are_carried_where_a_row_crosses_and_nowhere_else(
    num_rows: int, dtype: torch.dtype, device_name: str
) -> None:
    rows, pool, *_ = line_case(num_rows, 3000, 4, dtype, device_name)
    carry_lines(pool.view, pool.at(rows.source)[0], pool.at(rows.target)[0])
    carried = rows.owned & (rows.source > 0)
    expected = pool.states(rows.source[carried], before=True)
    assert same_bits(pool.states(rows.target[carried]), expected)
    assert pool.untouched()
    fresh = rows.owned & (rows.source <= 0)
    before = pool.states(rows.target[fresh], before=True)
    assert same_bits(pool.states(rows.target[fresh]), before)


# -- large pools -----------------------------------------------------------------------------------


def test_places_beyond_two_to_the_31_elements_are_found(device_name: str) -> None:
    """Three places a gigabyte of elements apart: the last begins at element 2**31."""
    stride, generator = 2**30, torch.Generator().manual_seed(0)
    memory = torch.empty(2 * stride + 2**20, dtype=torch.bfloat16, device=device_name)
    pages = memory.as_strided((3, 1, 16, 32), (stride, 512, 32, 1))
    near, far = (torch.tensor([[i]], dtype=torch.int32, device=device_name) for i in (1, 2))
    pages[1], pages[2] = 1.0, 2.0
    states = gather_states(pages, far)
    assert bool((states == 2).all())
    scatter_states(pages, far, 2 * states)
    assert bool((pages[2] == 4).all()) and bool((pages[1] == 1).all())
    shape = Shape(num_heads=1, head_dim=16, d_state=32, num_groups=1, heads_per_member=1)
    batch = decode_batch(shape, 1, torch.bfloat16, generator, device_name)
    expected, after = advance_in_float64(pages[2:3], batch)
    out = torch.empty_like(batch.x).contiguous()
    fused_state_update(batch.update(pages, far, far, out), is_blackwell=False)
    torch.testing.assert_close(out.double(), expected, rtol=0.05, atol=0.5)
    torch.testing.assert_close(pages[2:3].double(), after, rtol=0.02, atol=0.02)

    lines = memory.as_strided((3, 3, 64), (stride, 64, 1))
    lines[1], lines[2] = 1.0, 2.0
    carry_lines(lines, far[0], near[0])
    assert bool((lines[1] == 2).all())
    x = torch.full((1, 64), 3.0, dtype=torch.bfloat16, device=device_name)
    weight = torch.ones((64, 4), dtype=torch.bfloat16, device=device_name)
    assert bool((conv_update(x, lines, far[0], far[0], weight, None, None) == 9).all())
    assert bool((lines[2, :2] == 2).all()) and bool((lines[2, 2] == 3).all())
