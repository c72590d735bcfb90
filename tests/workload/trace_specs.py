"""Settings of a trace in the tests."""

from pathlib import Path
from typing import Any

from hsexp.workload.traces.config import TraceWorkload


def spec_of(path: Path, **changes: Any) -> TraceWorkload:
    """Settings that read a whole file as it is, with changes."""
    fields: dict[str, Any] = {
        "name": "trace",
        "path": str(path),
        "format": "auto",
        "max_requests": None,
        "tokenizer": None,
        "keep_arrivals": True,
        "content_digest": None,
    }
    return TraceWorkload(kind="trace", **(fields | changes))
