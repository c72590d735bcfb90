"""A ledger frame of Q6 that was never run: published cell means with noise by seed."""

import numpy as np
import pandas as pd

from analysis.published import published_table

TOKENS_PER_REQUEST = 261.5
SEED_NOISE = 0.02
"""Shared by all arms of a seed, so that pairing removes it."""
RUN_NOISE = 0.005


def q6_attempts(seeds: range, *, noise_seed: int = 7) -> pd.DataFrame:
    """One adopted simulated attempt for each cell of Table B-8 and each seed."""
    rng = np.random.default_rng(noise_seed)
    shared = rng.normal(0.0, SEED_NOISE, len(seeds))
    rows = []
    for cell in published_table("B-8").itertuples():
        own = rng.normal(0.0, RUN_NOISE, len(seeds))
        for seed, factor in zip(seeds, np.exp(shared + own), strict=True):
            requests_per_s = cell.requests_per_s * factor
            rows.append(
                {
                    "cell_id": f"{cell.Index}/{seed}",
                    "campaign": "q6",
                    "block": "confirmation",
                    "organization": cell.organization.lower(),
                    "budget": cell.budget,
                    "rate_per_s": 3.0,
                    "cap": 63,
                    "sharing": 1.0,
                    "headroom": cell.headroom,
                    "retention": "off",
                    "pinning": "k1",
                    "isolation": "share",
                    "seed": seed,
                    "status": "ok",
                    "reason": None,
                    "adopted": True,
                    "exclusion_reason": None,
                    "num_finished": 300,
                    "output_tokens": 300 * TOKENS_PER_REQUEST,
                    "throughput_tok_per_s": TOKENS_PER_REQUEST * requests_per_s,
                    "requests_per_s": requests_per_s,
                    "ttft_p99_s": cell.ttft_p99 / factor,
                    "e2e_p99_s": cell.e2e_p99 / factor,
                    "tpot_p99_s": cell.tpot_p99 / factor,
                    "workload_digest": f"workload of seed {seed}",
                    "data_kind": "simulated",
                    "engine": "sim",
                    "device": "a100_40gb",
                    "time_model": "linear",
                }
            )
    return pd.DataFrame(rows)
