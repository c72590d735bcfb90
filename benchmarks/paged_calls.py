"""Every call of a paged kernel in the benchmark and in the checks of large pools, beside the call
of vLLM's that it stands for. Where a kernel takes other arguments, this file is adapted and no
other.
"""

from dataclasses import dataclass

import torch
from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update
from vllm.model_executor.layers.mamba.ops.mamba_ssm import selective_state_update

from hsexp.engine.kernels import transfer
from hsexp.engine.kernels.conv_update import conv_update
from hsexp.engine.kernels.cpu import unfused_state_update
from hsexp.engine.kernels.fused import FusedOps
from hsexp.engine.kernels.ops import DecodeUpdate
from hsexp.memory.checkpoint import NO_LINE


@dataclass(frozen=True, kw_only=True)
class Paged:
    """States of one layer in pages, and where each composite lies."""

    pages: torch.Tensor
    """[pages, heads of a page, head_dim, d_state]"""
    members: torch.Tensor
    """[members of a state, composites] int32"""
    conv_lines: torch.Tensor
    """[lines, width - 1, channels]"""
    lines: torch.Tensor
    """[composites] int32"""

    def at(self, rows: torch.Tensor) -> "Places":
        """Look the places of composites up, as an engine does once a step for all layers."""
        return Places(
            pages=self.members.index_select(1, rows), lines=self.lines.index_select(0, rows)
        )


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where the states of a batch's rows lie; what a kernel reads it also writes."""

    pages: torch.Tensor
    """[members of a state, rows] int32"""
    lines: torch.Tensor
    """[rows] int32"""


@dataclass(frozen=True, kw_only=True)
class Stock:
    """States of one layer as vLLM has them, at any stride."""

    states: torch.Tensor
    """[states, heads, head_dim, d_state]"""
    histories: torch.Tensor
    """[states, width - 1, channels]"""


@dataclass(frozen=True, kw_only=True)
class Token:
    """One token for each row of a decode batch, with the layer's weights; as in `DecodeUpdate`."""

    x: torch.Tensor
    dt: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    d: torch.Tensor
    dt_bias: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Filter:
    """The weights of a convolution."""

    weight: torch.Tensor
    bias: torch.Tensor


# -- decode ----------------------------------------------------------------------------------------


class PagedUpdate:
    """Recurrent states in place. What the host prepares once is prepared here, not in a launch."""

    def __init__(self, paged: Paged, places: Places, token: Token) -> None:
        self.out = torch.empty_like(token.x, memory_format=torch.contiguous_format)
        self._ops = FusedOps()
        self._update = DecodeUpdate(
            ssm_pages=paged.pages,
            source=places.pages,
            target=places.pages,
            out=self.out,
            **vars(token),
        )

    def fused(self) -> None:
        self._ops.state_update(self._update)

    def unfused(self) -> None:
        """A launch of vLLM's kernel for each member."""
        unfused_state_update(self._update)


def stock_update(stock: Stock, rows: torch.Tensor, token: Token, out: torch.Tensor) -> None:
    selective_state_update(
        stock.states, token.x, token.dt, token.a, token.b, token.c,
        D=token.d, dt_bias=token.dt_bias, dt_softplus=True,
        state_batch_indices=rows, dst_state_batch_indices=rows, out=out,
    )  # fmt: skip


def paged_conv(paged: Paged, places: Places, x: torch.Tensor, weights: Filter) -> torch.Tensor:
    """Overwrites x."""
    lines = places.lines
    return conv_update(x, paged.conv_lines, lines, lines, weights.weight, weights.bias, "silu")


def stock_conv(stock: Stock, rows: torch.Tensor, x: torch.Tensor, weights: Filter) -> torch.Tensor:
    """Overwrites x."""
    result: torch.Tensor = causal_conv1d_update(
        x, stock.histories.transpose(1, 2), weights.weight, weights.bias, "silu",
        conv_state_indices=rows, null_block_id=NO_LINE,
    )  # fmt: skip
    return result


# -- prefill ---------------------------------------------------------------------------------------


def paged_gather(paged: Paged, places: Places) -> torch.Tensor:
    return transfer.gather_states(paged.pages, places.pages)


def stock_gather(stock: Stock, rows: torch.Tensor) -> torch.Tensor:
    return stock.states[rows]


def paged_scatter(paged: Paged, places: Places, states: torch.Tensor) -> None:
    transfer.scatter_states(paged.pages, places.pages, states)


def stock_scatter(stock: Stock, rows: torch.Tensor, states: torch.Tensor) -> None:
    stock.states[rows] = states


def carry(paged: Paged, source: Places, target: Places) -> None:
    """Convolution lines from sources to targets."""
    transfer.carry_lines(paged.conv_lines, source.lines, target.lines)
