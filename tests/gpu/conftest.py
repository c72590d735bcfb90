"""Everything here needs a CUDA device, or for the kernels alone Triton's interpreter:

TRITON_INTERPRET=1 python -m pytest tests/gpu/test_kernel_checks.py
"""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "engine"))  # cases, models, Triton on a CPU

from triton_on_cpu import (
    INTERPRETED,
    enable_triton,
    load_stock_kernels,
    repair_interpreter,
)

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]
elif INTERPRETED:
    enable_triton()
    repair_interpreter()
    load_stock_kernels()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/gpu" in str(item.path):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def device_name() -> str:
    """Where the tensors of a kernel test lie."""
    import torch

    if INTERPRETED:
        return "cpu"
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    return "cuda"


@pytest.fixture
def wide_tiles() -> Iterator[None]:
    """The interpreter's time goes by programs: fewer and larger ones than on a GPU."""
    from vllm.model_executor.layers.mamba.ops.mamba_ssm import override_ssm_config

    if not INTERPRETED:
        yield
        return
    with override_ssm_config((128, 8)):
        yield
