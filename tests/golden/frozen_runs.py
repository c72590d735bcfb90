"""Simulated runs as digests: every organization under each policy and way to schedule."""

from pathlib import Path
from typing import Any

from frozen_form import digest_of_data, digest_of_frame
from frozen_plans import TRACE, TRACE_TEXT
from frozen_project import Cell, composed_data, execute, planned

ORGANIZATIONS = ("s0", "s1", "s2", "d0", "d0_m512")

_POLICIES: dict[str, Any] = {
    "budget": ["b63", "b83"],
    "pinning": ["off", "k1"],
    "retention": ["off", "k2"],
    "headroom": [0.0, 0.19],
}
_PRESSED: dict[str, Any] = {"budget": ["b63"], "pinning": ["k2"], "retention": ["k2"]}

BLOCKS: dict[str, dict[str, Any]] = {
    "policies": _POLICIES,
    "exact": _PRESSED | {"exact": True},
    "separate": _PRESSED | {"separate": True},
    "isolate": _PRESSED | {"isolation": ["isolate"]},
    "trace": _PRESSED | {"trace": [True]},
    "capped": _PRESSED | {"cap": [6]},
}
"""Axes by block; `policies` is a full factorial."""

FILE = "runs.json"

NUM_REQUESTS = 60


def cells() -> dict[str, Cell]:
    """Cells by name: block, axes that vary."""
    data = composed_data(
        "campaign=q6", "engine=sim", f"workload.num_requests={NUM_REQUESTS}", "model=falcon_h1_7b"
    )
    (block,) = data["campaign"]["blocks"].values()
    common = block | {
        "organization": list(ORGANIZATIONS),
        "headroom": [0.0],
        "rate_per_s": [8.0],
        "seeds": [7],
    }
    data["campaign"]["blocks"] = {name: common | axes for name, axes in BLOCKS.items()}
    return {_name(cell): cell for cell in planned(data, "sim").cells}


def trace_cells(folder: Path) -> dict[str, Cell]:
    """Cells that replay a trace, which is written to the folder."""
    path = folder / TRACE
    path.write_text(TRACE_TEXT, encoding="utf-8")
    data = composed_data(
        "campaign=trace",
        "engine=sim",
        f"workload.path={path}",
        "budget=bytes",
        "budget.bytes=300000000",
    )
    return {f"trace file: {_name(cell)}": cell for cell in planned(data, "sim").cells}


def _name(cell: Cell) -> str:
    varied = ("organization", *_POLICIES)
    return f"{cell.block}: {' '.join(f'{axis}={cell.axes[axis]}' for axis in varied)}"


def frozen_runs(folder: Path) -> dict[str, dict[str, Any]]:
    """The golden entry of every run, by its name.

    Args:
        folder: an empty one, for the request trace.
    """
    return {name: _frozen(cell) for name, cell in (cells() | trace_cells(folder)).items()}


def _frozen(cell: Cell) -> dict[str, Any]:
    """Two counts stand in clear, the rest as digests."""
    outcome = execute(cell, record_steps=True)
    assert outcome.steps is not None
    return {
        "preemptions": outcome.metrics["num_preemptions"],
        "steps": outcome.metrics["num_steps"],
        "workload": outcome.workload_digest[:16],
        "metrics": digest_of_data(dict(outcome.metrics)),
        "request_table": digest_of_frame(outcome.requests),
        "step_table": digest_of_frame(outcome.steps),
        "engine": digest_of_data(dict(outcome.engine.observed)),
    }
