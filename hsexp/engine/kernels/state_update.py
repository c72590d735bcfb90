"""One decode step of Mamba2's recurrent states in member pages: a single launch for a batch.

    state = state * exp(A dt) + (dt B) x        y = state C + D x        dt = softplus(dt + dt_bias)

The arithmetic, the tiles and their order are those of vLLM's selective_state_update; only where a
state lies differs. A program works on some rows of one head of one request, reads the head's member
page of the request's source state and writes the one of its target state. Where these are the same
the update is in place. As in vLLM's, one load of a place comes before the load of the state.
"""

from vllm.model_executor.layers.mamba.ops.mamba_ssm import softplus, try_get_optimal_ssm_config
from vllm.model_executor.layers.mamba.ops.triton_helpers import fast_exp
from vllm.triton_utils import tl, triton

from hsexp.engine.kernels.ops import DecodeUpdate


# Places are parts of staged buffers, of any alignment; their stride is the rows of an eager batch.
@triton.jit(
    do_not_specialize=["stride_member"],
    do_not_specialize_on_alignment=["source_ptr", "target_ptr"],
)
def _state_update_kernel(
    pages_ptr,
    source_ptr,
    target_ptr,
    x_ptr,
    dt_ptr,
    a_ptr,
    b_ptr,
    c_ptr,
    d_ptr,
    dt_bias_ptr,
    out_ptr,
    head_dim,
    d_state,
    stride_page,
    stride_page_head,
    stride_page_dim,
    stride_page_state,
    stride_member,
    stride_x_row,
    stride_x_head,
    stride_x_dim,
    stride_dt_row,
    stride_dt_head,
    stride_dt_dim,
    stride_a_head,
    stride_a_dim,
    stride_a_state,
    stride_b_row,
    stride_b_group,
    stride_b_state,
    stride_c_row,
    stride_c_group,
    stride_c_state,
    stride_d_head,
    stride_d_dim,
    stride_dt_bias_head,
    stride_dt_bias_dim,
    stride_out_row,
    stride_out_head,
    stride_out_dim,
    HEADS_PER_MEMBER: tl.constexpr,
    HEADS_PER_GROUP: tl.constexpr,
    TIED: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_STATE: tl.constexpr,
):
    """Longer than other functions: Triton passes every pointer and every stride by itself."""
    row = tl.program_id(1)
    head = tl.program_id(2)
    group = head // HEADS_PER_GROUP
    dims = tl.program_id(0) * BLOCK_DIM + tl.arange(0, BLOCK_DIM)
    cells = tl.arange(0, BLOCK_STATE)
    in_dims = dims < head_dim
    in_cells = cells < d_state
    in_tile = in_dims[:, None] & in_cells[None, :]
    out_ptrs = out_ptr + row * stride_out_row + head * stride_out_head + dims * stride_out_dim

    # Pages in 64 bits: a page's offset in elements can pass 2**31.
    place = head // HEADS_PER_MEMBER * stride_member + row
    source_page = tl.load(source_ptr + place).to(tl.int64)
    target_page = tl.load(target_ptr + place).to(tl.int64)
    # A row that pads the batch owns no state. A mask and not a branch, which would wait for one
    # place and then load the other.
    is_owned = target_page > 0

    tile = (
        head % HEADS_PER_MEMBER * stride_page_head
        + dims[:, None] * stride_page_dim
        + cells[None, :] * stride_page_state
    )
    source_ptrs = pages_ptr + source_page * stride_page + tile
    target_ptrs = pages_ptr + target_page * stride_page + tile
    state = tl.load(source_ptrs, mask=in_tile & is_owned & (source_page > 0), other=0.0).to(
        tl.float32
    )

    x_ptrs = x_ptr + row * stride_x_row + head * stride_x_head + dims * stride_x_dim
    x = tl.load(x_ptrs, mask=in_dims, other=0.0).to(tl.float32)
    b_ptrs = b_ptr + row * stride_b_row + group * stride_b_group + cells * stride_b_state
    b = tl.load(b_ptrs, mask=in_cells, other=0.0).to(tl.float32)
    c_ptrs = c_ptr + row * stride_c_row + group * stride_c_group + cells * stride_c_state
    c = tl.load(c_ptrs, mask=in_cells, other=0.0).to(tl.float32)
    d_ptrs = d_ptr + head * stride_d_head + dims * stride_d_dim
    d = tl.load(d_ptrs, mask=in_dims, other=0.0).to(tl.float32)
    dt_ptr += row * stride_dt_row + head * stride_dt_head
    dt_bias_ptr += head * stride_dt_bias_head
    a_ptr += head * stride_a_head
    if TIED:  # one A, dt and dt_bias for the whole head, as in Mamba2
        dt = tl.load(dt_ptr).to(tl.float32) + tl.load(dt_bias_ptr).to(tl.float32)
        dt = softplus(dt)
        decay = fast_exp(tl.load(a_ptr).to(tl.float32) * dt)
        db = b * dt
    else:
        dt = tl.load(dt_ptr + dims * stride_dt_dim, mask=in_dims, other=0.0).to(tl.float32)
        bias_ptrs = dt_bias_ptr + dims * stride_dt_bias_dim
        dt += tl.load(bias_ptrs, mask=in_dims, other=0.0).to(tl.float32)
        dt = softplus(dt)
        a_ptrs = a_ptr + dims[:, None] * stride_a_dim + cells[None, :] * stride_a_state
        decay = fast_exp(tl.load(a_ptrs, mask=in_tile, other=0.0).to(tl.float32) * dt[:, None])
        db = b[None, :] * dt[:, None]

    state = state * decay + db * x[:, None]
    out = tl.sum(state * c[None, :], axis=1)
    out += x * d
    tl.store(target_ptrs, state.to(target_ptrs.dtype.element_ty), mask=in_tile & is_owned)
    tl.store(out_ptrs, out, mask=in_dims & is_owned)
    tl.store(out_ptrs, tl.zeros((BLOCK_DIM,), tl.float32), mask=in_dims & (target_page <= 0))


def fused_state_update(update: DecodeUpdate, *, is_blackwell: bool) -> None:
    """Advance the states of a decode batch by one token (B.10).

    Args:
        is_blackwell: chooses the tiles, as in vLLM.
    """
    pages, source, target = update.ssm_pages, update.source, update.target
    a, dt, dt_bias = update.a, update.dt, update.dt_bias
    num_rows, num_heads, head_dim = update.x.shape
    _, heads_per_member, _, d_state = pages.shape
    num_groups = update.b.shape[1]
    num_members = num_heads // heads_per_member
    assert num_heads == num_members * heads_per_member and num_heads % num_groups == 0
    assert pages.shape[2] == head_dim and source.shape == target.shape == (num_members, num_rows)
    assert source.stride() == target.stride() and source.stride(1) == 1
    tied = a.stride(-1) == a.stride(-2) == dt.stride(-1) == dt_bias.stride(-1) == 0
    operands = (update.x, dt, a, update.b, update.c, update.d, dt_bias, update.out)
    block_dim, num_warps = try_get_optimal_ssm_config(
        head_dim,
        d_state,
        num_rows,
        num_heads,
        str(pages.dtype).removeprefix("torch."),
        is_blackwell,
    )
    _state_update_kernel[(triton.cdiv(head_dim, block_dim), num_rows, num_heads)](
        pages,
        source,
        target,
        *operands,
        head_dim,
        d_state,
        *pages.stride(),
        source.stride(0),
        *(stride for tensor in operands for stride in tensor.stride()),
        HEADS_PER_MEMBER=heads_per_member,
        HEADS_PER_GROUP=num_heads // num_groups,
        TIED=tied,
        BLOCK_DIM=block_dim,
        BLOCK_STATE=triton.next_power_of_2(d_state),
        num_warps=num_warps,
    )
