"""Carries out one launch: plan, check, run, then tables and figures."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hydra import compose
from rich.console import Console

from analysis.config import campaigns as analysed_campaigns
from analysis.errors import AnalysisError
from analysis.published import published_value
from hsexp.config.base import Config, ConfigError
from hsexp.config.campaigns import (
    BranchingCampaign,
    CacheLabCampaign,
    CapacityCampaign,
    CollectionCampaign,
    ContinuationCampaign,
    EngineCampaign,
    FixedWorkCampaign,
    ServingCampaign,
    SpeculationCampaign,
)
from hsexp.config.catalog import options
from hsexp.config.launch import Launch, parse_launch
from hsexp.ledger import Ledger, LedgerError, Provenance
from hsexp.plan.cells import Plan
from hsexp.plan.contract import in_words
from hsexp.plan.planner import make_plan
from hsexp.plan.run import parse_run
from hsexp.workload import TraceError, build
from hsexp.workload.traces.config import TraceWorkload
from runners.campaign import Summary, run_plan
from runners.capacity import print_capacity
from runners.continuation.execute import execute as check
from runners.continuation.plan import make_plan as continuation_plan
from runners.engine_checks import print_design, refusal
from runners.engines import Engine, choose_engine, executor, machine_for, num_workers
from runners.fixed_work import print_fixed_work
from runners.labs import print_branching, print_cachelab, print_speculation
from runners.plan_view import print_plan
from runners.run_view import print_runs
from runners.trial import Outcome

EXIT_FAILED_CELLS, EXIT_REFUSED, EXIT_INTERRUPTED = 1, 2, 130

LEDGERS = Path("ledgers")
"""Where campaigns keep their runs, below the working directory: <campaign>/<engine>."""


class Analysis(Config):
    """Tables and figures of one ledger."""

    campaign: str
    ledger: Path
    seeds: tuple[int, ...] | None
    """Those that the launch narrowed the campaign to."""

    def make(self, console: Console) -> None:
        """Make them as `python -m analysis` and `python -m figures` do.

        Tables name the cells they lack. A figure needs every cell, which a narrowed launch does
        not give it; this is told and is no error.

        Raises:
            AnalysisError: the tables cannot be made.
        """
        from analysis.__main__ import main as analyse
        from figures.__main__ import main as draw

        arguments = [f"campaign={self.campaign}", f"ledger={self.ledger}"]
        if self.seeds is not None:
            arguments.append(f"seeds={list(self.seeds)}")
        analyse(arguments)
        try:
            draw(arguments)
        except AnalysisError as error:
            first, *others = str(error).split("; ")
            more = f"; and {len(others)} more" if others else ""
            console.print(f"{self.campaign}: no figure: {first}{more}", markup=False)
        _tell_registration(Ledger.read(self.ledger), self.campaign, console)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a launch came to."""

    exit_code: int
    analyses: tuple[Analysis, ...] = ()
    """What it leaves to be made."""


def run_launch(launch: Launch, overrides: list[str], console: Console, *, analyse: bool) -> Result:
    """Carry out one launch.

    Args:
        overrides: the command line as Hydra read it; a collection hands it to its members.
        analyse: make tables and figures at once; a sweep makes them when all jobs have ended.

    Raises:
        ConfigError, TraceError: something is refused; nothing has run.
        LedgerError: the ledger cannot take these runs.
        AnalysisError: the tables cannot be made.
    """
    match launch.campaign:
        case None:
            complain(
                "Which campaign? Type one of\n"
                + "\n".join(f"  python -m hsexp campaign={name}" for name in options("campaign"))
                + "\nMore: python -m hsexp --help"
            )
            return Result(exit_code=EXIT_REFUSED)
        case CapacityCampaign():
            print_capacity(launch, console)
            return Result(exit_code=0)
        case FixedWorkCampaign(chunks=chunks):
            savings = {
                chunk.prefill_tokens: published_value("text", "C.1", chunk.published) / 1e3
                for chunk in chunks
            }
            print_fixed_work(launch, console, published_saving_s=savings)
            return Result(exit_code=0)
        case BranchingCampaign():
            print_branching(launch, launch.campaign, console)
            return Result(exit_code=0)
        case SpeculationCampaign():
            print_speculation(launch, launch.campaign, console)
            return Result(exit_code=0)
        case CacheLabCampaign():
            print_cachelab(launch.campaign, console)
            return Result(exit_code=0)
        case ContinuationCampaign():
            return _run_continuation(launch, launch.campaign, overrides, console, analyse=analyse)
        case EngineCampaign():
            print_design(launch.campaign, console)
            raise refusal(launch.campaign, launch.engine.name, launch.device)
        case CollectionCampaign():
            return _run_collection(launch.campaign, launch, overrides, console, analyse=analyse)
        case _:
            return _run_serving(launch, overrides, console, analyse=analyse)


def _run_collection(
    collection: CollectionCampaign,
    launch: Launch,
    overrides: list[str],
    console: Console,
    *,
    analyse: bool,
) -> Result:
    """Run the members one after the other. One that fails does not stop the others."""
    passed_on = [
        item
        for item in overrides
        if item.partition("=")[0] != "ledger" and not item.startswith(("campaign=", "campaign."))
    ]
    engine, _ = choose_engine(launch.engine.name, launch.device)
    members = []
    for name in collection.campaigns:
        ledger = (launch.ledger or LEDGERS) / name / engine
        composed = compose(
            config_name="config",
            overrides=[f"campaign={name}", f"ledger={ledger}", *passed_on],
        )
        member = parse_launch(composed)
        if member.stage == "all" and collection.compare is not None:
            member = member.model_copy(update={"stage": "run"})  # one page stands for their tables
        members.append(member)
    start, results = time.monotonic(), []
    for member in members:
        try:
            results.append(_run_serving(member, overrides, console, analyse=analyse))
        except (ConfigError, TraceError, LedgerError, AnalysisError) as error:
            complain(f"error: {member.serving.name}: {error}")
            results.append(Result(exit_code=EXIT_REFUSED))
    incomplete = sum(result.exit_code != 0 for result in results)
    console.print(
        f"{collection.name}: {len(members)} campaigns in {time.monotonic() - start:.0f} s"
        + (f", {incomplete} of them not complete" if incomplete else "")
    )
    if launch.stage == "all" and collection.compare is not None:
        _compare(collection.compare, launch, engine)
    return Result(
        exit_code=max(result.exit_code for result in results),
        analyses=tuple(analysis for result in results for analysis in result.analyses),
    )


def _compare(name: str, launch: Launch, engine: Engine) -> None:
    from analysis.__main__ import main as analyse

    arguments = [f"compare={name}", f"ledgers={launch.ledger or LEDGERS}", f"engine={engine}"]
    if launch.seeds is not None:
        arguments.append(f"seeds={list(launch.seeds)}")
    analyse(arguments)


def _run_serving(
    launch: Launch, overrides: list[str], console: Console, *, analyse: bool
) -> Result:
    campaign = launch.serving
    engine, why = choose_engine(launch.engine.name, launch.device)
    plan = make_plan(launch, engine=engine)
    console.print(f"{plan.campaign}: {campaign.title} (Section {campaign.section})")
    console.print(f"{plan.campaign}: engine {engine} ({why}), device {launch.device.name}")
    for note in plan.notes:
        console.print(f"{plan.campaign}: {note}")
    _check_runs(plan)
    if launch.stage == "plan":
        print_plan(plan, console)
        console.print(f"{plan.campaign}: plan {plan.digest} (what all cells share, tests, seeds)")
        return Result(exit_code=0)
    return _carry_out(
        launch, plan, engine, executor(engine, launch), overrides, console, analyse=analyse
    )


def _run_continuation(
    launch: Launch,
    campaign: ContinuationCampaign,
    overrides: list[str],
    console: Console,
    *,
    analyse: bool,
) -> Result:
    print_design(campaign, console)
    engine, why = choose_engine(launch.engine.name, launch.device)
    if engine != campaign.needs_engine:
        raise refusal(campaign, launch.engine.name, launch.device)
    plan = continuation_plan(launch, campaign)
    console.print(f"{plan.campaign}: engine {engine} ({why}), device {launch.device.name}")
    for note in plan.notes:
        console.print(f"{plan.campaign}: {note}")
    if launch.stage == "plan":
        print_plan(plan, console)
        return Result(exit_code=0)
    execute = partial(check, limit_s=campaign.limit_s, device=launch.device.name)
    return _carry_out(launch, plan, engine, execute, overrides, console, analyse=analyse)


def _carry_out(
    launch: Launch,
    plan: Plan,
    engine: Engine,
    execute: Callable[..., Outcome],
    overrides: list[str],
    console: Console,
    *,
    analyse: bool,
) -> Result:
    """Run what the ledger lacks, then tables and figures.

    Args:
        execute: takes a cell, and `logs`, where real runs keep those of their attempts.
    """
    path = launch.ledger or LEDGERS / plan.campaign / engine
    ledger = Ledger.open(path, contract=plan.contract)
    plan = in_words(plan, ledger.contract.get("words", {}))
    ledger.register(plan.registration, digest=plan.digest, amend=launch.amend)
    notes = [*plan.notes, *_reuse(launch, plan, ledger, engine)]
    for note in notes[len(plan.notes) :]:
        console.print(f"{plan.campaign}: {note}")
    ledger.launch(
        overrides=overrides, notes=notes, provenance=Provenance.collect(), note=launch.note
    )
    summary = _run(launch, plan, ledger, engine, execute, console)
    console.print(f"{plan.campaign}: ledger {path}")
    analyses: tuple[Analysis, ...] = ()
    is_serving = isinstance(launch.campaign, ServingCampaign)
    if is_serving and (plan.campaign not in analysed_campaigns() or launch.scale is not None):
        print_runs(plan, ledger.frame(), console)
    if plan.campaign in analysed_campaigns() and launch.stage == "all":
        analyses = (Analysis(campaign=plan.campaign, ledger=path, seeds=_own_seeds(launch, plan)),)
    if analyse and analyses:
        for analysis in analyses:
            analysis.make(console)
        analyses = ()
    else:
        _tell_registration(ledger, plan.campaign, console)
    return Result(
        exit_code=0 if summary.is_complete else EXIT_FAILED_CELLS,
        analyses=analyses,
    )


def _own_seeds(launch: Launch, plan: Plan) -> tuple[int, ...] | None:
    """Seeds that stand for the campaign's: those of the command line, or of its scale."""
    if launch.seeds is None and launch.scale is not None:
        return tuple(sorted({cell.axes["seed"] for cell in plan.cells}))
    return launch.seeds


def _run(
    launch: Launch,
    plan: Plan,
    ledger: Ledger,
    engine: Engine,
    execute: Callable[..., Outcome],
    console: Console,
) -> Summary:
    with machine_for(engine):
        return run_plan(
            plan,
            ledger,
            partial(execute, logs=ledger.path / "logs") if engine == "vllm" else execute,
            workers=num_workers(engine, launch.workers, len(os.sched_getaffinity(0))),
            needs_steps=launch.keeps_steps,
            console=console,
        )


def _reuse(launch: Launch, plan: Plan, ledger: Ledger, engine: Engine) -> list[str]:
    """Take over accepted runs of equal cells from the ledgers of other campaigns, and say so.

    They are looked for beside this ledger, as <campaign>/<engine>. A cell of which a run was
    excluded here is run anew instead.
    """
    notes = []
    attempts = ledger.attempts()
    excluded = set(attempts["cell_id"][attempts["exclusion_reason"].notna()])
    root = ledger.path.parent.parent
    reuses = launch.campaign.reuses if isinstance(launch.campaign, ServingCampaign) else ()
    for name in reuses:
        try:
            source = Ledger.read(root / name / engine)
        except LedgerError:
            continue  # that campaign has not run here
        there, here = source.accepted(), ledger.accepted()
        cells = [
            cell
            for cell in plan.cells
            if cell.cell_id in there and cell.cell_id not in here and cell.cell_id not in excluded
        ]
        for cell in cells:
            ledger.refer(cell, source)
        if cells:
            notes.append(f"{len(cells)} runs of {name} are reused by reference")
    return notes


def _tell_registration(ledger: Ledger, campaign: str, console: Console) -> None:
    for line in ledger.registration_notes:
        console.print(f"{campaign}: {line}", markup=False)


def _check_runs(plan: Plan) -> None:
    """What only shows when a run is set up is refused here, before any work starts."""
    from runners.sim import memory_of

    seen: set[tuple[str, str]] = set()
    for cell in plan.cells:
        shape = (cell.axes["organization"], cell.axes["budget"])
        if shape in seen:
            continue
        seen.add(shape)
        config = parse_run(cell.config)
        try:
            memory_of(config)
        except ValueError as error:
            raise ConfigError(f"organization {shape[0]} under budget {shape[1]}: {error}") from None
    config = parse_run(plan.cells[0].config)
    if isinstance(config.workload, TraceWorkload):
        build(config.workload, config.arrivals, config.seed)


def complain(text: str) -> None:
    """Tell the user on standard error."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(text, markup=False)
