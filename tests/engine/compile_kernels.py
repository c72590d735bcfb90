"""Compiles our kernels and vLLM's contiguous ones for NVIDIA GPUs, on a machine without one.

    python compile_kernels.py RESULT.json COMPUTE_CAPABILITY...

Each wrapper is called once over states of Falcon-H1-7B in bfloat16, and what it would have launched
is compiled. The result tells for each capability and kernel how many arithmetic instructions of
which kind it has, how many loads wait for one another, how many bytes a load takes at once, and how
many bytes its registers spill.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from triton_on_cpu import enable_triton, load_stock_kernels

enable_triton()
load_stock_kernels()

import triton  # noqa: E402
from kernel_cases import FALCON_7B, Pool, decode_batch, random_rows  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.backends.nvidia.compiler import get_ptxas  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton.runtime.jit import JITFunction, mangle_type  # noqa: E402
from vllm.model_executor.layers.mamba.ops import causal_conv1d, mamba_ssm  # noqa: E402

from hsexp.engine.kernels import conv_update, state_update, transfer  # noqa: E402

CHANNELS, WIDTH, NUM_ROWS = 3584, 4, 8
KERNELS = (
    (state_update, "_state_update_kernel"),
    (conv_update, "_conv_update_kernel"),
    (transfer, "_transfer_states_kernel"),
    (transfer, "_carry_lines_kernel"),
    (mamba_ssm, "_selective_scan_update_kernel"),
    (causal_conv1d, "_causal_conv1d_update_kernel"),
)


class Launches:
    """Stands where a kernel does and keeps the arguments that it would be launched with."""

    def __init__(self, kernel: Any) -> None:
        self._heuristics: list[Any] = []
        while not isinstance(kernel, JITFunction):
            self._heuristics.append(kernel.values)
            kernel = kernel.fn
        self.kernel = kernel
        self.seen: list[dict[str, Any]] = []

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **kwargs: Any) -> None:
            arguments = dict(zip(self.kernel.arg_names, args, strict=False)) | kwargs
            for values in self._heuristics:
                arguments |= {name: rule(arguments) for name, rule in values.items()}
            self.seen.append(arguments)

        return launch


def launch_all() -> None:
    """Every wrapper once, ours and vLLM's, the state update with and without tied dimensions."""
    generator, shape = torch.Generator().manual_seed(0), FALCON_7B
    rows = random_rows(NUM_ROWS, generator)
    place = (shape.heads_per_member, shape.head_dim, shape.d_state)
    common: dict[str, Any] = {"dtype": torch.bfloat16, "generator": generator}
    pages = Pool(rows, places_per_state=shape.num_members, place=place, stride=262_144, **common)
    lines = Pool(rows, places_per_state=1, place=(WIDTH - 1, CHANNELS), stride=16_384, **common)
    contiguous = torch.empty(2, shape.num_heads, *place[1:], dtype=torch.bfloat16)
    for tied in (True, False):
        batch = decode_batch(shape, NUM_ROWS, torch.bfloat16, generator, "cpu", tied=tied)
        x, dt, a, b, c, d, dt_bias = batch.tensors
        out = torch.empty_like(x)
        update = batch.update(pages.view, pages.at(rows.source), pages.at(rows.target), out)
        state_update.fused_state_update(update, is_blackwell=False)
        mamba_ssm.selective_state_update(
            contiguous, x, dt, a, b, c, D=d, dt_bias=dt_bias, dt_softplus=True,
            state_batch_indices=rows.source, dst_state_batch_indices=rows.target,
            out=torch.empty_like(x),
        )  # fmt: skip
    x = torch.empty(NUM_ROWS, CHANNELS, dtype=torch.bfloat16)
    weight = torch.empty(CHANNELS, WIDTH, dtype=torch.bfloat16)
    bias = torch.empty(CHANNELS, dtype=torch.bfloat16)
    conv_update.conv_update(
        x, lines.view, lines.at(rows.source)[0], lines.at(rows.target)[0], weight, bias, "silu"
    )
    causal_conv1d.causal_conv1d_update(
        x, lines.view.transpose(1, 2), weight, bias, "silu", conv_state_indices=rows.target
    )
    states = transfer.gather_states(pages.view, pages.at(rows.source))
    transfer.scatter_states(pages.view, pages.at(rows.target), states)
    transfer.carry_lines(lines.view, lines.at(rows.source)[0], lines.at(rows.target)[0])


def compiled(kernel: Any, launch: dict[str, Any], capability: int) -> Any:
    """What Triton's launcher would make of these arguments."""
    signature, constants, attributes = {}, {}, {}
    for index, (name, parameter) in enumerate(zip(kernel.arg_names, kernel.params, strict=True)):
        value = launch[name]
        is_tensor = isinstance(value, torch.Tensor)
        specialized = not parameter.do_not_specialize
        if (
            parameter.is_constexpr
            or value is None
            or (specialized and not is_tensor and value == 1)
        ):
            signature[name], constants[name] = "constexpr", value
            continue
        signature[name] = mangle_type(value) if is_tensor else "i32"
        address = value.data_ptr() if is_tensor else value
        aligned = specialized and not parameter.do_not_specialize_on_alignment
        if aligned and address % 16 == 0:
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    options = {"num_warps": launch.get("num_warps", 4)}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def load_chain(ptx: str) -> int:
    """Most loads from global memory of which each needs the one before: for its address, for its
    mask, or for the branch that leads to it.

    Reads the code from top to bottom, so of a loop it sees one turn.
    """
    depths: dict[str, int] = {}
    branched = longest = 0
    for statement in re.split(r"[;\n]", ptx):
        found = re.fullmatch(r"\s*(?:@!?(%p\d+)\s+)?([a-z][\w.:]*)\s*(.*)", statement)
        if found is None:
            continue
        guard, operation, operands = found.groups(default="")
        stores = operation.startswith(("st.", "bra", "bar", "ret"))
        target, _, sources = ("", "", operands) if stores else _parted(operands)
        needed = re.findall(r"%\w+", f"{guard} {sources}")
        depth = max([branched, *(depths.get(register, 0) for register in needed)])
        if operation.startswith("ld.global"):
            depth += 1
            longest = max(longest, depth)
        if operation.startswith("bra"):
            branched = depth
        for register in re.findall(r"%\w+", target):
            # Under a guard the register may keep what it had.
            depths[register] = max(depth, depths.get(register, 0) if guard else 0)
    return longest


def _parted(operands: str) -> tuple[str, str, str]:
    """What an instruction writes, a comma, and what it reads."""
    found = re.match(r"(\{[^}]*\}|[^,]*)(,?)(.*)", operands)
    assert found is not None
    target, comma, sources = found.groups()
    return target, comma, sources


def described(ptx: str, capability: int) -> dict[str, Any]:
    """Its arithmetic, and what NVIDIA's assembler says of it."""
    arithmetic = Counter(re.findall(r"\b(?:add|sub|mul|fma|ex2|lg2|div|cvt)\.[\w.]*f[\w.]+", ptx))
    assembler = get_ptxas(capability).path
    architecture = re.findall(r"\.target (\w+)", ptx)[0]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernel.ptx").write_text(ptx)
        done = subprocess.run(
            [assembler, "-v", "--gpu-name", architecture, "kernel.ptx", "-o", "kernel.cubin"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
    spilled = [int(count) for count in re.findall(r"(\d+) bytes spill", done.stderr)]
    widths = re.findall(r"\bld\.global[\w.:]*?(?:\.v(\d))?\.[a-z](\d+)\b", ptx)
    return {
        "arithmetic": dict(arithmetic),
        "spilled_bytes": sum(spilled),
        "load_chain": load_chain(ptx),
        "widest_load_bytes": max(int(count or 1) * int(bits) // 8 for count, bits in widths),
    }


def main(result_path: str, capabilities: list[int]) -> None:
    recorded = []
    for module, name in KERNELS:
        recorded.append(Launches(getattr(module, name)))
        setattr(module, name, recorded[-1])
    launch_all()
    result = {
        f"sm_{capability}": {
            launches.kernel.fn.__name__: [
                described(compiled(launches.kernel, launch, capability).asm["ptx"], capability)
                for launch in launches.seen
            ]
            for launches in recorded
        }
        for capability in capabilities
    }
    Path(result_path).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], [int(argument) for argument in sys.argv[2:]])
