"""Paged states on a GPU: Triton kernels that take the tables as they are."""

from typing import ClassVar

from vllm.platforms import current_platform

from hsexp.engine.kernels.conv_update import conv_update
from hsexp.engine.kernels.ops import DecodeUpdate, PagedOps
from hsexp.engine.kernels.state_update import fused_state_update
from hsexp.engine.kernels.transfer import carry_lines, gather_states, scatter_states


class FusedOps(PagedOps):
    """One launch an operation; nothing that the host would have to wait for."""

    name: ClassVar[str] = "triton-fused"

    carry_lines = staticmethod(carry_lines)
    gather_states = staticmethod(gather_states)
    scatter_states = staticmethod(scatter_states)
    conv_update = staticmethod(conv_update)

    def __init__(self) -> None:
        self._is_blackwell: bool = current_platform.is_device_capability_family(100)

    def state_update(self, update: DecodeUpdate) -> None:
        fused_state_update(update, is_blackwell=self._is_blackwell)
