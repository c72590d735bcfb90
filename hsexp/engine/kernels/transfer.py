"""Whole states between member pages and the dense tensors of the prefill scan, and whole lines.

Prefill is bound by its matrix products, so it keeps vLLM's convolution and scan and moves states
around them: one launch each, and no size that the host would have to wait for.
"""

import torch
from vllm.triton_utils import tl, triton

_BLOCK, _NUM_WARPS = 8192, 8
"""Elements a program moves: 64 bytes a thread in bfloat16."""


@triton.jit(do_not_specialize=["stride_member"], do_not_specialize_on_alignment=["place_ptr"])
def _transfer_states_kernel(
    pages_ptr,
    states_ptr,
    place_ptr,
    member_size,
    stride_page,
    stride_member,
    stride_state,
    GATHER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    member = tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < member_size
    page = tl.load(place_ptr + member * stride_member + row).to(tl.int64)
    page_ptrs = pages_ptr + page * stride_page + offsets
    state_ptrs = states_ptr + row * stride_state + member * member_size + offsets
    owned = inside & (page > 0)
    if GATHER:
        tl.store(state_ptrs, tl.load(page_ptrs, mask=owned, other=0.0), mask=inside)
    else:
        tl.store(page_ptrs, tl.load(state_ptrs, mask=owned, other=0.0), mask=owned)


@triton.jit(do_not_specialize_on_alignment=["source_ptr", "target_ptr"])
def _carry_lines_kernel(
    conv_lines_ptr,
    source_ptr,
    target_ptr,
    line_size,
    stride_line,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(1)
    source_line = tl.load(source_ptr + row).to(tl.int64)
    target_line = tl.load(target_ptr + row).to(tl.int64)
    if (source_line < 0) | (target_line < 0) | (source_line == target_line):
        return
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < line_size
    line = tl.load(conv_lines_ptr + source_line * stride_line + offsets, mask=inside)
    tl.store(conv_lines_ptr + target_line * stride_line + offsets, line, mask=inside)


def gather_states(ssm_pages: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Dense copies of states: [rows, heads, head_dim, d_state].

    Args:
        ssm_pages: [pages, heads of a page, head_dim, d_state].
        source: [members of a state, rows] int32, page ids; where one is not positive the member is
            zeros.
    """
    _, heads_per_member, head_dim, d_state = ssm_pages.shape
    num_members, num_rows = source.shape
    states = ssm_pages.new_empty((num_rows, num_members * heads_per_member, head_dim, d_state))
    _transfer_states(ssm_pages, states, source, gather=True)
    return states


def scatter_states(ssm_pages: torch.Tensor, target: torch.Tensor, states: torch.Tensor) -> None:
    """Write dense states [rows, heads, head_dim, d_state] to pages [members of a state, rows]; a
    member whose page is not positive is left out."""
    _transfer_states(ssm_pages, states.contiguous(), target, gather=False)


def _transfer_states(
    ssm_pages: torch.Tensor, states: torch.Tensor, places: torch.Tensor, *, gather: bool
) -> None:
    num_members, num_rows = places.shape
    member_size = ssm_pages[0].numel()
    assert ssm_pages[0].is_contiguous() and states[0].numel() == num_members * member_size
    assert places.stride(1) == 1
    _transfer_states_kernel[(triton.cdiv(member_size, _BLOCK), num_members, num_rows)](
        ssm_pages,
        states,
        places,
        member_size,
        ssm_pages.stride(0),
        places.stride(0),
        states.stride(0),
        GATHER=gather,
        BLOCK=_BLOCK,
        num_warps=_NUM_WARPS,
    )


def carry_lines(conv_lines: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy each row's source line to its target, where both exist and differ. The prefill
    convolution works in place, so a request that crosses a boundary needs a copy of its line first.

    Args:
        conv_lines: [lines, width - 1, channels].
        source, target: [rows] int32, lines, or -1.
    """
    line_size = conv_lines[0].numel()
    assert conv_lines[0].is_contiguous() and source.stride(0) == target.stride(0) == 1
    _carry_lines_kernel[(triton.cdiv(line_size, _BLOCK), source.shape[0])](
        conv_lines,
        source,
        target,
        line_size,
        conv_lines.stride(0),
        BLOCK=_BLOCK,
        num_warps=_NUM_WARPS,
    )
