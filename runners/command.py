"""The command `python -m hsexp`: compose, check, plan, run, then tables and figures."""

import os
import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console

from analysis.config import campaigns as analysed_campaigns
from analysis.errors import AnalysisError
from hsexp.config.base import ConfigError
from hsexp.config.catalog import CONF, options
from hsexp.config.launch import Launch, parse_launch
from hsexp.config.schema import CapacityCampaign, RunConfig, TraceWorkload
from hsexp.ledger import Ledger, LedgerError, Provenance
from hsexp.plan import Plan
from hsexp.planner import make_plan
from hsexp.workload import TraceError, build
from runners.campaign import run_plan
from runners.capacity import print_capacity
from runners.engines import choose_engine, executor
from runners.plan_view import print_plan
from runners.run_view import print_runs

EXIT_FAILED_CELLS, EXIT_REFUSED, EXIT_INTERRUPTED = 1, 2, 130

_PIPED_WIDTH = 140
"""Columns of output that no terminal shows, so that tables are whole."""

_exit_code = 0
"""Worst exit code of the jobs so far: one job, or all jobs of a sweep."""


def main() -> int:
    """Run the command line. Returns the exit code."""
    _run_job()
    return _exit_code


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def _run_job(composed: DictConfig) -> None:
    global _exit_code
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    try:
        code = run_launch(parse_launch(composed), list(HydraConfig.get().overrides.task), console)
    except (ConfigError, TraceError, LedgerError, AnalysisError) as error:
        _complain(f"error: {error}")
        code = EXIT_REFUSED
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    _exit_code = max(_exit_code, code)
    if code == EXIT_INTERRUPTED:
        sys.exit(code)


def run_launch(launch: Launch, overrides: list[str], console: Console) -> int:
    """Carry out one launch.

    Raises:
        ConfigError, TraceError: something is refused; nothing has run.
        LedgerError: the ledger cannot take these runs.
        AnalysisError: the tables cannot be made.
    """
    if launch.campaign is None:
        _complain(
            "Which campaign? Type one of\n"
            + "\n".join(f"  python -m hsexp campaign={name}" for name in options("campaign"))
            + "\nMore: python -m hsexp --help"
        )
        return EXIT_REFUSED
    if isinstance(launch.campaign, CapacityCampaign):
        print_capacity(launch, console)
        return 0
    engine, why = choose_engine(launch.engine.name)
    plan = make_plan(launch, engine=engine)
    console.print(f"{plan.campaign}: {launch.campaign.title} (Section {launch.campaign.section})")
    console.print(f"{plan.campaign}: engine {engine} ({why}), device {launch.device.name}")
    for note in plan.notes:
        console.print(f"{plan.campaign}: {note}")
    _check_runs(plan)
    if launch.stage == "plan":
        print_plan(plan, console)
        return 0
    path = launch.ledger or Path("ledgers") / plan.campaign / engine
    ledger = Ledger.open(path, contract=plan.contract)
    ledger.launch(overrides=overrides, notes=plan.notes, provenance=Provenance.collect())
    summary = run_plan(
        plan,
        ledger,
        executor(engine, record_steps=launch.record_steps),
        workers=launch.workers or os.cpu_count() or 1,
        console=console,
    )
    console.print(f"{plan.campaign}: ledger {path}")
    if plan.campaign not in analysed_campaigns():
        print_runs(plan, ledger.frame(), console)
    elif launch.stage == "all":
        _analyse_and_draw(launch, path)
    return 0 if summary.is_complete else EXIT_FAILED_CELLS


def _analyse_and_draw(launch: Launch, ledger: Path) -> None:
    """Tables and figures as `python -m analysis` and `python -m figures` make them."""
    from analysis.__main__ import main as analyse
    from figures.__main__ import main as draw

    arguments = [f"campaign={launch.serving.name}", f"ledger={ledger}"]
    if launch.seeds is not None:
        arguments.append(f"seeds={list(launch.seeds)}")
    analyse(arguments)
    draw(arguments)


def _check_runs(plan: Plan) -> None:
    """What only shows when a run is set up is refused here, before any work starts."""
    from runners.sim import memory_of

    seen: set[tuple[str, str]] = set()
    for cell in plan.cells:
        config = RunConfig.parse(cell.config)
        shape = (config.organization.name, config.budget.name)
        if shape in seen:
            continue
        seen.add(shape)
        try:
            memory_of(config)
        except ValueError as error:
            raise ConfigError(f"organization {shape[0]} under budget {shape[1]}: {error}") from None
    config = RunConfig.parse(plan.cells[0].config)
    if isinstance(config.workload, TraceWorkload):
        build(config.workload, config.arrivals, config.seed)


def _complain(text: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(text, markup=False)
