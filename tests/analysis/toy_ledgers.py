"""Ledgers of the paper's campaigns with made-up runs: every cell of a block, from one function."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd

from analysis.config import block_design
from analysis.ledgers import Ledgers
from hsexp.config.arm import Arm
from hsexp.ledger import Attempt, EngineFacts, Ledger, Provenance, encode_table
from hsexp.plan.cells import Cell, content_key

Metrics = Mapping[str, float]


def throughput(value: float) -> Metrics:
    return {"throughput_tok_per_s": value}


def no_requests(arm: Arm, seed: int) -> pd.DataFrame:
    return pd.DataFrame({"request_id": [0]})


def write_block(
    root: Path,
    campaign: str,
    block: str,
    metrics: Callable[[Arm, int], Metrics],
    *,
    engine: str = "sim",
    left_out: Callable[[Arm, int], bool] = lambda arm, seed: False,
    requests: Callable[[Arm, int], pd.DataFrame] = no_requests,
) -> None:
    """Add one ok attempt for each cell of a block to <root>/<campaign>/<engine>."""
    design = block_design(campaign, block)
    ledger = Ledger.open(root / campaign / engine, contract={"engine": engine})
    provenance = Provenance.collect()
    for arm in design.cells():
        for seed in design.seeds:
            if left_out(arm, seed):
                continue
            axes = {**arm.axes, "seed": seed}
            law = [design.workload, design.arrivals]
            cell = Cell(
                campaign=campaign,
                block=block,
                axes=axes,
                config={**axes, "law": law},
                cell_id=content_key({**axes, "law": law}),
                pair_id=str(seed),
            )
            attempt = Attempt(
                cell=cell,
                status="ok",
                reason=None,
                metrics=dict(metrics(arm, seed)),
                workload_digest=f"{campaign} {block} {arm.rate_per_s} {arm.sharing} {seed}",
                engine=EngineFacts(
                    engine=engine, device="toy", time_model="linear", data_kind="simulated"
                ),
                provenance=provenance,
                started_at="2026-01-01T00:00:00.000+00:00",
                wall_s=0.1,
            )
            ledger.record(attempt, requests=encode_table(requests(arm, seed)))


def by_organization(speeds: Mapping[str, float]) -> Callable[[Arm, int], Metrics]:
    """The same throughput for every cell of an organization."""
    return lambda arm, seed: throughput(speeds[str(arm.organization)])


def original_five(root: Path, d0: float = 90.0) -> Ledgers:
    """All runs of the original five comparisons: D0 at `d0`, its comparators at 100."""
    speeds = by_organization({"d0": d0, "s0": 100.0, "s2": 100.0})
    for campaign, block in [
        ("q5", "expanded_b63"),
        ("q5", "expanded_b108"),
        ("cap_ladder", "b63_cap8"),
        ("bursts", "burst"),
        ("granite_b160", "load"),
    ]:
        write_block(root, campaign, block, speeds)
    return Ledgers(root)
