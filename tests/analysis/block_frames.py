"""Runs of one block of a campaign, made up by a function of arm and seed; nothing is on disk."""

from collections.abc import Callable, Mapping

import pandas as pd

from analysis.config import block_design
from analysis.runs import Runs
from hsexp.config.arm import Arm

ROW = {"status": "ok", "reason": None, "adopted": True, "exclusion_reason": None}
ROW |= {"data_kind": "simulated", "engine": "sim", "device": "toy", "time_model": "linear"}


def block_runs(
    campaign: str,
    block: str,
    metrics: Callable[[Arm, int], Mapping[str, float]],
    *,
    left_out: Callable[[Arm, int], bool] = lambda arm, seed: False,
) -> Runs:
    """One adopted run for each cell and seed of the block, but for those left out."""
    design = block_design(campaign, block)
    rows = [
        {
            **ROW,
            "campaign": campaign,
            "block": block,
            **dict.fromkeys(Arm.model_fields),
            **arm.axes,
            "seed": seed,
            "cell_id": f"{arm.axes}/{seed}",
            "workload_digest": f"{arm.sharing} {seed}",
            **metrics(arm, seed),
        }
        for arm in design.cells()
        for seed in design.seeds
        if not left_out(arm, seed)
    ]
    return Runs.select(pd.DataFrame(rows), campaign=campaign, design=design, seeds=design.seeds)
