"""What a Mamba2 layer does with paged states. Each kind of device has one implementation."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

NO_PAGE = 0
"""The page of a row that has no state; never handed out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeUpdate:
    """One token for each row of a decode batch: the states of a layer, the inputs, the output."""

    ssm_pages: torch.Tensor
    """[pages, heads of a page, head_dim, d_state], read and written."""
    source: torch.Tensor
    """[members of a state, rows] int32, the pages that a row reads. A row without positive ones
    starts from a state of zeros."""
    target: torch.Tensor
    """[members of a state, rows] int32, the pages that a row writes; all differ. A row without
    positive ones reads and writes no page, and its output is zero."""
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
    """Operations over a layer's states, at places that were looked up before.

    A place is what a row of a step reads (`source`) or writes (`target`), as int32:

        pages [members of a state, rows]    page ids; NO_PAGE (0) for none
        lines [rows]                        convolution lines; NO_LINE (-1) for none

    Rows lie side by side (stride 1), and members may lie apart. An engine looks all places up once
    a step and stages them for all layers (`paged.CompositeTable.find`), so a kernel loads a place
    and then the state. From tables by composite id, without an engine:

        pages = members.index_select(1, composites)    members [members of a state, composite ids]
        lines = line_of.index_select(0, composites)    line_of [composite ids]

    Rows without a target touch no state.
    """

    name: ClassVar[str]
    """What an engine reports as its kernel path."""

    @abstractmethod
    def carry_lines(
        self, conv_lines: torch.Tensor, source: torch.Tensor, target: torch.Tensor
    ) -> None:
        """Copy convolution lines [width - 1, channels] from sources to other targets.

        Args:
            source, target: lines.
        """

    @abstractmethod
    def gather_states(self, ssm_pages: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """Dense states [rows, heads, head_dim, d_state]; zeros where there is no source.

        Args:
            source: pages.
        """

    @abstractmethod
    def scatter_states(
        self, ssm_pages: torch.Tensor, target: torch.Tensor, states: torch.Tensor
    ) -> None:
        """Write dense states to their member pages.

        Args:
            target: pages.
        """

    @abstractmethod
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
        """Convolve one new token [rows, channels] with its history, and append it there.

        Args:
            source, target: lines.
        """

    @abstractmethod
    def state_update(self, update: DecodeUpdate) -> None:
        """Advance the recurrent states by one token."""
