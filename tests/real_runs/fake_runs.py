"""Cells of a few short requests, and runs of them against the scripted server.

As a program it is a launch that can be killed: `python fake_runs.py FOLDER [SCRIPT]`.
"""

import json
import os
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from rich.console import Console

from hsexp.config.catalog import CONF
from hsexp.config.engine import LimitsConfig
from hsexp.config.launch import parse_launch
from hsexp.ledger import Ledger
from hsexp.plan.cells import Cell, Plan, content_key
from hsexp.plan.planner import make_plan
from hsexp.plan.run import VllmRunConfig
from runners.campaign import run_plan
from runners.trial import Outcome
from runners.vllm.execute import execute
from runners.vllm.readback import expected

FAKE = Path(__file__).with_name("fake_server.py")

LIMITS = LimitsConfig(boot_s=20.0, stall_s=20.0, shutdown_s=5.0, port_tries=3)

TRACE = ["arrival_s,input_tokens,output_tokens", "0.0,5,4", "0.02,6,3", "0.04,7,5", ""]
"""Three requests, of 4, 3 and 5 output tokens."""


def make_cell(folder: Path, *overrides: str, trace: list[str] = TRACE) -> Cell:
    """A cell on vLLM over a trace, with weights that nothing loads."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trace.csv").write_text("\n".join(trace))
    weights = folder / "weights"
    weights.mkdir(exist_ok=True)
    (weights / "config.json").write_text('{"vocab_size": 512}')
    launched = [
        "campaign=trace",
        f"workload.path={folder / 'trace.csv'}",
        "engine=vllm",
        "engine.num_warmup_requests=1",
        "device=cpu",
        "model=falcon_h1_mini",
        "~scale",
        f"model.checkpoint={weights}",
        "organization=s2",
        "organization.slot_bytes=8192",
        "budget=b63",
        *overrides,
    ]
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        launch = parse_launch(compose("config", launched))
    (cell,) = make_plan(launch, engine="vllm").cells
    return cell


def write_script(path: Path, cell: Cell, **script: Any) -> None:
    """A script whose server reports what the cell asks for."""
    labels = expected(VllmRunConfig.parse(cell.config))
    path.write_text(json.dumps({"labels": labels | script.pop("labels", {})} | script))


@dataclass(frozen=True, kw_only=True)
class FakeRun:
    """One cell and its scripted server."""

    folder: Path
    cell: Cell
    limits: LimitsConfig = LIMITS

    def outcome(self) -> Outcome:
        return execute(
            self.cell, logs=self.folder / "logs", limits=self.limits, program=program(self.script)
        )

    @property
    def script(self) -> Path:
        return self.folder / "script.json"

    def living(self) -> list[int]:
        return living(self.script)


def fake_run(folder: Path, *overrides: str, trace: list[str] = TRACE, **script: Any) -> FakeRun:
    """Set up a run; keyword arguments are the server's script."""
    limits = LIMITS.model_copy(update=script.pop("limits", {}))
    run = FakeRun(folder=folder, cell=make_cell(folder, *overrides, trace=trace), limits=limits)
    write_script(run.script, run.cell, **script)
    return run


def program(script: Path) -> tuple[str, ...]:
    return (sys.executable, str(FAKE), str(script))


def living(script: Path) -> list[int]:
    """Processes of the scripted servers, and what they started, that still run."""
    pids = map(int, Path(f"{script}.pids").read_text().split())
    return [pid for pid in pids if runs(pid)]


def runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_until_gone(script: Path, deadline_s: float = 10.0) -> list[int]:
    """What still runs at the deadline."""
    give_up = time.monotonic() + deadline_s
    while (left := living(script)) and time.monotonic() < give_up:
        time.sleep(0.02)
    return left


def seeds_plan(cell: Cell, *seeds: int) -> Plan:
    """The cell again and again under other seeds."""
    cells = []
    for seed in seeds:
        config = cell.config | {"seed": seed}
        axes = cell.axes | {"seed": seed}
        cells.append(
            Cell(
                campaign="toy",
                block=cell.block,
                axes=axes,
                config=config,
                cell_id=content_key(config),
                pair_id=cell.pair_id,
            )
        )
    return Plan(campaign="toy", cells=tuple(cells), contract={"toy": True}, notes=())


def launch(ledger: Path, plan: Plan, script: Path) -> None:
    """Run a plan in worker processes against one script."""
    logs = ledger / "logs"
    run_plan(
        plan,
        Ledger.open(ledger, contract=plan.contract),
        partial(execute, logs=logs, limits=LIMITS, program=program(script)),
        workers=1,
        console=Console(quiet=True),
    )


if __name__ == "__main__":
    os.setsid()
    folder = Path(sys.argv[1])
    made = make_cell(folder)
    script = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {"token_s": 60.0}
    write_script(folder / "script.json", made, **script)
    launch(folder / "ledger", seeds_plan(made, 1), folder / "script.json")
