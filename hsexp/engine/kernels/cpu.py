"""Paged states with vLLM's own operations: what runs on a CPU, and the fused kernel's reference."""

from dataclasses import replace
from typing import ClassVar

import torch
from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update
from vllm.model_executor.layers.mamba.ops.mamba_ssm import selective_state_update

from hsexp.engine.kernels.ops import NO_PAGE, DecodeUpdate, PagedOps
from hsexp.memory.checkpoint import NO_LINE


class CpuOps(PagedOps):
    """The CPU's kernels work in place. The recurrent one has a destination index, but advances the
    source as well, which may be a checkpoint that others reuse. So the state of a row that crosses
    a boundary is copied first."""

    name: ClassVar[str] = "cpu-ops"

    def carry_lines(
        self, conv_lines: torch.Tensor, source: torch.Tensor, target: torch.Tensor
    ) -> None:
        _carry(conv_lines, source[None], target[None], none=NO_LINE)

    def gather_states(self, ssm_pages: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        # [members, rows, heads of a page, ...] -> [rows, all heads, ...]
        states = ssm_pages[source].transpose(0, 1).flatten(1, 2)
        return torch.where((source[0] > NO_PAGE)[:, None, None, None], states, 0)

    def scatter_states(
        self, ssm_pages: torch.Tensor, target: torch.Tensor, states: torch.Tensor
    ) -> None:
        per_member = states.unflatten(1, (target.shape[0], ssm_pages.shape[1])).transpose(0, 1)
        owned = target[0] > NO_PAGE
        ssm_pages[target[:, owned]] = per_member[:, owned]

    def conv_update(
        self,
        x: torch.Tensor,
        conv_lines: torch.Tensor,
        source: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        activation: str | None,
    ) -> torch.Tensor:
        self.carry_lines(conv_lines, source, target)
        updated: torch.Tensor = causal_conv1d_update(
            x,
            conv_lines.transpose(1, 2),
            weight,
            bias,
            activation,
            conv_state_indices=target.unsqueeze(1),
            max_query_len=1,
            null_block_id=NO_LINE,
        )
        return updated

    def state_update(self, update: DecodeUpdate) -> None:
        _carry(update.ssm_pages, update.source, update.target, none=NO_PAGE)
        unfused_state_update(replace(update, source=update.target))


def _carry(states: torch.Tensor, source: torch.Tensor, target: torch.Tensor, *, none: int) -> None:
    """Copy what lies at the places of `source` to those of `target`, [places of a state, rows];
    zeros where there is no source.

    Waits for the device to learn which rows cross.

    Args:
        none: the place of a row that has none.
    """
    crossing = (target[0] > none) & (source[0] != target[0])
    if bool(crossing.any()):
        source, target = source[:, crossing], target[:, crossing]
        exists = (source > none).view(*source.shape, *[1] * (states.dim() - 1))
        states[target] = torch.where(exists, states[source], 0)


def unfused_state_update(update: DecodeUpdate) -> None:
    """`fused_state_update` as one call of vLLM's selective_state_update for each member.

    vLLM's Triton kernel leaves the source as it is; its CPU kernel needs source and target to be
    the same.
    """
    heads_per_member = update.ssm_pages.shape[1]
    heads_per_group = update.x.shape[1] // update.b.shape[1]
    # B and C by head: a member's heads may begin or end inside a group.
    b = update.b.repeat_interleave(heads_per_group, dim=1)
    c = update.c.repeat_interleave(heads_per_group, dim=1)
    for member, (source, target) in enumerate(zip(update.source, update.target, strict=True)):
        heads = slice(member * heads_per_member, (member + 1) * heads_per_member)
        result = torch.empty_like(update.out[:, heads], memory_format=torch.contiguous_format)
        selective_state_update(
            update.ssm_pages,
            update.x[:, heads].contiguous(),
            update.dt[:, heads],
            update.a[heads],
            b[:, heads].contiguous(),
            c[:, heads].contiguous(),
            # By name: on a CPU vLLM's function has z before dt_bias.
            D=update.d[heads],
            dt_bias=update.dt_bias[heads],
            dt_softplus=True,
            # Columns of stride 1: the CPU kernel ignores an index tensor's stride.
            state_batch_indices=source.unsqueeze(1),
            dst_state_batch_indices=target.unsqueeze(1),
            out=result,
        )
        update.out[:, heads] = result
