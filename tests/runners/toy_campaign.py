"""A campaign of toy cells whose runs do what they are told: end, last, fail or die.

Spawned workers import it. As a program it is one launch:
`python toy_campaign.py LEDGER WORKERS CELL...` with cells `seed=action`, e.g. `1=ok 2=fail`.
"""

import math
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
from rich.console import Console

from hsexp.ledger import EngineFacts, Ledger
from hsexp.measure.records import REQUEST_COLUMNS
from hsexp.plan.cells import Cell, Plan, content_key
from runners.campaign import Outcome, run_plan

CONTRACT = {"workload": {"num_requests": 2}, "engine": {"name": "toy"}}


def toy_cell(seed: int, action: str = "ok") -> Cell:
    """The block tells the run what to do; the name of the cell does not depend on it."""
    config = {"seed": seed, **CONTRACT}
    return Cell(
        campaign="toy",
        block=action,
        axes={"organization": "s2", "headroom": None, "seed": seed},
        config=config,
        cell_id=content_key(config),
        pair_id=content_key(CONTRACT),
    )


def toy_plan(*cells: Cell) -> Plan:
    return Plan(campaign="toy", cells=cells, contract=CONTRACT, notes=())


def toy_requests() -> pd.DataFrame:
    """Two requests, of 10 and 20 prompt tokens."""
    values = {"request_id": [0, 1], "status": ["finished"] * 2, "reason": [None] * 2}
    values |= {"prompt_tokens": [10, 20]}
    frame = pd.DataFrame({name: values.get(name, [1, 2]) for name in REQUEST_COLUMNS})
    return frame.astype(REQUEST_COLUMNS)


def execute(cell: Cell) -> Outcome:
    action, _, argument = cell.block.partition(":")
    seed = cell.axes["seed"]
    metrics: dict[str, float | int | None] = {"num_requests": 2, "span_s": float(seed)}
    match action:
        case "ok":
            pass
        case "sleep":
            time.sleep(float(argument))
        case "fail":
            raise ValueError(f"seed {seed} is refused [sic]")
        case "fail-when":
            while not Path(argument).exists():
                time.sleep(0.01)
            raise ValueError(f"{argument} exists")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(int(argument))
        case "infinite":
            metrics["span_s"] = math.inf
    return Outcome(
        metrics=metrics,
        requests=toy_requests(),
        engine=EngineFacts(engine="toy", device="none", time_model="fixed", data_kind="simulated"),
        workload_digest=content_key({"seed": seed}),
    )


def with_steps(cell: Cell) -> Outcome:
    steps = pd.DataFrame({"num_steps": [cell.axes["seed"]]})
    return replace(execute(cell), steps=steps)


def with_steps_and_other_metrics(cell: Cell) -> Outcome:
    outcome = with_steps(cell)
    return replace(outcome, metrics={**outcome.metrics, "span_s": -1.0})


def main(ledger: str, workers: str, *cells: str) -> None:
    pairs = [cell.split("=", 1) for cell in cells]
    plan = toy_plan(*(toy_cell(int(seed), action) for seed, action in pairs))
    store = Ledger.open(ledger, contract=CONTRACT)
    try:
        run_plan(plan, store, execute, workers=int(workers), console=Console())
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main(*sys.argv[1:])
