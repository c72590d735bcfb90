"""Ledgers of rows that were never run: what the tests of whole comparisons read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from hsexp.ledger import (
    Attempt,
    EngineFacts,
    Ledger,
    Provenance,
    encode_arrow,
    encode_table,
)
from hsexp.ledger.provenance import Host
from hsexp.plan.cells import Cell, content_key
from hsexp.trace import Trace

PROVENANCE = Provenance(
    code_version="1", versions={"python": "3"}, host=Host(cpu=None, num_cores=1, platform="toy")
)


def row(organization: str, seed: int, **values: Any) -> dict[str, Any]:
    """Axes of Q1's main block at b63, and whatever is measured."""
    axes = {
        "block": "main",
        "organization": organization,
        "budget": "b63",
        "rate_per_s": 3.0,
        "cap": 63,
        "sharing": 1.0,
        "headroom": 0.0,
        "retention": "off",
        "pinning": "k2",
        "isolation": "share",
        "trace": False,
        "seed": seed,
    }
    return axes | values


AXES = tuple(name for name in row("s0", 0) if name != "block")


def record(
    path: Path,
    campaign: str,
    rows: list[dict[str, Any]],
    *,
    steps: Mapping[int, pd.DataFrame] | None = None,
    traces: Mapping[int, Trace] | None = None,
    device: str = "toy",
    engine: str = "sim",
    contract: Mapping[str, Any] | None = None,
) -> Path:
    """One accepted attempt a row; step tables and traces by the row's place."""
    ledger = Ledger.open(path, contract={"engine": engine} if contract is None else contract)
    for place, values in enumerate(rows):
        axes = {name: values[name] for name in AXES}
        cell = Cell(
            campaign=campaign,
            block=values["block"],
            axes=axes,
            config=axes,
            cell_id=content_key(axes),
            pair_id=str(values["seed"]),
        )
        attempt = Attempt(
            cell=cell,
            status="ok",
            reason=None,
            metrics={name: values[name] for name in values.keys() - {*AXES, "block"}},
            workload_digest=str(values["seed"]),
            engine=EngineFacts(
                engine=engine, device=device, time_model="affine", data_kind="simulated"
            ),
            provenance=PROVENANCE,
            started_at="2026-01-01T00:00:00.000+00:00",
            wall_s=0.0,
        )
        table, trace = (steps or {}).get(place), (traces or {}).get(place)
        ledger.record(
            attempt,
            requests=encode_table(pd.DataFrame({"request_id": [0]})),
            steps=None if table is None else encode_table(table),
            trace=None if trace is None else encode_arrow(trace.table),
        )
    return path
