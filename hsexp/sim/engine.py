"""Runs one workload on the simulated engine and returns its record."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from hsexp.config.device import DeviceConfig
from hsexp.measure.records import REQUEST_COLUMNS, STEP_COLUMNS, RunRecord
from hsexp.memory.hybrid import HybridMemory
from hsexp.memory.policies.waiting import FIRST_COME, WaitingConfig
from hsexp.memory.stretches import StepStretch
from hsexp.sim.balance import check_balance
from hsexp.sim.clocks import clock_of
from hsexp.sim.config import SchedulerConfig
from hsexp.sim.requests import SimRequest
from hsexp.sim.scheduler import SimScheduler
from hsexp.sim.steptime import NS_PER_S, ScaledSteps, StepTimes
from hsexp.trace import Trace, TraceRecorder
from hsexp.workload.request import Workload


def simulate(
    workload: Workload,
    memory: HybridMemory,
    *,
    scheduler: SchedulerConfig,
    device: DeviceConfig,
    cap: int,
    max_model_tokens: int,
    paged: bool = False,
    exact: bool = False,
    waiting: WaitingConfig = FIRST_COME,
    step_time_factor: float = 1.0,
    trace: TraceRecorder | None = None,
) -> RunRecord:
    """Run the workload to the end over a fresh memory.

    Args:
        cap: most running requests.
        max_model_tokens: a longer request is refused on arrival, like one too large for the pools.
        paged: steps take what the device needs to read recurrent states page by page.
        exact: chunks end at canonical positions (`hsexp.memory.chunking`).
        waiting: order in which waiting requests are asked for admission.
        step_time_factor: every step takes so many times as long as on the device.
        trace: records every event; None records none.

    Raises:
        ValueError: the scheduler's settings cannot work with this memory.
        NoProgress: requests are stuck.
        Imbalance: the run's totals contradict each other.
    """
    if scheduler.token_budget < memory.checkpoint_grid:
        raise ValueError(
            f"scheduler.token_budget {scheduler.token_budget} must hold a chunk of one checkpoint "
            f"grid ({memory.checkpoint_grid} tokens)"
        )
    if cap > scheduler.token_budget:
        raise ValueError(
            f"admission.cap {cap} must not exceed scheduler.token_budget {scheduler.token_budget}"
        )
    clock: StepTimes = clock_of(device.known_step_time, paged=paged)
    if step_time_factor != 1.0:
        clock = ScaledSteps(steps=clock, factor=step_time_factor)
    run = SimScheduler(
        workload.requests,
        memory,
        scheduler,
        clock,
        cap=cap,
        max_model_tokens=max_model_tokens,
        exact=exact,
        waiting=waiting,
    )
    if trace is not None:
        trace.clock = lambda: run.now_ns
        trace.start(memory)
    run.run()
    record = RunRecord(
        requests=_request_table(run.requests),
        steps=_step_table(run.stretches),
        counters={**memory.counters(), **run.sums.counters()},
        trace=None if trace is None else Trace(trace.finish()),
        engine={
            "engine": "sim",
            "device": device.name,
            "time_model": device.known_step_time.name,
            "pools": {
                pool.spec.name: {
                    "num_pages": pool.spec.num_pages,
                    "page_bytes": pool.spec.page_bytes,
                }
                for pool in memory.cache.pools
            },
            "headroom_pages": list(memory.admission.headroom_pages),
        },
    )
    check_balance(record, memory)
    return record


def _seconds(times_ns: list[int | None]) -> np.ndarray:
    return np.array([np.nan if t is None else t / NS_PER_S for t in times_ns], dtype=np.float64)


def _request_table(requests: list[SimRequest]) -> pd.DataFrame:
    columns = {
        "request_id": [r.request.request_id for r in requests],
        "status": ["finished" if r.refused is None else "refused" for r in requests],
        "reason": [r.refused for r in requests],
        "prompt_tokens": [r.request.prompt_tokens for r in requests],
        "output_tokens": [r.request.output_tokens for r in requests],
        "generated_tokens": [r.generated for r in requests],
        "arrival_s": [r.arrival_s for r in requests],
        "first_scheduled_s": _seconds([r.first_scheduled_ns for r in requests]),
        "first_token_s": _seconds([r.first_token_ns for r in requests]),
        "finish_s": _seconds([r.finish_ns for r in requests]),
        "num_preemptions": [r.num_preemptions for r in requests],
        "adopted_tokens": [r.adopted_tokens for r in requests],
        "prefill_tokens": [r.prefill_tokens for r in requests],
        "replayed_tokens": [r.replayed_tokens for r in requests],
        "replayed_output_tokens": [r.replayed_output_tokens for r in requests],
    }
    return _frame(columns, REQUEST_COLUMNS)


def _step_table(stretches: list[StepStretch]) -> pd.DataFrame:
    columns = {
        "first_step": [s.first_step for s in stretches],
        "num_steps": [s.num_steps for s in stretches],
        "start_s": [s.start_ns / NS_PER_S for s in stretches],
        "step_s": [s.step_ns / NS_PER_S for s in stretches],
        "decode_tokens": [s.decode_tokens for s in stretches],
        "prefill_tokens": [s.prefill_tokens for s in stretches],
        "running": [s.running for s in stretches],
        "waiting": [s.waiting for s in stretches],
    }
    return _frame(columns, STEP_COLUMNS)


def _frame(columns: Mapping[str, Any], kinds: Mapping[str, str]) -> pd.DataFrame:
    """A table of typed columns. Each is converted once; pandas would guess its type first."""
    return pd.DataFrame(
        {
            name: pd.array(columns[name], dtype="string")
            if kind == "string"
            else np.asarray(columns[name], kind)
            for name, kind in kinds.items()
        }
    )
