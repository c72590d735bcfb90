"""Whole states between member pages and the dense tensors of the prefill scan, and whole lines.

Prefill is bound by its matrix products, so it keeps vLLM's convolution and scan and moves states
around them: one launch each, and no size that the host would have to wait for.
"""

import torch
from vllm.triton_utils import tl, triton

_BLOCK, _NUM_WARPS = 8192, 8
"""Elements a program moves: 64 bytes a thread in bfloat16."""


@triton.jit(do_not_specialize_on_alignment=["composite_ptr"])
def _transfer_states_kernel(
    pages_ptr,
    states_ptr,
    members_ptr,
    composite_ptr,
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
    composite = tl.load(composite_ptr + row)
    page = tl.load(
        members_ptr + member * stride_member + composite, mask=composite > 0, other=0
    ).to(tl.int64)
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
    lines_ptr,
    source_ptr,
    target_ptr,
    line_size,
    stride_line,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(1)
    source = tl.load(source_ptr + row)
    target = tl.load(target_ptr + row)
    source_line = tl.load(lines_ptr + source, mask=source > 0, other=-1).to(tl.int64)
    target_line = tl.load(lines_ptr + target, mask=target > 0, other=-1).to(tl.int64)
    if (source_line < 0) | (target_line < 0) | (source_line == target_line):
        return
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < line_size
    line = tl.load(conv_lines_ptr + source_line * stride_line + offsets, mask=inside)
    tl.store(conv_lines_ptr + target_line * stride_line + offsets, line, mask=inside)


def gather_states(
    ssm_pages: torch.Tensor, members: torch.Tensor, source: torch.Tensor
) -> torch.Tensor:
    """Dense copies of states: [rows, heads, head_dim, d_state].

    Args:
        ssm_pages: [pages, heads of a page, head_dim, d_state].
        members: [members of a state, composites] int32, page ids.
        source: [rows] int32, composites; where one is not positive the state is zeros.
    """
    _, heads_per_member, head_dim, d_state = ssm_pages.shape
    states = ssm_pages.new_empty(
        (source.shape[0], members.shape[0] * heads_per_member, head_dim, d_state)
    )
    _transfer_states(ssm_pages, states, members, source, gather=True)
    return states


def scatter_states(
    ssm_pages: torch.Tensor, members: torch.Tensor, target: torch.Tensor, states: torch.Tensor
) -> None:
    """Write dense states [rows, heads, head_dim, d_state] to the pages of their composites; a row
    whose composite is not positive is left out."""
    _transfer_states(ssm_pages, states.contiguous(), members, target, gather=False)


def _transfer_states(
    ssm_pages: torch.Tensor,
    states: torch.Tensor,
    members: torch.Tensor,
    composites: torch.Tensor,
    *,
    gather: bool,
) -> None:
    num_members, num_rows = members.shape[0], composites.shape[0]
    member_size = ssm_pages[0].numel()
    assert ssm_pages[0].is_contiguous() and states[0].numel() == num_members * member_size
    assert members.stride(1) == composites.stride(0) == 1
    _transfer_states_kernel[(triton.cdiv(member_size, _BLOCK), num_members, num_rows)](
        ssm_pages,
        states,
        members,
        composites,
        member_size,
        ssm_pages.stride(0),
        members.stride(0),
        states.stride(0),
        GATHER=gather,
        BLOCK=_BLOCK,
        num_warps=_NUM_WARPS,
    )


def carry_lines(
    conv_lines: torch.Tensor, lines: torch.Tensor, source: torch.Tensor, target: torch.Tensor
) -> None:
    """Copy the line of each row's source composite to the one of its target, where both exist and
    differ. The prefill convolution works in place, so a request that crosses a boundary needs a
    copy of its line first.

    Args:
        conv_lines: [lines, width - 1, channels].
        lines: [composites] int32, line of each composite, or -1.
        source, target: [rows] int32, composites.
    """
    line_size = conv_lines[0].numel()
    assert conv_lines[0].is_contiguous() and lines.stride(0) == 1
    _carry_lines_kernel[(triton.cdiv(line_size, _BLOCK), source.shape[0])](
        conv_lines,
        lines,
        source,
        target,
        line_size,
        conv_lines.stride(0),
        BLOCK=_BLOCK,
        num_warps=_NUM_WARPS,
    )
