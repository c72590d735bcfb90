"""Ledgers of a campaign that no file of conf knows: any axes, any metrics, counted by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from hsexp.ledger import Attempt, EngineFacts, Ledger, Provenance, encode_table
from hsexp.plan.cells import Cell, content_key

AXES = {"budget": "b63", "rate_per_s": 3.0, "cap": 63, "sharing": 1.0, "organization": "s2"}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run: what it differs in from `AXES`, and what it measured."""

    axes: Mapping[str, Any]
    seed: int = 1
    metrics: Mapping[str, float]
    block: str = "main"
    requests: str = "drawn"
    """Name of the requests that it served, beside their seed."""
    error: str | None = None


def speeds(values: Sequence[float], **axes: Any) -> list[Run]:
    """Runs of one setting with these throughputs, from seed 1 on."""
    return [
        Run(axes=axes, seed=seed, metrics={"throughput_tok_per_s": value})
        for seed, value in enumerate(values, start=1)
    ]


def write(folder: Path, *runs: Run, campaign: str = "mine") -> Path:
    """Record runs in the ledger of a folder."""
    ledger = Ledger.open(folder, contract={"campaign": campaign, "engine": "sim"})
    facts = EngineFacts(engine="sim", device="toy", time_model="law", data_kind="simulated")
    for run in runs:
        axes = {**AXES, **run.axes, "seed": run.seed}
        config = {**axes, "block": run.block}
        cell = Cell(
            campaign=campaign,
            block=run.block,
            axes=axes,
            config=config,
            cell_id=content_key(config),
            pair_id=str(run.seed),
        )
        is_ok = run.error is None
        attempt = Attempt(
            cell=cell,
            status="ok" if is_ok else "failed",
            reason=run.error,
            metrics=run.metrics if is_ok else {},
            workload_digest=f"{run.requests} {run.seed}" if is_ok else None,
            engine=facts if is_ok else None,
            provenance=Provenance.collect(),
            started_at="2026-01-01T00:00:00.000+00:00",
            wall_s=1.0,
        )
        requests = encode_table(pd.DataFrame({"request_id": [0]})) if is_ok else None
        ledger.record(attempt, requests=requests)
    return folder
