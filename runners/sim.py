"""Runs one cell on the simulated engine."""

from functools import lru_cache

import numpy as np
import pandas as pd

from hsexp.config.device import RunnerModel
from hsexp.ledger import EngineFacts
from hsexp.measure.metrics import request_span_s, summarize
from hsexp.measure.records import RunRecord
from hsexp.plan.cells import Cell
from hsexp.plan.run import RunConfig
from hsexp.sim.engine import simulate
from hsexp.trace import TraceRecorder
from hsexp.trace.episodes import depth_columns
from hsexp.workload import Workload, WorkloadConfig, build, isolate
from hsexp.workload.arrivals import ArrivalsConfig
from runners.trial import Outcome


def execute(cell: Cell, *, record_steps: bool = False) -> Outcome:
    """Run a cell to the end.

    Raises:
        ConfigError: the cell's configuration is refused.
        NoProgress: requests are stuck.
    """
    config = RunConfig.parse(cell.config)
    workload, digest = workload_of(config)
    record = simulate_run(config, workload, TraceRecorder() if config.trace else None)
    add_depths(record)
    if config.device.runner is not None:
        record.episode_s = _episode_s(record, config.device.runner)
    engine = record.engine
    return Outcome(
        metrics=summarize(record),
        requests=record.requests,
        steps=record.steps if record_steps else None,
        trace=record.trace,
        engine=EngineFacts(
            engine="sim",
            device=config.device.name,
            time_model=config.device.known_step_time.name,
            data_kind="simulated, prior" if config.device.is_prior else "simulated",
            observed={key: engine[key] for key in ("pools", "headroom_pages")},
        ),
        workload_digest=digest,
    )


def simulate_run(
    config: RunConfig, workload: Workload, trace: TraceRecorder | None = None
) -> RunRecord:
    """The run of a configuration on these requests.

    Raises:
        NoProgress: requests are stuck.
    """
    return simulate(
        workload,
        config.memory(),
        scheduler=config.scheduler,
        device=config.device,
        cap=config.admission.cap,
        max_model_tokens=config.model.max_model_tokens,
        paged=config.paged,
        exact=config.exact,
        waiting=config.waiting,
        step_time_factor=config.step_time_factor,
        trace=trace,
    )


def add_depths(record: RunRecord) -> None:
    """Add the columns that follow from the trace to the request table of a traced run.

    Raises:
        TraceError: the events contradict each other.
    """
    if record.trace is not None:
        request_ids = [str(request_id) for request_id in record.requests["request_id"]]
        depths = depth_columns(record.trace, request_ids)
        record.requests = pd.concat([record.requests, depths], axis="columns")


def _episode_s(record: RunRecord, runner: RunnerModel) -> float | None:
    """The episode that the ledger of the device's runner would show; None if nothing finished."""
    arrivals, ends = (record.requests[column].to_numpy() for column in ("arrival_s", "finish_s"))
    span_s = request_span_s(arrivals, ends[~np.isnan(ends)])
    return None if span_s is None else runner.episode_s(span_s)


def workload_of(config: RunConfig) -> tuple[Workload, str]:
    """The workload of a run, and the digest of its requests before isolation salts them."""
    workload = _workload(config.workload, config.arrivals, config.seed)
    digest = workload.digest
    return (isolate(workload) if config.isolation.name == "isolate" else workload), digest


@lru_cache(maxsize=4)
def _workload(workload: WorkloadConfig, arrivals: ArrivalsConfig | None, seed: int) -> Workload:
    """Cached, because the arms of a seed run one after the other on the same requests."""
    return build(workload, arrivals, seed)
