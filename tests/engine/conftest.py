"""Everything here needs vLLM's CPU build (make setup-cpu)."""

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_process import EngineProcess

# For all engines, which inherit it: vLLM has libgomp preloaded, which reads this as it is loaded,
# and with two threads the bits of a decode depend on its batch (docs/continuation.md).
os.environ["OMP_NUM_THREADS"] = "1"

# The toy model and the toy sizes of the memory's own tests.
sys.path.append(str(Path(__file__).parents[1] / "memory"))

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/engine" in str(item.path):
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def engines() -> Iterator[EngineProcess]:
    """Real engines, one after the other in one process."""
    process = EngineProcess()
    yield process
    process.close()
