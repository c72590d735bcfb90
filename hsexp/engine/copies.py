"""What a worker does for forks and for states in place: changed table entries, and copies of pages,
states and lines.

The order of a step: tables change, new pages are zeroed, copies, kernels. A copied page may be the
source of a later copy of the same step; copies that do not depend on each other are done at once.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from vllm.utils.torch_utils import async_tensor_h2d

from hsexp.engine.forks import TableChange
from hsexp.memory import Copy
from hsexp.memory.checkpoint import NO_LINE


def carry_forks(runner: Any) -> None:
    """Make a model runner do the fork work of its steps; called once its caches exist."""
    places, stock = Places.of(runner), runner._update_states

    def update_states(scheduler_output: Any) -> Any:
        work = scheduler_output.hsexp_forks
        if work is None:
            return stock(scheduler_output)
        change_tables(runner, work.changes)
        corrections = stock(scheduler_output)  # zeroes new pages
        places.carry_out(work.copies)
        return corrections

    runner._update_states = update_states


def change_tables(runner: Any, changes: Iterable[TableChange]) -> None:
    """Enter new pages in running requests' tables: in vLLM's record of the request, and in its row
    of the persistent batch, if it has one."""
    batch = runner.input_batch
    for change in changes:
        runner.requests[change.request_id].block_ids[change.group][change.position] = change.page
        row = batch.req_id_to_index.get(change.request_id)
        if row is not None:
            table = batch.block_table[change.group]
            per_page = table.blocks_per_kv_block  # kernels may count in smaller blocks
            first = change.position * per_page
            table.block_table.np[row, first : first + per_page] = [
                change.page * per_page + i for i in range(per_page)
            ]


_WORDS = (torch.complex128, torch.int64, torch.int32, torch.int16, torch.int8)
"""Types by size; all are copied as bits."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """The raw memory of all layers."""

    pages: dict[str, list[torch.Tensor]]
    """By kind of copy: [num_pages, page_bytes] int8 for each buffer. Layers may share a buffer."""
    lines: list[torch.Tensor]
    """Convolution lines by layer, where they lie outside a state's pages."""

    @classmethod
    def of(cls, runner: Any) -> Self:
        """The places of a model runner whose caches are bound."""
        pools = runner.kv_cache_config.settings.plan.pools
        layers = runner.compilation_config.static_forward_context.values()
        caches = [layer.kv_cache for layer in layers if hasattr(layer, "kv_cache")]
        states = [cache for cache in caches if not isinstance(cache, torch.Tensor)]
        attention = [cache for cache in caches if isinstance(cache, torch.Tensor)]
        return cls(
            pages={
                "attention": _buffers(attention, pools[0].num_pages),
                "state": _buffers([ssm for _, ssm in states], pools[-1].num_pages),
            },
            lines=[conv for conv, _ in states],
        )

    def carry_out(self, copies: Sequence[Copy]) -> None:
        """Do the copies as if one after the other, without waiting for the device."""
        for batch in _independent(copies):
            for kind, buffers in self.pages.items():
                pairs = [
                    pair
                    for copy in batch
                    if copy.kind == kind
                    for pair in zip(copy.source, copy.target, strict=True)
                ]
                _copy(buffers, pairs)
            _copy(
                self.lines,
                [
                    (copy.source_line, copy.target_line)
                    for copy in batch
                    if copy.target_line != NO_LINE
                ],
            )


def _copy(places: Sequence[torch.Tensor], pairs: Sequence[tuple[int, int]]) -> None:
    """Copy rows, (from, to), in every buffer."""
    if not pairs:
        return
    sources, targets = async_tensor_h2d(
        list(pairs), dtype=torch.int64, device=places[0].device
    ).unbind(1)
    for place in map(in_words, places):
        place[targets] = place[sources]


def in_words(place: torch.Tensor) -> torch.Tensor:
    """The rows of a buffer as [rows, words], in the largest words that they are made of: 16 bytes
    where their size, distance and address allow it.

    Args:
        place: [rows, ...], each row contiguous.
    """
    rows = place.view(len(place), -1).view(torch.int8)
    bounds = (rows.shape[1], rows.stride(0), rows.data_ptr())
    word = next(word for word in _WORDS if all(n % word.itemsize == 0 for n in bounds))
    return rows.view(word)


def _independent(copies: Sequence[Copy]) -> Iterator[list[Copy]]:
    """The copies in order, split into batches whose copies do not depend on each other."""
    batch: list[Copy] = []
    written: set[tuple[str, int]] = set()
    for copy in copies:
        touched = {(copy.kind, page) for page in (*copy.source, *copy.target)}
        if batch and not written.isdisjoint(touched):
            yield batch
            batch, written = [], set()
        batch.append(copy)
        written |= {(copy.kind, page) for page in copy.target}
    if batch:
        yield batch


def _buffers(caches: Iterable[torch.Tensor], num_pages: int) -> list[torch.Tensor]:
    storages = {cache.untyped_storage().data_ptr(): cache for cache in caches}
    return [
        torch.empty(0, dtype=torch.int8, device=cache.device)
        .set_(cache.untyped_storage())
        .view(num_pages, -1)
        for cache in storages.values()
    ]
