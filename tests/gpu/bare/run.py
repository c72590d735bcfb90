"""python run.py [arguments of tests/gpu/run_phases.py]

`make test-gpu` from the bundle: one GPU, Python 3.12, PyTorch and Triton, nothing of vLLM, no
network.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent.absolute()
PACKAGES = HERE / "site"


def environment() -> dict[str, str]:
    """What every process of a phase inherits."""
    path = [str(PACKAGES), str(HERE)]
    return {
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONNOUSERSITE": "1",
        "TORCHDYNAMO_DISABLE": "1",  # nothing is compiled, whoever asks for it
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_USE_SPINLOOP_EXT": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }


if __name__ == "__main__":
    program = str(HERE / "tests" / "gpu" / "run_phases.py")
    os.execve(
        sys.executable, [sys.executable, program, *sys.argv[1:]], {**os.environ, **environment()}
    )
