"""What the workload tests share: loading a literal trace file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hsexp.workload import Workload, load_trace
from hsexp.workload.arrivals import PoissonArrivals
from hsexp.workload.traces.config import TraceWorkload


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Workload]:
    """Write a text to a file of that name and load it; None loads what is not there."""

    def load_text(
        name: str, text: str | bytes | None, *, seed: int = 0, **changes: Any
    ) -> Workload:
        path = tmp_path / name
        if isinstance(text, str):
            text = text.encode()
        if text is not None:
            path.write_bytes(text)
        fields: dict[str, Any] = {
            "name": "trace",
            "path": str(path),
            "format": "auto",
            "max_requests": None,
            "tokenizer": None,
            "keep_arrivals": True,
            "content_digest": None,
        }
        spec = TraceWorkload(kind="trace", **(fields | changes))
        return load_trace(spec, PoissonArrivals(kind="poisson", rate_per_s=2.0), seed)

    return load_text
