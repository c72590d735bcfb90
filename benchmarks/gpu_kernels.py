"""python benchmarks/gpu_kernels.py [--dtype bfloat16]

How fast the GPU's kernels move paged states, and what paging costs. Sizes are Falcon-H1-7B's; the
paged forms find their states through random page maps. Launches go round through far more states
than the caches hold, and a figure is the median of the samples.

    GB/s        bytes of state that an operation has to read and write, by its time
    of a copy   the same bytes moved by the device's own copy in the same way
    ratio       time of the paged form by the time of the contiguous one

Needs vLLM for CUDA (make setup-gpu) and a GPU; without one it says so and exits with status 69.
"""

import argparse
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.table import Table

from hsexp.console import make_console

if TYPE_CHECKING:
    import torch

BATCHES = (1, 8, 32, 53)
NUM_HEADS, HEAD_DIM, D_STATE, NUM_GROUPS, HEADS_PER_MEMBER = 24, 128, 256, 1, 8
CHANNELS, WIDTH, SLOTS = 3584, 4, 16
NUM_STATES, NUM_LINES = 768, 12_288
"""1.2 GB of recurrent and 264 MB of convolution states in bfloat16."""
ROUND_BYTES, MAX_LAUNCHES = 2**29, 4096
"""A round of launches reads this much, or has so many: caches hold 40 to 130 MB."""
SAMPLES, WARMUP = 30, 3
DEVICE = "cuda"

Launch = Callable[[int], None]
"""One operation on the n-th set of states."""


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
    paged: bool


def _forms(contiguous: Launch, paged: Mapping[str, Launch]) -> tuple[Form, ...]:
    return (
        Form(name="contiguous", launch=contiguous, paged=False),
        *(Form(name=name, launch=launch, paged=True) for name, launch in paged.items()),
    )


@dataclass(frozen=True, kw_only=True)
class Operation:
    """The ways to do it, the contiguous one first."""

    forms: tuple[Form, ...]
    num_bytes: int
    """State bytes that one launch reads and writes."""
    num_sets: int
    """Sets of states that launches can go through."""

    @property
    def num_launches(self) -> int:
        return min(self.num_sets, MAX_LAUNCHES, max(2, 2 * ROUND_BYTES // self.num_bytes))


def seconds(launch: Launch, num_launches: int) -> float:
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


def copy_seconds(operation: Operation) -> float:
    """The device's own copy of as many bytes, through as much memory."""
    import torch

    shape = (operation.num_launches, operation.num_bytes // 2)
    source = torch.zeros(shape, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)

    def launch(turn: int) -> None:
        target[turn].copy_(source[turn])

    return seconds(launch, operation.num_launches)


class States:
    """Paged and contiguous states of one layer, and the batches of each turn."""

    def __init__(self, dtype: "torch.dtype") -> None:
        import torch

        self._generator, self.dtype = torch.Generator().manual_seed(0), dtype
        num_members = NUM_HEADS // HEADS_PER_MEMBER
        num_pages = NUM_STATES * num_members + 1
        self.pages = self._zeros(num_pages, HEADS_PER_MEMBER, HEAD_DIM, D_STATE)
        self.contiguous = self._zeros(NUM_STATES + 1, NUM_HEADS, HEAD_DIM, D_STATE)
        members = torch.zeros((num_members, NUM_STATES + 1), dtype=torch.int32)
        members[:, 1:] = self._permutation(num_pages - 1).view(num_members, NUM_STATES) + 1
        self.members = members.to(DEVICE)
        # Slots of 32 KiB in slabs of 512, as S2 has them; slab 0 is the null page.
        page_size, num_slabs = self.pages[0].numel(), NUM_LINES // SLOTS + 1
        self.conv_lines = self._zeros(num_slabs * page_size).as_strided(
            (num_slabs * SLOTS, WIDTH - 1, CHANNELS), (page_size // SLOTS, CHANNELS, 1)
        )
        self.histories = self._zeros(NUM_LINES + 1, WIDTH - 1, CHANNELS)
        lines = torch.full((NUM_LINES + 1,), -1, dtype=torch.int32)
        lines[1:] = self._permutation(NUM_LINES) + SLOTS
        self.lines = lines.to(DEVICE)

    def batches(self, num_rows: int, num_composites: int) -> "list[torch.Tensor]":
        """Disjoint sets of composites, 1 to `num_composites` in a random order."""
        num_sets = num_composites // num_rows
        order = self._permutation(num_composites) + 1
        return list(order[: num_sets * num_rows].view(num_sets, num_rows).to(DEVICE))

    def pages_of(self, composites: "list[torch.Tensor]") -> "list[torch.Tensor]":
        """[members, rows] of each batch: looked up before, as an engine does once a step."""
        return [self.members.index_select(1, rows) for rows in composites]

    def lines_of(self, composites: "list[torch.Tensor]") -> "list[torch.Tensor]":
        """[rows] of each batch."""
        return [self.lines.index_select(0, rows) for rows in composites]

    def random(self, *shape: int) -> "torch.Tensor":
        import torch

        return torch.randn(shape, generator=self._generator).to(DEVICE, self.dtype)

    def _zeros(self, *shape: int) -> "torch.Tensor":
        import torch

        return torch.zeros(shape, dtype=self.dtype, device=DEVICE)

    def _permutation(self, size: int) -> "torch.Tensor":
        import torch

        return torch.randperm(size, generator=self._generator).int()

    @property
    def state_bytes(self) -> int:
        return self.contiguous[0].numel() * self.contiguous.element_size()

    @property
    def line_bytes(self) -> int:
        return self.histories[0].numel() * self.histories.element_size()


def decode_update(states: States, num_rows: int) -> Operation:
    """The recurrent states of a decode batch, in place."""
    import torch
    from vllm.model_executor.layers.mamba.ops.mamba_ssm import selective_state_update

    from hsexp.engine.kernels.cpu import unfused_state_update
    from hsexp.engine.kernels.fused import FusedOps
    from hsexp.engine.kernels.ops import DecodeUpdate

    composites = states.batches(num_rows, NUM_STATES)
    x = states.random(num_rows, NUM_HEADS, HEAD_DIM)
    dt = states.random(num_rows, NUM_HEADS)[:, :, None].expand(-1, -1, HEAD_DIM)
    a = -torch.rand(NUM_HEADS, device=DEVICE)[:, None, None].expand(-1, HEAD_DIM, D_STATE)
    b, c = (states.random(num_rows, NUM_GROUPS, D_STATE) for _ in range(2))
    d, dt_bias = (states.random(NUM_HEADS)[:, None].expand(-1, HEAD_DIM) for _ in range(2))
    out = torch.empty_like(x)
    update = FusedOps().state_update
    token = {"x": x, "dt": dt, "a": a, "b": b, "c": c, "d": d, "dt_bias": dt_bias, "out": out}
    updates = [
        DecodeUpdate(ssm_pages=states.pages, source=pages, target=pages, **token)
        for pages in states.pages_of(composites)
    ]

    def fused(turn: int) -> None:
        update(updates[turn])

    def unfused(turn: int) -> None:
        unfused_state_update(updates[turn])

    def contiguous(turn: int) -> None:
        rows = composites[turn]
        selective_state_update(
            states.contiguous, x, dt, a, b, c, D=d, dt_bias=dt_bias, dt_softplus=True,
            state_batch_indices=rows, dst_state_batch_indices=rows, out=out,
        )  # fmt: skip

    return Operation(
        forms=_forms(contiguous, {"fused": fused, "a launch a member": unfused}),
        num_bytes=2 * num_rows * states.state_bytes,
        num_sets=len(composites),
    )


def convolution_update(states: States, num_rows: int) -> Operation:
    """The convolution states of a decode batch, in place."""
    from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update

    from hsexp.engine.kernels.conv_update import conv_update

    composites = states.batches(num_rows, NUM_LINES)
    lines = states.lines_of(composites)
    x, weight, bias = (
        states.random(num_rows, CHANNELS),
        states.random(CHANNELS, WIDTH),
        states.random(CHANNELS),
    )

    def slots(turn: int) -> None:
        conv_update(x, states.conv_lines, lines[turn], lines[turn], weight, bias, "silu")

    def contiguous(turn: int) -> None:
        causal_conv1d_update(
            x, states.histories.transpose(1, 2), weight, bias, "silu",
            conv_state_indices=composites[turn],
        )  # fmt: skip

    return Operation(
        forms=_forms(contiguous, {"slots": slots}),
        num_bytes=2 * num_rows * states.line_bytes,
        num_sets=len(composites),
    )


def gather(states: States, num_rows: int) -> Operation:
    """States to a dense tensor, before the scan of a prefill."""
    import torch

    from hsexp.engine.kernels.transfer import gather_states

    composites = states.batches(num_rows, NUM_STATES)
    pages = states.pages_of(composites)

    def paged(turn: int) -> None:
        gather_states(states.pages, pages[turn])

    def contiguous(turn: int) -> None:
        torch.index_select(states.contiguous, 0, composites[turn])

    return Operation(
        forms=_forms(contiguous, {"pages": paged}),
        num_bytes=2 * num_rows * states.state_bytes,
        num_sets=len(composites),
    )


def scatter(states: States, num_rows: int) -> Operation:
    """A dense tensor, in cache as the scan leaves it, to states after a prefill."""
    from hsexp.engine.kernels.transfer import scatter_states

    composites = states.batches(num_rows, NUM_STATES)
    long, pages = [rows.long() for rows in composites], states.pages_of(composites)
    dense = states.random(num_rows, NUM_HEADS, HEAD_DIM, D_STATE)

    def paged(turn: int) -> None:
        scatter_states(states.pages, pages[turn], dense)

    def contiguous(turn: int) -> None:
        states.contiguous.index_copy_(0, long[turn], dense)

    return Operation(
        forms=_forms(contiguous, {"pages": paged}),
        num_bytes=2 * num_rows * states.state_bytes,
        num_sets=len(composites),
    )


OPERATIONS = {
    "decode: recurrent update": decode_update,
    "decode: convolution update": convolution_update,
    "prefill: gather": gather,
    "prefill: scatter": scatter,
}


def table_of(name: str, states: States) -> Table:
    table = Table(title=name)
    for heading in ("rows", "form", "µs", "GB/s", "of a copy", "ratio"):
        table.add_column(heading, justify="left" if heading == "form" else "right")
    for num_rows in BATCHES:
        operation = OPERATIONS[name](states, num_rows)
        copy = copy_seconds(operation)
        baseline = math.nan
        for form in operation.forms:
            time = seconds(form.launch, operation.num_launches)
            baseline = time if not form.paged else baseline
            table.add_row(
                str(num_rows),
                form.name,
                f"{1e6 * time:.1f}",
                f"{operation.num_bytes / time / 1e9:,.0f}",
                f"{copy / time:.0%}",
                f"{time / baseline:.3f}" if form.paged else "",
            )
    return table


def versions() -> dict[str, Any]:
    import torch
    import triton
    import vllm

    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "vllm": vllm.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    arguments = parser.parse_args()
    console = make_console()
    reason = missing()
    if reason is not None:
        console.print(f"gpu_kernels: {reason}; nothing was measured")
        sys.exit(os.EX_UNAVAILABLE)
    import torch

    console.print(", ".join(f"{name} {value}" for name, value in versions().items()))
    states = States(getattr(torch, arguments.dtype))
    for name in OPERATIONS:
        console.print(table_of(name, states))


if __name__ == "__main__":
    main()
