"""Mamba2's convolution and scan over paged states: stock arithmetic, other addresses.

Decode passes the step's places straight to the kernels; no state is gathered, and nothing waits for
the device, so that a batch of decodes can be captured in a CUDA graph. Prefill keeps vLLM's
convolution and scan, between a gather and a scatter of whole states.
"""

from typing import Any

import torch
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.mamba_mixer2 import (
    causal_conv1d_fn,
    mamba_chunk_scan_combined_varlen,
)

from hsexp.engine.kernels.ops import DecodeUpdate
from hsexp.engine.paged import LayerStates, StateRows
from hsexp.memory.checkpoint import NO_LINE


def conv_ssm_forward(mixer: Any, projected_states: torch.Tensor, output: torch.Tensor) -> None:
    """MambaMixer2.conv_ssm_forward where states are paged: decodes first, then prefills.

    Args:
        mixer: the MambaMixer2 layer.
        projected_states: [tokens, ...] gate, convolution input and dt; the second is overwritten.
        output: [tokens, heads x head_dim], written.
    """
    paged: LayerStates = mixer.hsexp_states
    hidden_b_c, dt = torch.split(
        projected_states[..., mixer.tped_intermediate_size :],
        [mixer.tped_conv_size, mixer.tped_dt_size],
        dim=-1,
    )
    metadata = get_forward_context().attn_metadata[mixer.prefix]  # type: ignore[index,call-overload,union-attr]
    num_decodes, num_prefills = metadata.num_decodes, metadata.num_prefills
    decode_tokens, prefill_tokens = metadata.num_decode_tokens, metadata.num_prefill_tokens
    total = decode_tokens + prefill_tokens
    parts = [decode_tokens, prefill_tokens]
    hidden_d, hidden_p = torch.split(hidden_b_c[:total], parts, dim=0)
    dt_d, dt_p = torch.split(dt[:total], parts, dim=0)
    out_d, out_p = torch.split(output[:total], parts, dim=0)
    rows: StateRows = metadata.hsexp_rows
    if num_prefills:
        prefills = rows[num_decodes : num_decodes + num_prefills]
        _prefill(mixer, paged, metadata, prefills, hidden_p, dt_p, out_p)
    if num_decodes:
        _decode(mixer, paged, rows[:num_decodes], hidden_d, dt_d, out_d)


def _prefill(
    mixer: Any,
    paged: LayerStates,
    metadata: Any,
    rows: StateRows,
    hidden_b_c: torch.Tensor,
    dt: torch.Tensor,
    out: torch.Tensor,
) -> None:
    ops, (conv_lines, ssm_pages) = paged.ops, mixer.kv_cache
    source, target = paged.of(rows.source), paged.of(rows.target)
    num_tokens, num_heads, num_groups = _sizes(mixer, hidden_b_c)
    # vLLM's kernel can write another line than it reads, but not for chunks shorter than a line.
    ops.carry_lines(conv_lines, source.lines, target.lines)
    hidden_b_c = causal_conv1d_fn(
        hidden_b_c.transpose(0, 1),
        mixer.conv_weights,
        mixer.conv1d.bias,
        activation=mixer.activation,
        conv_states=conv_lines.transpose(1, 2),
        has_initial_state=metadata.has_initial_states_p,
        cache_indices=target.lines,
        # Line 0 is never handed out and -1 means no line: the default would process it on a GPU.
        null_block_id=NO_LINE,
        metadata=metadata,
        query_start_loc=metadata.query_start_loc_p,
    ).transpose(0, 1)[:num_tokens]
    hidden, b, c = mixer.split_hidden_states_B_C_fn(hidden_b_c)
    initial_states = None
    if metadata.has_initial_states_p is not None and metadata.prep_initial_states:
        initial_states = ops.gather_states(ssm_pages, source.pages)
    states = mamba_chunk_scan_combined_varlen(
        hidden.view(num_tokens, num_heads, mixer.head_dim),
        dt,
        mixer.A,
        b.view(num_tokens, num_groups, -1),
        c.view(num_tokens, num_groups, -1),
        chunk_size=metadata.chunk_size,
        D=mixer.D,
        z=None,
        dt_bias=mixer.dt_bias,
        seq_idx=metadata.seq_idx_p,
        cu_seqlens=metadata.query_start_loc_p,
        cu_chunk_seqlens=metadata.cu_chunk_seqlen_p,
        last_chunk_indices=metadata.last_chunk_indices_p,
        initial_states=initial_states,
        return_intermediate_states=False,
        dt_softplus=True,
        dt_limit=(0.0, float("inf")),
        out=out.view(num_tokens, -1, mixer.head_dim),
        state_dtype=ssm_pages.dtype,
    )
    ops.scatter_states(ssm_pages, target.pages, states)


def _decode(
    mixer: Any,
    paged: LayerStates,
    rows: StateRows,
    hidden_b_c: torch.Tensor,
    dt: torch.Tensor,
    out: torch.Tensor,
) -> None:
    ops, (conv_lines, ssm_pages) = paged.ops, mixer.kv_cache
    source, target = paged.of(rows.source), paged.of(rows.target)
    num_tokens, num_heads, num_groups = _sizes(mixer, hidden_b_c)
    hidden_b_c = ops.conv_update(
        hidden_b_c,
        conv_lines,
        source.lines,
        target.lines,
        mixer.conv_weights,
        mixer.conv1d.bias,
        mixer.activation,
    )
    hidden, b, c = mixer.split_hidden_states_B_C_fn(hidden_b_c)
    # Expanded, not copied: zero strides tell the kernels that a head has one A, dt and D.
    ops.state_update(
        DecodeUpdate(
            ssm_pages=ssm_pages,
            source=source.pages,
            target=target.pages,
            x=hidden.view(num_tokens, num_heads, mixer.head_dim),
            dt=dt[:, :, None].expand(-1, -1, mixer.head_dim),
            a=mixer.A[:, None, None].expand(-1, mixer.head_dim, mixer.ssm_state_size).float(),
            b=b.view(num_tokens, num_groups, -1),
            c=c.view(num_tokens, num_groups, -1),
            d=mixer.D[:, None].expand(-1, mixer.head_dim),
            dt_bias=mixer.dt_bias[:, None].expand(-1, mixer.head_dim),
            out=out.view(num_tokens, num_heads, mixer.head_dim),
        )
    )


def _sizes(mixer: Any, hidden_b_c: torch.Tensor) -> tuple[int, int, int]:
    """Tokens, heads and groups of this rank."""
    return (
        hidden_b_c.shape[0],
        mixer.num_heads // mixer.tp_size,
        mixer.n_groups // mixer.tp_size,
    )
