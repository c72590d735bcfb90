"""OMP_NUM_THREADS=2 .venv/bin/python benchmarks/differences.py

Which operations of vLLM's CPU build give a token other bits when something changes that should
not matter: where its chunk ends, who shares its batch, or whether it is computed as prefill or as
decode. Each line changes one thing, and then does the same with that source switched off. With
one thread the lines about several threads are equal (docs/continuation.md).
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
import vllm._custom_ops as ops
from rich.table import Table
from torch import Tensor
from vllm.model_executor.layers.mamba.ops.cpu.causal_conv1d import (
    causal_conv1d_fn_cpu,
    causal_conv1d_update_cpu,
)
from vllm.model_executor.layers.mamba.ops.cpu.mamba_ssm import (
    _mamba_chunk_scan_combined_fwd_cpu,
    selective_state_update,
)

from hsexp.console import make_console

HEADS, HEAD_DIM, D_STATE, CHANNELS, WIDTH = 4, 32, 64, 192, 4
KV_HEAD_DIM, BLOCK = 64, 32
TOKENS = 2048
HALF, BF16, FP32 = TOKENS // 2, torch.bfloat16, torch.float32

Pair = tuple[Tensor, Tensor]
"""The same values, computed in two ways."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """One operation, what is changed, and what switches the difference off."""

    operation: str
    dtype: torch.dtype
    change: str
    changed: Callable[[], Pair]
    switch: str = ""
    switched: Callable[[], Pair] | None = None
    """None where there is nothing to switch off."""


def draw(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# -- the recurrent layer ---------------------------------------------------------------------------


class Mamba:
    """Inputs of one Mamba2 layer, and its operations on a range of tokens."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.x = draw(TOKENS, HEADS, HEAD_DIM, dtype=dtype)
        self.dt = draw(TOKENS, HEADS, dtype=dtype, seed=1)
        self.b, self.c = (draw(TOKENS, 1, D_STATE, dtype=dtype, seed=s) for s in (2, 3))
        self.a = -draw(HEADS, dtype=FP32, seed=4).abs() - 0.1
        self.d, self.bias = (draw(HEADS, dtype=FP32, seed=s) for s in (5, 6))
        self.conv_x = draw(TOKENS, CHANNELS, dtype=dtype, seed=7)
        self.conv_w = draw(CHANNELS, WIDTH, dtype=dtype, seed=8)
        self.conv_b = draw(CHANNELS, dtype=dtype, seed=9)

    def scan(
        self, start: int, end: int, state: Tensor | None, state_dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        rows = slice(start, end)
        out = torch.empty(end - start, HEADS, HEAD_DIM, dtype=self.dtype)
        state = _mamba_chunk_scan_combined_fwd_cpu(
            self.x[rows], self.dt[rows], self.a, self.b[rows], self.c[rows], 256, out,
            D=self.d, dt_bias=self.bias, initial_states=state,
            cu_seqlens=torch.tensor([0, end - start]), dt_softplus=True, state_dtype=state_dtype,
        )  # fmt: skip
        return out, state

    def in_chunks(self, *ends: int, state_dtype: torch.dtype) -> Tensor:
        """Outputs of all tokens up to the last end."""
        outputs, state, start = [], None, 0
        for end in ends:
            out, state = self.scan(start, end, state, state_dtype)
            outputs.append(out)
            start = end
        return torch.cat(outputs)

    def decode(self, rows: Sequence[int], states: Tensor, places: Sequence[int]) -> Tensor:
        """One token of each row; the states are written in place."""
        index, taken = torch.tensor(places, dtype=torch.int32).unsqueeze(1), list(rows)
        out = torch.empty(len(rows), HEADS, HEAD_DIM, dtype=self.dtype)
        selective_state_update(
            states, self.x[taken], self.dt[taken][:, :, None].expand(-1, -1, HEAD_DIM),
            self.a[:, None, None].expand(-1, HEAD_DIM, D_STATE), self.b[taken], self.c[taken],
            self.d[:, None].expand(-1, HEAD_DIM), dt_bias=self.bias[:, None].expand(-1, HEAD_DIM),
            dt_softplus=True, state_batch_indices=index, dst_state_batch_indices=index, out=out,
        )  # fmt: skip
        return out

    def one_by_one(self, num_tokens: int, state_dtype: torch.dtype) -> Tensor:
        states = torch.zeros(2, HEADS, HEAD_DIM, D_STATE, dtype=state_dtype)
        return torch.cat([self.decode([token], states, [1]) for token in range(num_tokens)])

    def batch_of_decodes(self) -> Pair:
        together = draw(8, HEADS, HEAD_DIM, D_STATE, dtype=self.dtype)
        alone = together.clone()
        rows, places = range(6), [3, 1, 5, 2, 7, 4]
        ours = self.decode(rows, together, places)
        return ours, torch.cat([self.decode([r], alone, [places[r]]) for r in rows])

    def conv(self, *ends: int) -> Tensor:
        lines = torch.zeros(1, WIDTH - 1, CHANNELS, dtype=self.dtype).transpose(1, 2)
        outputs, start = [], 0
        for end in ends:
            out = causal_conv1d_fn_cpu(
                self.conv_x[start:end].T, self.conv_w, self.conv_b, lines,
                torch.tensor([0, end - start]), torch.tensor([0]), torch.tensor([start > 0]),
            )  # fmt: skip
            outputs.append(out.T)
            start = end
        return torch.cat(outputs)

    def conv_one_by_one(self, num_tokens: int) -> Tensor:
        lines = torch.zeros(2, WIDTH - 1, CHANNELS, dtype=self.dtype).transpose(1, 2)
        place = torch.tensor([[1]], dtype=torch.int32)
        tokens = [self.conv_x[token : token + 1].clone() for token in range(num_tokens)]
        return torch.cat(
            [
                causal_conv1d_update_cpu(
                    token, lines, self.conv_w, self.conv_b, "silu", conv_state_indices=place
                )
                for token in tokens
            ]
        )


# -- attention, linear layers, element by element --------------------------------------------------


def attend(lengths: Sequence[tuple[int, int]], dtype: torch.dtype, *, split: bool) -> Tensor:
    """What the first request of a batch attends to, given (queries, context) of each."""
    blocks = [-(-context // BLOCK) for _, context in lengths]
    cache = torch.zeros(sum(blocks) + 1, 1, 2 * BLOCK, KV_HEAD_DIM, dtype=dtype)
    keys, values = cache.chunk(2, dim=2)
    table = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
    queries, first = [], 1
    for i, (count, context) in enumerate(lengths):
        table[i, : blocks[i]] = torch.arange(first, first + blocks[i])
        slots = torch.arange(first * BLOCK, first * BLOCK + context)
        k, v, q = (draw(4096, 2, KV_HEAD_DIM, dtype=dtype, seed=3 * i + s) for s in range(3))
        ops.cpu_attn_reshape_and_cache(k[:context, :1], v[:context, :1], keys, values, slots, "vec")
        queries.append(q[context - count : context])
        first += blocks[i]
    query = torch.cat(queries)
    out = torch.empty_like(query)
    starts = torch.tensor([0, *(count for count, _ in lengths)]).cumsum(0).to(torch.int32)
    contexts = torch.tensor([context for _, context in lengths], dtype=torch.int32)
    plan = ops.cpu_attn_get_scheduler_metadata(
        len(lengths), 2, 1, KV_HEAD_DIM, contexts, dtype, starts, True, -1, "vec", split
    )
    ops.cpu_attention_with_kv_cache(
        query, keys, values, out, starts, contexts, KV_HEAD_DIM**-0.5, True, None, -1, table, 0,
        plan, None,
    )  # fmt: skip
    return out[: lengths[0][0]]


def attention_in_a_batch(dtype: torch.dtype, *, split: bool) -> Pair:
    alone, among = [], []
    for context in range(500, 3600, 100):
        own, others = (1, context), [(1, context - 3 * i) for i in range(1, 6)]
        alone.append(attend([own], dtype, split=split))
        among.append(attend([own, *others], dtype, split=split))
    return torch.cat(alone), torch.cat(among)


def attention_in_a_chunk(dtype: torch.dtype, *, length: int) -> Pair:
    whole = attend([(length, 3500)], dtype, split=False)
    return whole[-100:], attend([(100, 3500)], dtype, split=False)[-min(length, 100) :]


def linear(dtype: torch.dtype, *, rows: int, others: int) -> Pair:
    weight = draw(128, 256, dtype=dtype) / 16
    layer = ops.create_onednn_mm(weight.t(), 32)
    x = draw(max(rows, others), 256, dtype=dtype, seed=1)
    least = min(rows, others)
    return tuple(
        ops.onednn_mm(layer, x[:count].contiguous(), None)[:least] for count in (rows, others)
    )  # type: ignore[return-value]


def by_place(function: Callable[[Tensor], Tensor], dtype: torch.dtype, *, before: int) -> Pair:
    """The same rows with others before them, and by themselves: batches of 1 to 200 rows."""
    x = draw(200 + before, 24, dtype=dtype)
    batches = [(function(x[: before + n])[before:], x[before : before + n]) for n in range(1, 201)]
    ours, rows = zip(*batches, strict=True)
    return torch.cat(ours), torch.cat([function(each.contiguous()) for each in rows])


# -- the list --------------------------------------------------------------------------------------


def sources() -> Iterator[Source]:
    half, float_ = Mamba(BF16), Mamba(FP32)

    def split(layer: Mamba, state: torch.dtype) -> Callable[[], Pair]:
        return lambda: (
            layer.in_chunks(TOKENS, state_dtype=state),
            layer.in_chunks(HALF, TOKENS, state_dtype=state),
        )

    yield Source(
        operation="recurrent state", dtype=BF16, change="one chunk, or two",
        changed=split(half, BF16), switch="fp32 state", switched=split(half, FP32),
    )  # fmt: skip
    yield Source(
        operation="softplus of dt", dtype=FP32, change="13 rows before it, or none",
        changed=lambda: by_place(F.softplus, FP32, before=13),
        switch="none before it", switched=lambda: by_place(F.softplus, FP32, before=0),
    )  # fmt: skip
    yield Source(
        operation="SiLU", dtype=FP32, change="13 rows before it, or none",
        changed=lambda: by_place(F.silu, FP32, before=13),
        switch="none before it", switched=lambda: by_place(F.silu, FP32, before=0),
    )  # fmt: skip
    for dtype in (BF16, FP32):
        yield Source(
            operation="attention, decode", dtype=dtype, change="alone, or among six",
            changed=lambda dtype=dtype: attention_in_a_batch(dtype, split=True),
            switch="VLLM_CPU_ATTN_SPLIT_KV=0",
            switched=lambda dtype=dtype: attention_in_a_batch(dtype, split=False),
        )  # fmt: skip
        yield Source(
            operation="attention, prefill", dtype=dtype, change="chunk of 2,000, or of 100",
            changed=lambda dtype=dtype: attention_in_a_chunk(dtype, length=2000),
            switch="the same chunk",
            switched=lambda dtype=dtype: attention_in_a_chunk(dtype, length=100),
        )  # fmt: skip
    yield Source(
        operation="linear layer", dtype=FP32, change="one row, or 512",
        changed=lambda: linear(FP32, rows=1, others=512),
        switch="one row", switched=lambda: linear(FP32, rows=1, others=1),
    )  # fmt: skip
    for layer, name in ((half, BF16), (float_, FP32)):
        yield Source(
            operation="recurrence", dtype=name, change="scan, or token by token",
            changed=lambda layer=layer, name=name: (
                layer.in_chunks(600, state_dtype=name), layer.one_by_one(600, name)
            ),
            switch="token by token again",
            switched=lambda layer=layer, name=name: (
                layer.one_by_one(600, name), layer.one_by_one(600, name)
            ),
        )  # fmt: skip
        yield Source(
            operation="convolution", dtype=name, change="chunk, or token by token",
            changed=lambda layer=layer: (layer.conv(300), layer.conv_one_by_one(300)),
            switch="token by token again",
            switched=lambda layer=layer: (layer.conv_one_by_one(300), layer.conv_one_by_one(300)),
        )  # fmt: skip
    yield Source(operation="linear layer", dtype=BF16, change="one row, or 512",
                 changed=lambda: linear(BF16, rows=1, others=512))  # fmt: skip
    yield Source(operation="convolution", dtype=BF16, change="one chunk, or two",
                 changed=lambda: (half.conv(TOKENS), half.conv(777, TOKENS)))  # fmt: skip
    yield Source(operation="recurrence", dtype=BF16, change="alone, or among six",
                 changed=half.batch_of_decodes)  # fmt: skip
    yield Source(
        operation="log-softmax", dtype=FP32, change="13 rows before it, or none",
        changed=lambda: by_place(lambda x: torch.log_softmax(x, -1), FP32, before=13),
    )  # fmt: skip


def difference(pair: Pair) -> str:
    ours, theirs = (values.float() for values in pair)
    share = (ours != theirs).float().mean().item()
    if not share:
        return "equal"
    return f"{share:.2g} of elements, up to {(ours - theirs).abs().max().item():.1e}"


def main() -> None:
    table = Table(title=f"vLLM's CPU operations, {torch.get_num_threads()} threads")
    for heading in ("operation", "dtype", "changed", "difference", "switched off by", "then"):
        table.add_column(heading)
    for source in sources():
        then = "" if source.switched is None else difference(source.switched())
        dtype, found = str(source.dtype).removeprefix("torch."), difference(source.changed())
        table.add_row(source.operation, dtype, source.change, found, source.switch, then)
    make_console().print(table)


if __name__ == "__main__":
    main()
