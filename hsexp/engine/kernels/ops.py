"""What a Mamba2 layer does with paged states. One implementation a kind of device."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch


class PagedOps(ABC):
    """Operations over a layer's states, which are named by composite ids.

    `members` [members of a state, composites] and `lines` [composites] say where a composite lies;
    `source` and `target` [rows] name the composites that the rows of a step read and write, 0 for
    none. All are int32. Rows whose target is none touch no state.
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
        """Convolve one new token [rows, channels] with its history, which moves on by it."""

    @abstractmethod
    def state_update(
        self,
        ssm_pages: torch.Tensor,
        members: torch.Tensor,
        source: torch.Tensor,
        target: torch.Tensor,
        x: torch.Tensor,
        dt: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        d: torch.Tensor,
        dt_bias: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Advance the recurrent states by one token; shapes as in `fused_state_update`."""
