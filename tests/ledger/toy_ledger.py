"""Cells, attempts and tables small enough to count by hand."""

from collections.abc import Mapping
from typing import Any, Literal

import pandas as pd

from hsexp.ledger import Attempt, EngineFacts, Metric, Provenance
from hsexp.ledger.provenance import Host
from hsexp.measure.records import REQUEST_COLUMNS
from hsexp.plan.cells import Cell, content_key

CONTRACT: dict[str, Any] = {"workload": {"num_requests": 300, "q": 0.5}, "engine": {"name": "toy"}}
TOY = EngineFacts(engine="toy", device="none", time_model="fixed", data_kind="simulated")
PROVENANCE = Provenance(
    code_version="1", versions={"python": "3"}, host=Host(cpu=None, num_cores=1, platform="toy")
)


def toy_cell(seed: int) -> Cell:
    config = {"seed": seed, **CONTRACT}
    return Cell(
        campaign="toy",
        block="all",
        axes={"organization": "s2", "headroom": None, "seed": seed},
        config=config,
        cell_id=content_key(config),
        pair_id=content_key(CONTRACT),
    )


def toy_attempt(
    seed: int,
    *,
    status: Literal["ok", "failed"] = "ok",
    metrics: Mapping[str, Metric] | None = None,
    engine: EngineFacts = TOY,
) -> Attempt:
    return Attempt(
        cell=toy_cell(seed),
        status=status,
        reason=None if status == "ok" else "ValueError: unlucky",
        metrics={"span_s": float(seed)} if metrics is None else metrics,
        workload_digest=content_key(seed),
        engine=engine,
        provenance=PROVENANCE,
        started_at="2026-01-01T00:00:00.000+00:00",
        wall_s=0.5,
    )


def toy_requests() -> pd.DataFrame:
    """Two requests; the second was refused, so it has a reason and no times."""
    nothing = float("nan")
    values: dict[str, list[Any]] = {
        "status": ["finished", "refused"],
        "reason": [None, "never fits"],
        "finish_s": [1.5, nothing],
    }
    frame = pd.DataFrame({name: values.get(name, [10, 20]) for name in REQUEST_COLUMNS})
    return frame.astype(REQUEST_COLUMNS)
