"""Ledgers whose runs are made up by a function of arm and seed; nothing is on disk."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from analysis.config import block_design
from analysis.ledgers import Ledgers
from analysis.runs import Runs
from hsexp.config.arm import Arm

ROW = {"status": "ok", "reason": None, "adopted": True, "exclusion_reason": None}
ROW |= {"data_kind": "simulated", "engine": "sim", "device": "dev", "time_model": "law"}

Metrics = Callable[[Arm, int], Mapping[str, float]]


class ToyLedgers(Ledgers):
    """Runs of the blocks that have a law; all others are absent."""

    def __init__(
        self,
        laws: Mapping[tuple[str, str], Metrics],
        left_out: Callable[[str, Arm, int], bool] = lambda campaign, arm, seed: False,
    ) -> None:
        super().__init__(Path("unused"))
        self.laws = laws
        self.left_out = left_out

    def runs(self, campaign: str, block: str, *, seeds: Sequence[int] | None = None) -> Runs:
        design = block_design(campaign, block)
        law = self.laws.get((campaign, block))
        if law is None:
            return Runs.absent(campaign=campaign, design=design, seeds=design.seeds, why="not run")
        rows = [
            {
                **ROW,
                "campaign": campaign,
                "block": block,
                **arm.axes,
                "seed": seed,
                "cell_id": f"{arm.axes}/{seed}",
                "workload_digest": f"{arm.rate_per_s} {arm.sharing} {seed}",
                **law(arm, seed),
            }
            for arm in design.cells()
            for seed in design.seeds
            if not self.left_out(campaign, arm, seed)
        ]
        return Runs.select(
            pd.DataFrame(rows),
            campaign=campaign,
            design=design,
            seeds=design.seeds,
            block=block,
        )


SPEEDS = {"s0": 300.0, "s1": 400.0, "s2": 480.0, "d0": 450.0}


def serving(arm: Arm, seed: int) -> dict[str, float]:
    """A throughput by organization, 1 token/s more a seed; latencies and counters of all kinds."""
    rank = {"s0": 0, "s1": 1, "s2": 2, "d0": 3}[str(arm.organization)]
    step = float(seed % 1000)
    speed = SPEEDS[str(arm.organization)] + step
    if arm.rate_per_s == 0.8:
        speed = 190.0 + step
    if arm.sharing == 0.0:
        speed = 300.0 * 1.25**rank  # the same in every seed
    return {
        "throughput_tok_per_s": speed,
        "e2e_p99_s": 12.0 - rank + 0.1 * step,
        "ttft_p99_s": 3.0 - rank,
        "waiting_max": float(5 - 2 * rank + (seed == 0)) if rank < 3 else 0.0,
        "c_once_tokens": 1000.0 * (700 - 100 * rank) if arm.sharing else 900_000.0,
    }


def traced(arm: Arm, seed: int) -> dict[str, float]:
    """Depths: 1,500 tokens, 600 more with headroom, 900 more with retention; Amax 2,900."""
    joint = 1500.0 + 600.0 * bool(arm.headroom) + 900.0 * (arm.retention == "k2")
    return {
        "adopted_tokens_mean": joint,
        "recurrent_depth_mean": joint + 5.0,
        "attention_depth_mean": 2900.0,
        "throughput_tok_per_s": 500.0,
    }


def retained(arm: Arm, seed: int) -> dict[str, float]:
    """400 tokens/s under ISOLATE; 500 under SHARE, with retention times 1.2 or 1.5."""
    if arm.isolation == "isolate":
        return {"throughput_tok_per_s": 400.0}
    gain = (1.2 if seed % 2 else 1.5) if arm.retention == "k2" else 1.0
    return {"throughput_tok_per_s": 500.0 * gain}


ALL: dict[tuple[str, str], Metrics] = {
    **{("q1", block): serving for block in ("main", "low_b63", "low_b108")},
    **{("q2", block): serving for block in ("anchor_b63", "anchor_b108", "no_sharing")},
    ("q3", "sharing"): serving,
    **{("q5", block): serving for block in ("curve_b63", "curve_b108")},
    ("q7", "availability"): traced,
    ("q8", "lifetime"): traced,
    ("q9", "confirmation"): retained,
}
