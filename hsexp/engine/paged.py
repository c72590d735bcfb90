"""Paged states in the worker: member pages and convolution lines of every composite (S1, S2).

    composite id -> [ member page 0 | member page 1 | ... ]   and   convolution line
    state buffer    ssm_pages  [pages, heads of a page, head_dim, d_state]
                    conv_lines [lines, conv_width - 1, channels]

The scheduler sends rows of the table for states that are first used in a step; the layers read
and write through it. Decode passes page ids straight to the recurrent kernel, one call a member;
nothing is gathered. A step reads the state that its request had before (`source`) and writes the
one that it has now (`target`), so crossing a boundary copies no recurrent state.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.mamba_mixer2 import (
    causal_conv1d_fn,
    causal_conv1d_update,
    is_conv_state_dim_first,
    mamba_chunk_scan_combined_varlen,
    selective_state_update,
)

from hsexp.config.base import ConfigError
from hsexp.engine.manager import NewComposite
from hsexp.engine.settings import EngineSettings
from hsexp.geometry import StateGeometry
from hsexp.memory.checkpoint import NO_LINE
from hsexp.memory.organizations import S1, S2


@dataclass(frozen=True, kw_only=True)
class PagedLayout:
    """How a composite is cut into pages, in elements."""

    num_pages: int
    page_bytes: int
    num_members: int
    heads_per_member: int
    head_dim: int
    d_state: int
    conv_rows: int
    conv_channels: int
    line_bytes: int
    """Stride between convolution lines."""
    lines_per_page: int

    @classmethod
    def of(cls, settings: EngineSettings) -> "PagedLayout | None":
        """The layout, or None where states are contiguous (S0, D0).

        Raises:
            ConfigError: members would not end on head boundaries.
        """
        organization, model = settings.layout, settings.model
        if not isinstance(organization, S1):
            return None
        page_bytes = organization.page_bytes
        head_bytes = model.ssm_head_dim * model.d_state * model.dtype_bytes
        if StateGeometry.of(model).ssm_bytes % page_bytes or page_bytes % head_bytes:
            raise ConfigError(
                f"{model.name}: an SSM state of {model.ssm_heads} heads of {head_bytes} bytes does "
                f"not divide into head-aligned members of {page_bytes} bytes"
            )
        lines = organization.num_slots if isinstance(organization, S2) else 1
        return cls(
            num_pages=organization.plan(settings.budget_bytes).pools[0].num_pages,
            page_bytes=page_bytes,
            num_members=organization.num_members,
            heads_per_member=page_bytes // head_bytes,
            head_dim=model.ssm_head_dim,
            d_state=model.d_state,
            conv_rows=model.conv_width - 1,
            conv_channels=model.conv_channels,
            line_bytes=page_bytes // lines,
            lines_per_page=lines,
        )

    def views(
        self, pages: torch.Tensor, conv_dtype: torch.dtype, ssm_dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(conv_lines, ssm_pages) over a layer's raw pages [num_pages, page_bytes] int8."""
        flat = pages.reshape(-1)
        conv = flat.view(conv_dtype)
        conv_stride = self.line_bytes // conv.element_size()
        conv_lines = conv.as_strided(
            (self.num_pages * self.lines_per_page, self.conv_rows, self.conv_channels),
            (conv_stride, self.conv_channels, 1),
        )
        ssm_pages = flat.view(ssm_dtype).view(
            self.num_pages, self.heads_per_member, self.head_dim, self.d_state
        )
        return conv_lines, ssm_pages


class CompositeTable:
    """Member pages and convolution line by composite id; the same for all layers."""

    def __init__(self, layout: PagedLayout, device: torch.device) -> None:
        self.layout = layout
        rows = layout.num_pages
        self.members = torch.zeros((layout.num_members, rows), dtype=torch.int32, device=device)
        """[member, composite]: a contiguous row of page ids for each member."""
        self.lines = torch.full((rows,), NO_LINE, dtype=torch.int32, device=device)

    def enter(self, composites: Iterable[NewComposite]) -> None:
        """Rows of states that are first used in the coming step."""
        for composite in composites:
            members = composite.pages[: self.layout.num_members]
            self.members[:, composite.composite_id] = torch.tensor(members, dtype=torch.int32)
            # Without slabs the convolution has the page behind the members to itself.
            line = composite.pages[-1] if composite.line == NO_LINE else composite.line
            self.lines[composite.composite_id] = line


_table: CompositeTable | None = None


def open_table(layout: PagedLayout | None, device: torch.device) -> None:
    """One table for this worker process; None for contiguous states."""
    global _table
    _table = None if layout is None else CompositeTable(layout, device)


def table() -> CompositeTable | None:
    """The worker's table, if its states are paged."""
    return _table


def conv_ssm_forward(mixer: Any, projected_states: torch.Tensor, output: torch.Tensor) -> None:
    """Mamba2's convolution and scan over paged states; stock arithmetic, other addresses."""
    paged = table()
    assert paged is not None
    hidden_b_c, dt = torch.split(
        projected_states[..., mixer.tped_intermediate_size :],
        [mixer.tped_conv_size, mixer.tped_dt_size],
        dim=-1,
    )
    metadata = get_forward_context().attn_metadata[mixer.prefix]  # type: ignore[index,call-overload,union-attr]
    num_decodes, num_prefills = metadata.num_decodes, metadata.num_prefills
    decode_tokens, prefill_tokens = metadata.num_decode_tokens, metadata.num_prefill_tokens
    conv_lines, ssm_pages = mixer.kv_cache
    source, target = metadata.hsexp_source, metadata.hsexp_target
    _carry_conv_lines(paged, conv_lines, source, target, metadata.hsexp_has_state)
    total = decode_tokens + prefill_tokens
    parts = [decode_tokens, prefill_tokens]
    hidden_d, hidden_p = torch.split(hidden_b_c[:total], parts, dim=0)
    dt_d, dt_p = torch.split(dt[:total], parts, dim=0)
    out_d, out_p = torch.split(output[:total], parts, dim=0)
    conv_state = conv_lines if is_conv_state_dim_first() else conv_lines.transpose(-1, -2)
    if num_prefills:
        rows = slice(num_decodes, num_decodes + num_prefills)
        _prefill(
            mixer, paged, metadata, conv_state, ssm_pages, source[rows], target[rows],
            hidden_p, dt_p, out_p,
        )  # fmt: skip
    if num_decodes:
        rows = slice(0, num_decodes)
        _decode(
            mixer, paged, conv_state, ssm_pages, source[rows], target[rows], hidden_d, dt_d, out_d
        )


def _carry_conv_lines(
    paged: CompositeTable,
    conv_lines: torch.Tensor,
    source: torch.Tensor,
    target: torch.Tensor,
    has_state: torch.Tensor,
) -> None:
    """The convolution kernels work in place: a request that crosses takes its line along."""
    crossing = has_state & (source != target)
    if bool(crossing.any()):
        lines = paged.lines
        conv_lines[lines[target[crossing]].long()] = conv_lines[lines[source[crossing]].long()]


def _prefill(
    mixer: Any,
    paged: CompositeTable,
    metadata: Any,
    conv_state: torch.Tensor,
    ssm_pages: torch.Tensor,
    source: torch.Tensor,
    target: torch.Tensor,
    hidden_b_c: torch.Tensor,
    dt: torch.Tensor,
    out: torch.Tensor,
) -> None:
    num_tokens, layout = hidden_b_c.shape[0], paged.layout
    num_heads = mixer.num_heads // mixer.tp_size
    num_groups = mixer.n_groups // mixer.tp_size
    hidden_b_c = causal_conv1d_fn(
        hidden_b_c.transpose(0, 1),
        mixer.conv_weights,
        mixer.conv1d.bias,
        activation=mixer.activation,
        conv_states=conv_state,
        has_initial_state=metadata.has_initial_states_p,
        cache_indices=paged.lines[target],
        metadata=metadata,
        query_start_loc=metadata.query_start_loc_p,
    ).transpose(0, 1)[:num_tokens]
    hidden, b, c = mixer.split_hidden_states_B_C_fn(hidden_b_c)
    initial_states = None
    if metadata.has_initial_states_p is not None and metadata.prep_initial_states:
        # [members, prefills, heads, head_dim, d_state] -> [prefills, all heads, ...]
        gathered = ssm_pages[paged.members[:, source].long()].transpose(0, 1)
        initial_states = torch.where(
            metadata.has_initial_states_p[:, None, None, None],
            gathered.reshape(-1, num_heads, layout.head_dim, layout.d_state),
            0,
        )
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
    members = states.view(
        -1, layout.num_members, layout.heads_per_member, layout.head_dim, layout.d_state
    )
    ssm_pages[paged.members[:, target].long()] = members.transpose(0, 1)


def _decode(
    mixer: Any,
    paged: CompositeTable,
    conv_state: torch.Tensor,
    ssm_pages: torch.Tensor,
    source: torch.Tensor,
    target: torch.Tensor,
    hidden_b_c: torch.Tensor,
    dt: torch.Tensor,
    out: torch.Tensor,
) -> None:
    layout = paged.layout
    num_tokens = hidden_b_c.shape[0]
    num_heads = mixer.num_heads // mixer.tp_size
    num_groups = mixer.n_groups // mixer.tp_size
    hidden_b_c = causal_conv1d_update(
        hidden_b_c,
        conv_state,
        mixer.conv_weights,
        mixer.conv1d.bias,
        mixer.activation,
        conv_state_indices=paged.lines[target].unsqueeze(-1),
        max_query_len=1,
    )
    hidden, b, c = mixer.split_hidden_states_B_C_fn(hidden_b_c)
    a = mixer.A[:, None, None].expand(-1, mixer.head_dim, mixer.ssm_state_size).float()
    dt = dt[:, :, None].expand(-1, -1, mixer.head_dim)
    dt_bias = mixer.dt_bias[:, None].expand(-1, mixer.head_dim)
    d = mixer.D[:, None].expand(-1, mixer.head_dim)
    b = b.view(num_tokens, num_groups, -1)
    c = c.view(num_tokens, num_groups, -1)
    hidden = hidden.view(num_tokens, num_heads, mixer.head_dim)
    out = out.view(num_tokens, num_heads, mixer.head_dim)
    for member in range(layout.num_members):
        heads = slice(member * layout.heads_per_member, (member + 1) * layout.heads_per_member)
        groups = _groups_of(heads, num_heads, num_groups)
        result = torch.empty_like(out[:, heads]).contiguous()
        selective_state_update(
            ssm_pages,
            hidden[:, heads].contiguous(),
            dt[:, heads],
            a[heads],
            b[:, groups].contiguous(),
            c[:, groups].contiguous(),
            d[heads],
            dt_bias[heads],
            dt_softplus=True,
            # Contiguous columns: the CPU kernel ignores an index tensor's stride.
            state_batch_indices=paged.members[member][source].unsqueeze(-1),
            dst_state_batch_indices=paged.members[member][target].unsqueeze(-1),
            out=result,
        )
        out[:, heads] = result


def _groups_of(heads: slice, num_heads: int, num_groups: int) -> slice:
    """Groups of B and C that a member's heads use; checked to be whole at the start."""
    heads_per_group = num_heads // num_groups
    return slice(heads.start // heads_per_group, -(-heads.stop // heads_per_group))
