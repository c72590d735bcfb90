"""The record of one run: a table of requests, a table of steps, and counters.

Both engines fill the same tables; `hsexp.measure.metrics` turns them into the summary of a ledger
row. A column that an engine does not report is absent, and metrics that need it are None.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hsexp.trace import Trace

REQUEST_COLUMNS: dict[str, str] = {
    "request_id": "int64",
    "status": "string",  # finished | refused | unfinished
    "reason": "string",  # why it was refused or did not finish; null when finished
    "prompt_tokens": "int64",
    "output_tokens": "int64",  # planned
    "generated_tokens": "int64",
    "arrival_s": "float64",  # planned send time
    "first_scheduled_s": "float64",  # first admission; NaN = never
    "first_token_s": "float64",  # NaN = never
    "finish_s": "float64",  # NaN = never
    "num_preemptions": "int64",
    "adopted_tokens": "int64",  # Jadopt of the first admission
    "prefill_tokens": "int64",  # prompt tokens submitted before the first preemption
    "replayed_tokens": "int64",  # prefill tokens submitted after a preemption
    "replayed_output_tokens": "int64",  # of these, generated history
}
"""Columns of the request table: one row a request, in workload order. Times are seconds since the
start of the run."""

DEPTH_COLUMNS: dict[str, str] = {
    "entry_joint_tokens": "int64",  # Jenter: joint depth when the request joined the queue
    "attention_tokens": "int64",  # Amax at its first admission
    "recurrent_tokens": "int64",  # Rmax at its first admission
}
"""Further columns of a traced run; Jadopt is `adopted_tokens`. Refused requests have 0."""

STEP_COLUMNS: dict[str, str] = {
    "first_step": "int64",
    "num_steps": "int64",
    "start_s": "float64",  # start of the first step of the stretch
    "step_s": "float64",  # duration of each of its steps
    "decode_tokens": "int64",  # per step
    "prefill_tokens": "int64",  # per step
    "running": "int64",  # requests scheduled or held running during the stretch
    "waiting": "int64",
}
"""Columns of the step table: one row a stretch of `num_steps` identical steps, in time order.
Idle gaps between stretches are gaps in start_s."""

MEASURED_COLUMNS: dict[str, str] = {
    "sent_s": "float64",  # when it was really sent; NaN = never
    "num_retries": "int64",  # connections that it lost before this one
    "output_digest": "string",  # first 16 hex digits of the SHA-256 of its token ids
}
"""Further columns of a measured run. Its latencies count from `arrival_s` too, so that a late
sender hides nothing."""

SAMPLE_COLUMNS: dict[str, str] = {
    "time_s": "float64",
    "running": "int64",
    "waiting": "int64",
    "free_pages": "int64",  # of all pools; cached pages that nobody references are free
    "preemptions": "int64",  # since the engine started
}
"""Columns of the gauges of a measured run, sampled every second. A simulated run has no samples:
they follow from its step table."""


@dataclass(kw_only=True)
class RunRecord:
    """Tables and counters of one finished run."""

    requests: pd.DataFrame
    steps: pd.DataFrame
    counters: dict[str, int | float | None] = field(default_factory=dict)
    """Totals that the tables do not hold, e.g. num_preemptions, lost_checkpoints."""
    trace: Trace | None = None
    """Every event of the memory and the schedule; None if they were not recorded."""
    samples: pd.DataFrame | None = None
    """Columns of `SAMPLE_COLUMNS`; None if they follow from the steps."""
    token_gaps_s: NDArray[np.float64] | None = None
    """Every gap between output tokens of finished requests, as the client saw it; None if they
    follow from the steps."""
    episode_s: float | None = None
    """Seconds of the runner's episode: load and completion polling, without boot and shutdown
    (Appendix G.3); None if it is not known."""
    engine: dict[str, Any] = field(default_factory=dict)
    """What the engine reports of itself: name, time model, pool plan."""
