"""What the workload tests share: loading a literal trace file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trace_specs import spec_of

from hsexp.workload import Trace, Workload, load_trace, read_trace
from hsexp.workload.arrivals import PoissonArrivals


def _written(path: Path, text: str | bytes | None) -> Path:
    if isinstance(text, str):
        text = text.encode()
    if text is not None:
        path.write_bytes(text)
    return path


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Workload]:
    """Write a text to a file of that name and load it; None loads what is not there."""

    def load_text(
        name: str, text: str | bytes | None, *, seed: int = 0, **changes: Any
    ) -> Workload:
        spec = spec_of(_written(tmp_path / name, text), **changes)
        return load_trace(spec, PoissonArrivals(kind="poisson", rate_per_s=2.0), seed)

    return load_text


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Trace]:
    """The same, as a trace."""

    def read_text(name: str, text: str | bytes | None, **changes: Any) -> Trace:
        return read_trace(spec_of(_written(tmp_path / name, text), **changes))

    return read_text
