"""The benchmark of the GPU's kernels on this CPU: tiny shapes, Triton's interpreter, a stub timer.

    TRITON_INTERPRET=1 python interpreted_benchmark.py RESULT.json [FORM=SECONDS ...]

Each launch is run twice, and takes the seconds that its form was given, or a microsecond.
"""

import sys
from pathlib import Path

from triton_on_cpu import enable_triton, load_stock_kernels, repair_interpreter

enable_triton()
repair_interpreter()
load_stock_kernels()
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import gpu_kernels  # noqa: E402
import torch  # noqa: E402
from state_pools import TINY  # noqa: E402

BATCHES = (1, 3)
POOL_BYTES = 400_000


def main(result: str, *given: str) -> int:
    seconds = {form: float(text) for form, _, text in (each.partition("=") for each in given)}

    def stub(name: str, launch: gpu_kernels.Launch, num_launches: int) -> float:
        assert num_launches >= 2
        for turn in (0, num_launches - 1):
            launch(turn)
        return seconds.get(name.rpartition(", ")[2], 1e-6)

    chosen = gpu_kernels.options(["--json", result, "--min-ratio", "0.98"])
    pools = gpu_kernels.Pools(TINY, torch.float32, "cpu", free_bytes=POOL_BYTES)
    rows = gpu_kernels.measure(pools, stub, "cpu", BATCHES)
    return gpu_kernels.finish(rows, pools, chosen)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
