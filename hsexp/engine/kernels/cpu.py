"""Paged states with vLLM's own operations: what runs on a CPU, and the fused kernel's reference."""

from dataclasses import replace
from typing import ClassVar

import torch
from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update
from vllm.model_executor.layers.mamba.ops.mamba_ssm import selective_state_update

from hsexp.engine.kernels.ops import DecodeUpdate, PagedOps
from hsexp.memory.checkpoint import NO_LINE


class CpuOps(PagedOps):
    """The CPU's kernels work in place. The recurrent one has a destination index, but advances the
    source as well, which may be a checkpoint that others reuse. So the state of a row that crosses
    a boundary is copied first."""

    name: ClassVar[str] = "cpu-ops"

    def carry_lines(
        self,
        conv_lines: torch.Tensor,
        lines: torch.Tensor,
        source: torch.Tensor,
        target: torch.Tensor,
    ) -> None:
        _carry(conv_lines, lines[None], source, target)

    def gather_states(
        self, ssm_pages: torch.Tensor, members: torch.Tensor, source: torch.Tensor
    ) -> torch.Tensor:
        # [members, rows, heads of a page, ...] -> [rows, all heads, ...]
        states = ssm_pages[members[:, source]].transpose(0, 1).flatten(1, 2)
        return torch.where((source > 0)[:, None, None, None], states, 0)

    def scatter_states(
        self,
        ssm_pages: torch.Tensor,
        members: torch.Tensor,
        target: torch.Tensor,
        states: torch.Tensor,
    ) -> None:
        per_member = states.unflatten(1, (members.shape[0], ssm_pages.shape[1])).transpose(0, 1)
        owned = target > 0
        ssm_pages[members[:, target[owned]]] = per_member[:, owned]

    def conv_update(
        self,
        x: torch.Tensor,
        conv_lines: torch.Tensor,
        lines: torch.Tensor,
        source: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        activation: str | None,
    ) -> torch.Tensor:
        self.carry_lines(conv_lines, lines, source, target)
        updated: torch.Tensor = causal_conv1d_update(
            x,
            conv_lines.transpose(1, 2),
            weight,
            bias,
            activation,
            conv_state_indices=lines[target].unsqueeze(1),
            max_query_len=1,
            null_block_id=NO_LINE,
        )
        return updated

    def state_update(self, update: DecodeUpdate) -> None:
        _carry(update.ssm_pages, update.members, update.source, update.target)
        unfused_state_update(replace(update, source=update.target))


def _carry(
    places: torch.Tensor, where: torch.Tensor, source: torch.Tensor, target: torch.Tensor
) -> None:
    """Copy what lies at `where[:, source]` to `where[:, target]`; zeros where there is no source.

    Waits for the device to learn which rows cross.
    """
    crossing = (target > 0) & (source != target)
    if bool(crossing.any()):
        source, target = source[crossing], target[crossing]
        shape = (1, -1) + (1,) * (places.dim() - 1)
        found = places[where[:, source]]
        places[where[:, target]] = torch.where((source > 0).view(shape), found, 0)


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
    for member, pages in enumerate(update.members):
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
            # Contiguous columns: the CPU kernel ignores an index tensor's stride.
            state_batch_indices=pages[update.source].unsqueeze(1),
            dst_state_batch_indices=pages[update.target].unsqueeze(1),
            out=result,
        )
        update.out[:, heads] = result
