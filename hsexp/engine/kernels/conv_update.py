"""One decode step of the causal convolution in slots: reads one line, writes another.

The sum and its rounding are those of vLLM's causal_conv1d_update: taps from the oldest token to the
new one, added in float32. A request that crosses a boundary has its history read from the line of
the checkpoint and written to its own, so that nothing is copied beforehand.
"""

import torch
from vllm.triton_utils import tl, triton

_BLOCK = 256


@triton.jit
def _tap(value, weight):
    """Their product in float32, rounded like stock's to the type they share."""
    product = value.to(tl.float32) * weight.to(tl.float32)
    if value.dtype == weight.dtype:
        product = product.to(value.dtype).to(tl.float32)
    return product


@triton.jit(do_not_specialize_on_alignment=["source_ptr", "target_ptr"])
def _conv_update_kernel(
    x_ptr,
    conv_lines_ptr,
    source_ptr,
    target_ptr,
    weight_ptr,
    bias_ptr,
    num_channels,
    stride_x_row,
    stride_line,
    stride_line_row,
    stride_weight_channel,
    stride_weight_tap,
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SILU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channels < num_channels

    # Lines in 64 bits: a line's offset in elements can pass 2**31.
    source_line = tl.load(source_ptr + row).to(tl.int64)
    target_line = tl.load(target_ptr + row).to(tl.int64)
    if target_line < 0:  # a row that pads the batch owns no line
        return

    source_ptrs = conv_lines_ptr + source_line * stride_line + channels
    target_ptrs = conv_lines_ptr + target_line * stride_line + channels
    weight_ptrs = weight_ptr + channels * stride_weight_channel
    if HAS_BIAS:
        acc = tl.load(bias_ptr + channels, mask=inside, other=0.0).to(tl.float32)
    else:
        acc = tl.zeros((BLOCK,), tl.float32)
    for tap in tl.static_range(WIDTH - 1):
        value = tl.load(
            source_ptrs + tap * stride_line_row, mask=inside & (source_line >= 0), other=0.0
        )
        weight = tl.load(weight_ptrs + tap * stride_weight_tap, mask=inside, other=0.0)
        acc += _tap(value, weight)
        if tap > 0:
            # In place this overwrites the value before, which some thread may still be loading.
            tl.debug_barrier()
            tl.store(target_ptrs + (tap - 1) * stride_line_row, value, mask=inside)
    x_ptrs = x_ptr + row * stride_x_row + channels
    value = tl.load(x_ptrs, mask=inside, other=0.0).to(conv_lines_ptr.dtype.element_ty)
    weight = tl.load(weight_ptrs + (WIDTH - 1) * stride_weight_tap, mask=inside, other=0.0)
    acc += _tap(value, weight)
    tl.debug_barrier()
    tl.store(target_ptrs + (WIDTH - 2) * stride_line_row, value, mask=inside)
    if SILU:
        acc = acc / (1 + tl.exp(-acc))
    tl.store(x_ptrs, acc.to(conv_lines_ptr.dtype.element_ty), mask=inside)


def conv_update(
    x: torch.Tensor,
    conv_lines: torch.Tensor,
    source: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
) -> torch.Tensor:
    """Convolve one new token of each row with its history, and overwrite the token (B.10).

    Args:
        x: [rows, channels], overwritten with the result; a row without a target keeps its own.
        conv_lines: [lines, width - 1, channels], oldest token first, read and written.
        source: [rows] int32, the line that a row reads (Eq. X2: 16 p + s); where it is negative the
            history is zeros.
        target: [rows] int32, the line that a row writes, or -1. No two rows have the same.
        weight: [channels, width]. bias: [channels].
        activation: silu, swish or None.
    """
    num_rows, num_channels = x.shape
    width = weight.shape[1]
    assert conv_lines.shape[1:] == (width - 1, num_channels) and weight.shape[0] == num_channels
    assert source.shape == target.shape == (num_rows,)
    assert x.stride(1) == conv_lines.stride(2) == source.stride(0) == target.stride(0) == 1
    assert activation in ("silu", "swish", None), activation
    _conv_update_kernel[(num_rows, triton.cdiv(num_channels, _BLOCK))](
        x,
        conv_lines,
        source,
        target,
        weight,
        bias,
        num_channels,
        x.stride(0),
        conv_lines.stride(0),
        conv_lines.stride(1),
        *weight.stride(),
        WIDTH=width,
        HAS_BIAS=bias is not None,
        SILU=activation is not None,
        BLOCK=_BLOCK,
    )
    return x
