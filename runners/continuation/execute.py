"""One continuation check as a cell of the ledger; the engine's process outlives it."""

from datetime import UTC, datetime
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import pandas as pd

from hsexp.engine.settings import EngineSettings
from hsexp.ledger import EngineFacts
from hsexp.plan.cells import Cell
from runners.continuation.process import CheckProcess
from runners.continuation.run import ContinuationRun
from runners.trial import Outcome
from runners.vllm.faults import RunFault, tail

REQUEST_COLUMNS: dict[str, str] = {
    "request": "string",
    "adopted_tokens": "int64",  # at its first admission
    "stable_reference": "bool",  # both isolated runs gave the same, and reused nothing
    "equal_tokens": "bool",
    "equal_logprobs": "bool",  # bit for bit
    "max_logprob_difference": "float64",  # up to the first token that differs
    "num_states": "int64",  # boundaries at which both runs have a state
    "num_equal_states": "int64",  # of these, equal in every byte
}
"""Columns of the request table."""


def execute(cell: Cell, *, logs: Path, limit_s: float, device: str) -> Outcome:
    """Run a check in the process that this worker keeps.

    Raises:
        RunFault: the process ended or took too long.
        CheckFailed: the check raised inside it.
    """
    run = ContinuationRun.parse(cell.config)
    process = _process_for(run, logs, limit_s)
    try:
        found = process.check(_job(run))
    except RunFault as error:
        error.add_note("\n".join(["the last lines of its log:", *tail(process.log)]))
        _end()
        raise
    requests = pd.DataFrame(found["requests"]).astype(REQUEST_COLUMNS)
    return Outcome(
        metrics=metrics_of(requests, found),
        requests=requests,
        engine=EngineFacts(
            engine="vllm",
            device=device,
            time_model="wall clock",
            data_kind="measured",
            observed={
                "engine": found["report"],
                "unmet": found["unmet"],
                "pools_requests": found["pools_requests"],
                "threads": run.hardware.threads,
                "log": process.log.name,
            },
        ),
        workload_digest=found["workload_digest"],
    )


def metrics_of(requests: pd.DataFrame, found: dict[str, Any]) -> dict[str, float | int | None]:
    """Sums over the requests, what happened to them, and whether the comparison may count.

    `happened` and `stable` are the fidelity conditions of D.5: what was wanted really happened, and
    every reference was repeatable.
    """
    return {
        "num_requests": len(requests),
        "num_adopted": int((requests["adopted_tokens"] > 0).sum()),
        "num_equal_tokens": int(requests["equal_tokens"].sum()),
        "num_equal_logprobs": int(requests["equal_logprobs"].sum()),
        "num_states": int(requests["num_states"].sum()),
        "num_equal_states": int(requests["num_equal_states"].sum()),
        "max_logprob_difference": float(requests["max_logprob_difference"].max()),
        "happened": int(not found["unmet"]),
        "stable": int(requests["stable_reference"].all()),
        **{f"num_{name}": count for name, count in found["events"].items()},
    }


def _job(run: ContinuationRun) -> dict[str, Any]:
    """The job for `runners.continuation.engine`. The treatment sets policies and budget."""
    return {
        "settings": EngineSettings.without_policies(
            model=run.model,
            organization=run.organization,
            cap=run.cap,
            exact=run.exact,
            budget_bytes=1 << 30,
        ).model_dump(mode="json"),
        "token_budget": run.token_budget,
        "depth": run.depth_tokens,
        "seed": run.seed,
        "treatment": run.treatment,
    }


_kept: CheckProcess | None = None


def _process_for(run: ContinuationRun, logs: Path, limit_s: float) -> CheckProcess:
    """The process of this worker, started if there is none."""
    global _kept
    if _kept is None:
        logs.mkdir(parents=True, exist_ok=True)
        environment = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
        if run.hardware.threads is not None:
            environment["OMP_NUM_THREADS"] = str(run.hardware.threads)
        log = logs / f"engine-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}.log"
        _kept = CheckProcess(environment, log=log, limit_s=limit_s)
        _kept.__enter__()
        Finalize(None, _end, exitpriority=0)  # a worker skips the handlers of `atexit`
    return _kept


def _end() -> None:
    global _kept
    if _kept is not None:
        _kept.close()
        _kept = None
