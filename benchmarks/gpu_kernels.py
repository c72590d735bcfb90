"""python benchmarks/gpu_kernels.py [--dtype bfloat16] [--json FILE] [--min-ratio 0.98]

How fast the GPU's kernels move paged states, and what paging costs. Sizes are Falcon-H1-7B's. The
pools take most of the GPU's free memory, and states are found through random page maps, so that
launches reach far beyond 2**31 bytes. A figure is the median of the samples.

    GB/s        bytes of state that an operation has to read and write, by its time
    of a copy   the same bytes moved by the device's own copy in the same way
    contiguous  time of vLLM's form over contiguous states by the time of the paged form
    padded      the same, over states at the stride of S0's padded pages

With --min-ratio the exit status is 1 if a judged ratio is below, which FILE then lists. Needs vLLM
for CUDA (make setup-gpu) and a GPU; without one it says so and exits with status 69.
"""

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.table import Table

from hsexp.console import make_console

if TYPE_CHECKING:
    import torch
    from state_pools import Layer

BATCHES = (1, 8, 32, 53, 63)
ROUND_BYTES, MAX_LAUNCHES = 2**29, 4096
"""A round of launches moves twice this much, or has so many: caches hold 40 to 130 MB."""
SAMPLES, WARMUP = 30, 3
PAGED_SHARE, STOCK_SHARE = 0.4, 0.2
"""Of the free memory: the pool of pages, and each of the two others."""

Launch = Callable[[int], object]
"""One operation on the n-th set of states."""
Timer = Callable[[str, Launch, int], float]
"""Seconds of one launch: what is timed, how it is launched, and how often in a round."""


def missing() -> str | None:
    """Why nothing can be measured here."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("vllm") is None:
        return "vLLM is not installed (make setup-gpu)"
    import torch

    return None if torch.cuda.is_available() else "there is no CUDA device"


@dataclass(frozen=True, kw_only=True)
class Form:
    """One way to do an operation."""

    name: str
    launch: Launch
    is_judged: bool = False


@dataclass(frozen=True, kw_only=True)
class Operation:
    """vLLM's way over contiguous and over padded states, and the paged ways."""

    name: str
    num_rows: int
    contiguous: Launch
    padded: Launch
    paged: tuple[Form, ...]
    num_bytes: int
    """State bytes that one launch reads and writes."""
    num_launches: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured form."""

    operation: str
    rows: int
    form: str
    seconds: float
    bytes_per_s: float
    of_copy: float
    to_contiguous: float | None
    to_padded: float | None
    is_judged: bool

    def is_below(self, ratio: float) -> bool:
        return self.is_judged and min(self.to_contiguous or 0.0, self.to_padded or 0.0) < ratio


def graph_seconds(name: str, launch: Launch, num_launches: int) -> float:
    """Median time of one launch in rounds that are replayed as a CUDA graph, as decodes are."""
    import torch

    for turn in range(num_launches):  # compiles all that alignment makes different
        launch(turn)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for turn in range(num_launches):
            launch(turn)
    samples = []
    for _ in range(WARMUP + SAMPLES):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) / 1e3 / num_launches)
    return median(samples[WARMUP:])


class Pools:
    """The three pools of one layer, and the operations on them."""

    def __init__(
        self, layer: "Layer", dtype: "torch.dtype", device: str, *, free_bytes: int
    ) -> None:
        from state_pools import Inputs, PagedPool, StockPool

        self.layer, self.dtype, self._device = layer, dtype, device
        self.inputs = Inputs(layer, dtype, device)
        common = {"dtype": dtype, "device": device}
        self.paged = PagedPool(layer, int(PAGED_SHARE * free_bytes), seed=0, **common)
        self.contiguous, self.padded = (
            StockPool(layer, int(STOCK_SHARE * free_bytes), padded=padded, **common)
            for padded in (False, True)
        )

    def facts(self) -> dict[str, Any]:
        return {
            "paged_bytes": self.paged.num_bytes,
            "contiguous_bytes": self.contiguous.num_bytes,
            "padded_bytes": self.padded.num_bytes,
            "last_page_byte": self.paged.last_page_byte,
            "passes_2_to_31_bytes": self.paged.last_page_byte > 2**31,
        }

    def operations(self, num_rows: int) -> "Iterator[Operation]":
        """All operations on batches of so many rows."""
        from state_pools import row_sets

        itemsize = self.dtype.itemsize
        state_bytes = 2 * num_rows * self.layer.state_size * itemsize
        line_bytes = 2 * num_rows * self.layer.line_size * itemsize
        paged, contiguous, padded = (
            row_sets(num_rows, pool.num_states, self._device, most=MAX_LAUNCHES)
            for pool in (self.paged, self.contiguous, self.padded)
        )
        num_sets = min(len(paged), len(contiguous), len(padded))

        def launches(num_bytes: int) -> dict[str, int]:
            wanted = max(2, 2 * ROUND_BYTES // num_bytes)
            return {"num_bytes": num_bytes, "num_launches": min(num_sets, wanted)}

        places = [self.paged.paged.at(rows) for rows in paged]  # looked up before any launch
        sets = {"paged": places, "contiguous": contiguous, "padded": padded}
        yield self._recurrent(num_rows, sets, launches(state_bytes))
        yield self._convolution(num_rows, sets, launches(line_bytes))
        yield self._gather(num_rows, sets, launches(state_bytes))
        yield self._scatter(num_rows, sets, launches(state_bytes))

    def _recurrent(self, num_rows: int, sets: dict[str, Any], sizes: dict[str, int]) -> Operation:
        import torch
        from paged_calls import PagedUpdate, stock_update

        token = self.inputs.token(num_rows)
        out = torch.empty_like(token.x)
        updates = [
            PagedUpdate(self.paged.paged, places, token)
            for places in sets["paged"][: sizes["num_launches"]]
        ]
        return Operation(
            name="decode: recurrent update",
            num_rows=num_rows,
            contiguous=lambda turn: stock_update(
                self.contiguous.stock, sets["contiguous"][turn], token, out
            ),
            padded=lambda turn: stock_update(self.padded.stock, sets["padded"][turn], token, out),
            paged=(
                Form(name="fused", launch=lambda turn: updates[turn].fused(), is_judged=True),
                Form(name="a launch a member", launch=lambda turn: updates[turn].unfused()),
            ),
            **sizes,
        )

    def _convolution(self, num_rows: int, sets: dict[str, Any], sizes: dict[str, int]) -> Operation:
        from paged_calls import paged_conv, stock_conv

        x, weights = self.inputs.random(num_rows, self.layer.channels), self.inputs.filter()
        return Operation(
            name="decode: convolution update",
            num_rows=num_rows,
            contiguous=lambda turn: stock_conv(
                self.contiguous.stock, sets["contiguous"][turn], x, weights
            ),
            padded=lambda turn: stock_conv(self.padded.stock, sets["padded"][turn], x, weights),
            paged=(
                Form(
                    name="slots",
                    launch=lambda turn: paged_conv(
                        self.paged.paged, sets["paged"][turn], x, weights
                    ),
                    is_judged=True,
                ),
            ),
            **sizes,
        )

    def _gather(self, num_rows: int, sets: dict[str, Any], sizes: dict[str, int]) -> Operation:
        """States to a dense tensor, before the scan of a prefill."""
        from paged_calls import paged_gather, stock_gather

        return Operation(
            name="prefill: gather",
            num_rows=num_rows,
            contiguous=lambda turn: stock_gather(self.contiguous.stock, sets["contiguous"][turn]),
            padded=lambda turn: stock_gather(self.padded.stock, sets["padded"][turn]),
            paged=(
                Form(
                    name="pages",
                    launch=lambda turn: paged_gather(self.paged.paged, sets["paged"][turn]),
                    is_judged=True,
                ),
            ),
            **sizes,
        )

    def _scatter(self, num_rows: int, sets: dict[str, Any], sizes: dict[str, int]) -> Operation:
        """A dense tensor, in cache as the scan leaves it, to states after a prefill."""
        from paged_calls import paged_scatter, stock_scatter

        dense = self.inputs.states(num_rows)
        return Operation(
            name="prefill: scatter",
            num_rows=num_rows,
            contiguous=lambda turn: stock_scatter(
                self.contiguous.stock, sets["contiguous"][turn], dense
            ),
            padded=lambda turn: stock_scatter(self.padded.stock, sets["padded"][turn], dense),
            paged=(
                Form(
                    name="pages",
                    launch=lambda turn: paged_scatter(self.paged.paged, sets["paged"][turn], dense),
                    is_judged=True,
                ),
            ),
            **sizes,
        )


def copy_launch(operation: Operation, device: str) -> Launch:
    """The device's own copy of as many bytes, through as much memory."""
    import torch

    shape = (operation.num_launches, operation.num_bytes // 2)
    source = torch.zeros(shape, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda turn: target[turn].copy_(source[turn])


def measure(pools: Pools, timer: Timer, device: str, batches: Sequence[int]) -> list[Row]:
    """Every form of every operation, for every batch."""
    found: list[Row] = []
    for num_rows in batches:
        for operation in pools.operations(num_rows):
            found += _rows_of(operation, timer, device)
    return found


def _rows_of(operation: Operation, timer: Timer, device: str) -> Iterator[Row]:
    def seconds(form: str, launch: Launch) -> float:
        name = f"{operation.name}, {operation.num_rows} rows, {form}"
        return timer(name, launch, operation.num_launches)

    copy = seconds("copy", copy_launch(operation, device))
    contiguous = seconds("contiguous", operation.contiguous)
    padded = seconds("padded", operation.padded)
    stock = ((Form(name="contiguous", launch=operation.contiguous), contiguous),)
    stock += ((Form(name="padded", launch=operation.padded), padded),)
    timed = [(form, seconds(form.name, form.launch)) for form in operation.paged]
    for form, time in (*stock, *timed):
        is_paged = form in operation.paged
        yield Row(
            operation=operation.name,
            rows=operation.num_rows,
            form=form.name,
            seconds=time,
            bytes_per_s=operation.num_bytes / time,
            of_copy=copy / time,
            to_contiguous=contiguous / time if is_paged else None,
            to_padded=padded / time if is_paged else None,
            is_judged=form.is_judged,
        )


def report(rows: Sequence[Row], pools: Pools, min_ratio: float | None) -> dict[str, Any]:
    """All figures as plain data, with the verdict."""
    below = [asdict(row) for row in rows if min_ratio is not None and row.is_below(min_ratio)]
    judged = [row for row in rows if row.is_judged]
    return {
        "verdict": "failed" if below else "passed",
        "min_ratio": min_ratio,
        "below": below,
        "worst_to_contiguous": min((row.to_contiguous or 0.0 for row in judged), default=None),
        "worst_to_padded": min((row.to_padded or 0.0 for row in judged), default=None),
        "pools": pools.facts(),
        "rows": [asdict(row) for row in rows],
    }


def tables_of(rows: Sequence[Row]) -> Iterator[Table]:
    for name in dict.fromkeys(row.operation for row in rows):
        table = Table(title=name)
        for heading in ("rows", "form", "µs", "GB/s", "of a copy", "contiguous", "padded"):
            table.add_column(heading, justify="left" if heading == "form" else "right")
        for row in rows:
            if row.operation == name:
                table.add_row(
                    str(row.rows),
                    row.form,
                    f"{1e6 * row.seconds:.1f}",
                    f"{row.bytes_per_s / 1e9:,.0f}",
                    f"{row.of_copy:.0%}",
                    *(
                        "" if ratio is None else f"{ratio:.3f}"
                        for ratio in (row.to_contiguous, row.to_padded)
                    ),
                )
        yield table


def versions() -> dict[str, Any]:
    import torch
    import triton
    import vllm

    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "vllm": vllm.__version__,
    }


def options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--json", type=Path, help="file for the figures and the verdict")
    parser.add_argument("--min-ratio", type=float, help="the least that a judged ratio may be")
    return parser.parse_args(arguments)


def finish(rows: Sequence[Row], pools: Pools, chosen: argparse.Namespace) -> int:
    """Print and write what was measured. Returns the exit status."""
    console = make_console()
    for table in tables_of(rows):
        console.print(table)
    found = report(rows, pools, chosen.min_ratio) | {"versions": versions()}
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=2), encoding="utf-8")
    for row in found["below"]:
        console.print(
            f"{row['operation']}, {row['rows']} rows, {row['form']}: {row['to_contiguous']:.3f} of "
            f"contiguous, {row['to_padded']:.3f} of padded, below {chosen.min_ratio}"
        )
    return 1 if found["below"] else os.EX_OK


def main(arguments: Sequence[str]) -> int:
    chosen = options(arguments)
    reason = missing()
    if reason is not None:
        make_console().print(f"gpu_kernels: {reason}; nothing was measured")
        if chosen.json is not None:
            found = {"verdict": "skipped", "reason": reason}
            chosen.json.write_text(json.dumps(found), encoding="utf-8")
        return os.EX_UNAVAILABLE
    import torch
    from state_pools import FALCON_7B

    make_console().print(", ".join(f"{name} {value}" for name, value in versions().items()))
    free_bytes, _ = torch.cuda.mem_get_info()
    pools = Pools(FALCON_7B, getattr(torch, chosen.dtype), "cuda", free_bytes=free_bytes)
    return finish(measure(pools, graph_seconds, "cuda", BATCHES), pools, chosen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
