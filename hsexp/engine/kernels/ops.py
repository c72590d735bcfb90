"""What a Mamba2 layer does with paged states. Each kind of device has one implementation."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeUpdate:
    """One token for each row of a decode batch: the states of a layer, the inputs, the output."""

    ssm_pages: torch.Tensor
    """[pages, heads of a page, head_dim, d_state], read and written."""
    members: torch.Tensor
    """[members of a state, composites] int32, page ids; 0 is the null page."""
    source: torch.Tensor
    """[rows] int32, the composite that a row reads. A row without a positive one starts from a
    state of zeros."""
    target: torch.Tensor
    """[rows] int32, the composite that a row writes; all differ. A row without a positive one reads
    and writes no page, and its output is zero."""
    x: torch.Tensor
    """[rows, heads, head_dim]"""
    dt: torch.Tensor
    """[rows, heads, head_dim], before softplus."""
    a: torch.Tensor
    """[heads, head_dim, d_state] float32"""
    b: torch.Tensor
    """[rows, groups, d_state]"""
    c: torch.Tensor
    """[rows, groups, d_state]"""
    d: torch.Tensor
    """[heads, head_dim]"""
    dt_bias: torch.Tensor
    """[heads, head_dim]"""
    out: torch.Tensor
    """[rows, heads, head_dim], written."""


class PagedOps(ABC):
    """Operations over a layer's states, which are named by composite ids.

    `members` [members of a state, composites] and `lines` [composites] say where a composite lies;
    `source` and `target` [rows] name the composites that the rows of a step read and write, 0 for
    none. All are int32. Rows without a target touch no state.
    """

    name: ClassVar[str]
    """What an engine reports as its kernel path."""

    @abstractmethod
    def carry_lines(
        self,
        conv_lines: torch.Tensor,
        lines: torch.Tensor,
        source: torch.Tensor,
        target: torch.Tensor,
    ) -> None:
        """Copy convolution lines [width - 1, channels] from sources to other targets."""

    @abstractmethod
    def gather_states(
        self, ssm_pages: torch.Tensor, members: torch.Tensor, source: torch.Tensor
    ) -> torch.Tensor:
        """Dense states [rows, heads, head_dim, d_state]; zeros where there is no source."""

    @abstractmethod
    def scatter_states(
        self,
        ssm_pages: torch.Tensor,
        members: torch.Tensor,
        target: torch.Tensor,
        states: torch.Tensor,
    ) -> None:
        """Write dense states to their member pages."""

    @abstractmethod
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
        """Convolve one new token [rows, channels] with its history, and append it there."""

    @abstractmethod
    def state_update(self, update: DecodeUpdate) -> None:
        """Advance the recurrent states by one token."""
