"""Where the numbers of a real run come from: device, weights, command, and the engine's own report.

Together with the ledger's versions, code and host this is what Appendices B.1 and B.9 ask for. No
path of the machine is kept.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hsexp.ledger.provenance import source_digest
from hsexp.plan.run import VllmRunConfig
from runners.vllm.readback import Report, pool_facts
from runners.vllm.weights import Weights, file_digests

_NVIDIA_FIELDS = ("name", "driver_version", "memory.total", "power.limit", "clocks.max.sm")


def observed_facts(
    config: VllmRunConfig,
    weights: Weights,
    *,
    report: Report,
    environment: Mapping[str, str],
    log: str,
) -> dict[str, Any]:
    """Plain data for the ledger.

    Args:
        log: the folder of the attempt's logs, below the ledger.
    """
    return pool_facts(report) | {
        "engine": dict(report),
        "config": config.model_dump(mode="json"),
        "checkpoint": {"name": weights.name, "sha256": file_digests(weights.folder)},
        "environment": dict(environment),
        "hardware": hardware_facts(config),
        "runner": source_digest(Path(__file__).parent),
        "log": log,
    }


def hardware_facts(config: VllmRunConfig) -> dict[str, Any]:
    """The GPU and its driver, or the cores and the memory that this process may use."""
    if config.hardware.platform == "cuda":
        return {"gpus": _gpus()}
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {"cores": len(os.sched_getaffinity(0)), "memory_bytes": pages * page_bytes}


def _gpus() -> list[dict[str, str]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    done = subprocess.run(
        [program, f"--query-gpu={','.join(_NVIDIA_FIELDS)}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.strip().splitlines() if done.returncode == 0 else []
    return [
        dict(zip(_NVIDIA_FIELDS, (part.strip() for part in line.split(",")), strict=True))
        for line in lines
    ]
