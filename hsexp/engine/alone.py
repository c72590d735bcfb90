"""Every request goes through the model alone: what `engine.exact` asks of the worker.

    stock   step   [ A A A A | B | C C ]            one forward pass; kernels see 7 rows
    exact   step   [ A A A A ] [ B ] [ C C ]        one forward pass each; logits row by row

Kernels may sum in an order that depends on how many rows they are given, on where a row lies among
them, and on the longest context beside it. A pass that holds only one request's chunk
depends on none of these, whatever the kernel. Canonical chunks (`hsexp.memory.chunking`) make the
chunk itself the same in every run, and so everything computed from it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from vllm.config import CUDAGraphMode
from vllm.forward_context import get_forward_context, override_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata

from hsexp.config.base import ConfigError


@dataclass(frozen=True, kw_only=True)
class AloneMetadata:
    """Replaces a batch's attention metadata: one for each request, in the order of the batch."""

    starts: tuple[int, ...]
    """First row of each request, and the end of the last one."""
    requests: tuple[Any, ...]


def run_alone(runner: Any) -> None:
    """Make a model runner take requests one by one; called once its caches exist.

    Raises:
        ConfigError: the runner replays CUDA graphs, whose batches are padded and fixed.
    """
    mode = runner.compilation_config.cudagraph_mode
    if mode not in (None, CUDAGraphMode.NONE):
        raise ConfigError(
            f"engine.exact needs cudagraph_mode NONE (enforce_eager), got {mode.name}"
        )
    for group in (group for groups in runner.attn_groups for group in groups):
        for builder in group.metadata_builders:
            builder.build = _build_alone(builder.build)
    runner._model_forward = _forward_alone(runner._model_forward)
    runner.model.compute_logits = _logits_alone(runner.model.compute_logits)


def _build_alone(stock: Callable[..., Any]) -> Callable[..., AloneMetadata]:
    def build(
        common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, **kwargs: Any
    ) -> AloneMetadata:
        common = common_attn_metadata
        assert common_prefix_len == 0, "a cascade would read the batch's common prefix at once"
        return AloneMetadata(
            starts=tuple(common.query_start_loc_cpu[: common.num_reqs + 1].tolist()),
            requests=tuple(
                stock(0, one_request(common, index), **kwargs) for index in range(common.num_reqs)
            ),
        )

    return build


def one_request(common: CommonAttentionMetadata, index: int) -> CommonAttentionMetadata:
    """The metadata of a batch that holds only the request at `index`."""
    start, end = common.query_start_loc_cpu[index : index + 2].tolist()
    query = torch.tensor([0, end - start], dtype=common.query_start_loc_cpu.dtype)

    def row(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor[index : index + 1]

    seq_lens = common.seq_lens_cpu_upper_bound
    assert seq_lens is not None
    return replace(
        common,
        query_start_loc=query.to(common.query_start_loc.device),
        query_start_loc_cpu=query,
        seq_lens=row(common.seq_lens),
        num_reqs=1,
        num_actual_tokens=end - start,
        max_query_len=end - start,
        max_seq_len=int(seq_lens[index]),
        block_table_tensor=row(common.block_table_tensor),
        slot_mapping=common.slot_mapping[start:end],
        positions=None if common.positions is None else common.positions[start:end],
        is_prefilling=row(common.is_prefilling),
        seq_lens_cpu_upper_bound=row(seq_lens),
        _seq_lens_cpu=row(common._seq_lens_cpu),
        _num_computed_tokens_cpu=row(common._num_computed_tokens_cpu),
        _num_computed_tokens_cache=None,
        _token_to_req_indices_cache=None,
    )


def _forward_alone(stock: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    def model_forward(
        input_ids: torch.Tensor, positions: torch.Tensor, **kwargs: Any
    ) -> torch.Tensor:
        context = get_forward_context()
        metadata, slots = context.attn_metadata, context.slot_mapping
        assert isinstance(metadata, dict) and isinstance(slots, dict)
        starts = next(iter(metadata.values())).starts
        outputs = []
        for index, (start, end) in enumerate(pairwise(starts)):
            rows = slice(start, end)
            alone = replace(
                context,
                attn_metadata={name: of.requests[index] for name, of in metadata.items()},
                slot_mapping={name: of[rows] for name, of in slots.items()},
                batch_descriptor=None,
            )
            with override_forward_context(alone):
                outputs.append(
                    stock(input_ids=input_ids[rows], positions=positions[rows], **kwargs)
                )
        return torch.cat(outputs)

    return model_forward


def _logits_alone(stock: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    def compute_logits(hidden_states: torch.Tensor) -> torch.Tensor:
        return torch.cat([stock(row) for row in hidden_states.split(1)])

    return compute_logits
