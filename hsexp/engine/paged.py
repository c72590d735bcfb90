"""Where paged states lie: member pages and convolution line of every composite.

    composite id -> [ member page 0 | member page 1 | ... ]   and   convolution line
    state buffer    ssm_pages  [pages, heads of a page, head_dim, d_state]
                    conv_lines [lines, conv_width - 1, channels]

States are paged in S1 and S2, and in every organization where an attention layer has several
recurrent layers: then an id names the composites of all of them, and each layer has its own part of
the table. Page ids are the same in the buffers of all attention layers.

The scheduler sends rows of the table for states that are first used in a step. A step reads the
state that its request had before (source) and writes the one that it has now (target), which are
the same except at a boundary. Both are looked up in the table once a step, before the first layer;
kernels get the places that were found.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import vllm.envs as envs
from vllm.config.mamba import MambaBackendEnum
from vllm.utils.math_utils import round_up
from vllm.utils.torch_utils import async_tensor_h2d

from hsexp.config.base import ConfigError
from hsexp.engine.kernels.ops import NO_PAGE, PagedOps
from hsexp.engine.manager import NULL_ID, NewComposite
from hsexp.engine.settings import EngineSettings
from hsexp.memory.checkpoint import NO_LINE
from hsexp.memory.geometry import ModelConfig


@dataclass(frozen=True, kw_only=True)
class PagedLayout:
    """How a composite is cut into pages, in elements."""

    num_pages: int
    page_bytes: int
    num_composites: int
    """Recurrent layers of an attention layer; their states have the same id."""
    num_members: int
    """Pages of one composite's SSM state."""
    heads_per_member: int
    head_dim: int
    d_state: int
    conv_rows: int
    conv_channels: int
    conv_offset_bytes: int
    """Before the first composite's convolution state in its line."""
    conv_step_bytes: int
    """From one composite's to the next; 0 where each has its own line."""
    line_bytes: int
    """Stride between convolution lines."""
    lines_per_page: int

    @classmethod
    def of(cls, settings: EngineSettings) -> "PagedLayout | None":
        """The layout, or None where vLLM's own tables find the states: one page a state.

        Raises:
            ConfigError: as `require_members`.
        """
        places, model = settings.layout.places, settings.model
        if not isinstance(model, ModelConfig):
            return None
        if model.composites_per_checkpoint == 1 and not settings.paged:
            return None
        require_members(settings)
        return cls(
            num_pages=settings.plan.pools[-1].num_pages,
            page_bytes=places.page_bytes,
            num_composites=model.composites_per_checkpoint,
            num_members=places.num_members,
            heads_per_member=model.ssm_heads // places.num_members,
            head_dim=model.ssm_head_dim,
            d_state=model.d_state,
            conv_rows=model.conv_width - 1,
            conv_channels=model.conv_channels,
            conv_offset_bytes=places.conv_offset_bytes,
            conv_step_bytes=places.conv_step_bytes,
            line_bytes=places.page_bytes // places.lines_per_page,
            lines_per_page=places.lines_per_page,
        )

    def views(
        self,
        pages: torch.Tensor,
        conv_dtype: torch.dtype,
        ssm_dtype: torch.dtype,
        *,
        composite: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(conv_lines, ssm_pages) over a layer's raw pages [num_pages, page_bytes] int8.

        Args:
            composite: which of its attention layer's recurrent layers it is.
        """
        flat = pages.reshape(-1)
        first = self.conv_offset_bytes + composite * self.conv_step_bytes
        conv, ssm = flat[first:].view(conv_dtype), flat.view(ssm_dtype)
        conv_lines = conv.as_strided(
            (self.num_pages * self.lines_per_page, self.conv_rows, self.conv_channels),
            (self.line_bytes // conv.element_size(), self.conv_channels, 1),
        )
        head = self.head_dim * self.d_state
        ssm_pages = ssm.as_strided(
            (self.num_pages, self.heads_per_member, self.head_dim, self.d_state),
            (self.page_bytes // ssm.element_size(), head, self.d_state, 1),
        )
        return conv_lines, ssm_pages


def require_members(settings: EngineSettings) -> None:
    """A state's heads must divide evenly among its pages, and a page into whole lines: kernels
    step from line to line through all pages.

    Raises:
        ConfigError: the sizes do not divide; names them.
    """
    places, model = settings.layout.places, settings.model
    if not isinstance(model, ModelConfig):
        return  # one page a state
    page_bytes, num_members = places.page_bytes, places.num_members
    head_bytes = model.ssm_head_dim * model.d_state * model.ssm_element_bytes
    if model.ssm_heads % num_members or model.ssm_heads // num_members * head_bytes > page_bytes:
        raise ConfigError(
            f"{model.name}: an SSM state of {model.ssm_heads} heads of {head_bytes} bytes does "
            f"not divide into head-aligned members of {page_bytes} bytes"
        )
    element_bytes = max(model.dtype_bytes, model.ssm_element_bytes)
    if page_bytes % (places.lines_per_page * element_bytes):
        raise ConfigError(
            f"{model.name}: a page of {page_bytes} bytes does not divide into "
            f"{places.lines_per_page} convolution lines of whole elements"
        )


@dataclass(frozen=True, kw_only=True)
class StateRows:
    """Where the states of a step's requests lie, decodes first: [place, request] int32.

    The places of all layers of an attention layer, as in `CompositeTable.places`; a layer takes its
    own (`LayerStates.of`).
    """

    source: torch.Tensor
    """What a request reads; the null id's places where it has no state yet."""
    target: torch.Tensor
    """What it writes; the null id's places for a row that only pads a batch."""

    def __getitem__(self, requests: slice) -> "StateRows":
        return StateRows(source=self.source[:, requests], target=self.target[:, requests])


def composites_of(common: Any, grid: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(source, target): ids [requests] of the composites that a step's requests read and write, or
    the null id. Read from vLLM's common metadata, without waiting for the device.

    Args:
        common: CommonAttentionMetadata of the Mamba group.
        grid: tokens between checkpoints.
    """
    ids, computed = common.block_table_tensor, common.compute_num_computed_tokens()

    def at(num_tokens: torch.Tensor) -> torch.Tensor:
        position = ((num_tokens - 1) // grid).clamp(min=0).long()
        return ids.gather(1, position.unsqueeze(1)).squeeze(1)

    return torch.where(computed > 0, at(computed), NULL_ID), at(common.seq_lens)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerPlaces:
    """Where the states of some rows lie in one layer."""

    pages: torch.Tensor
    """[member, row]: page ids, side by side for each member."""
    lines: torch.Tensor
    """[row]"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerStates:
    """What a recurrent layer needs to find its states."""

    ops: PagedOps
    members: torch.Tensor
    """[member, composite id]: a contiguous row of page ids for each member."""
    lines: torch.Tensor
    """[composite id]"""
    first_place: int
    """Of its members among the places of a composite."""
    line_place: int

    def of(self, places: torch.Tensor) -> LayerPlaces:
        """This layer's part of [place, row]."""
        pages = places[self.first_place : self.first_place + len(self.members)]
        return LayerPlaces(pages=pages, lines=places[self.line_place])


def ops_for(device: torch.device) -> PagedOps:
    """The implementation for the device that holds the states.

    Raises:
        ConfigError: there is none.
    """
    if device.type == "cuda":
        from hsexp.engine.kernels.fused import FusedOps

        return FusedOps()
    if device.type == "cpu":
        from hsexp.engine.kernels.cpu import CpuOps

        return CpuOps()
    raise ConfigError(f"paged states need a device of type cpu or cuda, got {device.type}")


class CompositeTable:
    """Member pages and convolution lines by composite id; the same for all attention layers."""

    def __init__(
        self, layout: PagedLayout, composites: Mapping[str, int], device: torch.device
    ) -> None:
        self.layout = layout
        self.ops = ops_for(device)
        self._composites = composites
        # In whole 16 bytes, so that all layers' parts are aligned alike: one compilation for all.
        rows = round_up(layout.num_pages, 4)
        num_members = layout.num_composites * layout.num_members
        num_places = num_members + layout.num_composites
        self.places = torch.full((num_places, rows), NO_PAGE, dtype=torch.int32, device=device)
        """[place, composite id]: the members, then the lines. Nothing enters the null id."""
        self.members, self.lines = self.places[:num_members], self.places[num_members:]
        """[member, composite id], members of one layer after those of another, and
        [layer of an attention layer, composite id]."""
        self.lines.fill_(NO_LINE)

    def bind(self, layer: Any, pages: torch.Tensor) -> None:
        """Give a MambaMixer2 layer its part of the table, and its views of its raw pages."""
        composite, num_members = self._composites[layer.prefix], self.layout.num_members
        layer.kv_cache = self.layout.views(pages, *layer.get_state_dtype(), composite=composite)
        layer.hsexp_states = LayerStates(
            ops=self.ops,
            members=self.members[composite * num_members : (composite + 1) * num_members],
            lines=self.lines[composite],
            first_place=composite * num_members,
            line_place=len(self.members) + composite,
        )

    def enter(self, composites: Iterable[NewComposite]) -> None:
        """Enter the rows of states first used in the coming step; one copy to the device.

        An id can come twice, when its first request was preempted in the same step: the last one
        counts.
        """
        latest = {composite.composite_id: composite for composite in composites}
        if not latest:
            return
        num_members, num_lines = len(self.members), len(self.lines)
        # Without slabs each convolution state lies in a page, one of the last of the checkpoint.
        rows = [
            (
                key,
                *new.pages[:num_members],
                *(new.pages[-num_lines:] if new.line == NO_LINE else [new.line] * num_lines),
            )
            for key, new in latest.items()
        ]
        packed = async_tensor_h2d(rows, dtype=torch.int32, device=self.places.device)
        self.places[:, packed[:, 0].long()] = packed[:, 1:].T

    def find(
        self, source: torch.Tensor, target: torch.Tensor, staged: StateRows | None = None
    ) -> StateRows:
        """Where composites lie; one gather for what is read and one for what is written, and all
        layers use them.

        Args:
            source, target: [requests] int32, composite ids, the null id for none.
            staged: where to write the places; a captured graph reads them there.
        """
        if staged is None:
            staged = StateRows(
                source=self.places.new_empty((len(self.places), len(source))),
                target=self.places.new_empty((len(self.places), len(target))),
            )
        torch.index_select(self.places, 1, source, out=staged.source)
        torch.index_select(self.places, 1, target, out=staged.target)
        return staged


class RowBuffers:
    """Where captured CUDA graphs find places: the same addresses at every replay."""

    def __init__(self, table: CompositeTable, max_rows: int) -> None:
        null = torch.full((max_rows,), NULL_ID, dtype=torch.int32, device=table.places.device)
        self._table, self._max_rows = table, max_rows
        self._rows = table.find(null, null)

    def stage(self, source: torch.Tensor, target: torch.Tensor) -> StateRows:
        """The places of composites, at the fixed addresses unless no graph has so many rows."""
        num_rows = len(target)
        staged = self._rows[:num_rows] if num_rows <= self._max_rows else None
        return self._table.find(source, target, staged)


_table: CompositeTable | None = None


def open_table(
    layout: PagedLayout | None,
    composites: Mapping[str, int],
    vllm_config: Any,
    device: torch.device,
) -> None:
    """Open the table of this worker process; contiguous states (no layout) have none.

    Args:
        composites: which of its attention layer's composites a recurrent layer has, by name.

    Raises:
        ConfigError: vLLM is asked for a state update that our kernels do not replace.
    """
    global _table
    if layout is not None:
        _require_plain_updates(vllm_config)
    _table = None if layout is None else CompositeTable(layout, composites, device)


def table() -> CompositeTable | None:
    """The worker's table, if its states are paged."""
    return _table


def _require_plain_updates(vllm_config: Any) -> None:
    """Our kernels replace vLLM's own Triton update. They round states to nearest, and keep the
    channels of a convolution state side by side."""
    mamba = vllm_config.mamba_config
    if mamba.backend not in (MambaBackendEnum.TRITON, MambaBackendEnum.CPU):
        name = mamba.backend.name.lower()
        raise ConfigError(f"mamba_config.backend must be triton for paged states, got {name}")
    if mamba.enable_stochastic_rounding:
        raise ConfigError(
            "mamba_config.enable_stochastic_rounding must be false for paged states, got true"
        )
    if envs.VLLM_SSM_CONV_STATE_LAYOUT not in (None, "SD"):
        raise ConfigError(
            "VLLM_SSM_CONV_STATE_LAYOUT must be SD for paged states, got "
            f"{envs.VLLM_SSM_CONV_STATE_LAYOUT}"
        )
