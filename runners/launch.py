"""Carries out one launch: plan, check, run, then tables and figures."""

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from hydra import compose
from pydantic import Field
from rich.console import Console

from analysis.command import FRESH
from analysis.config import campaigns as analysed_campaigns
from analysis.config import listing
from analysis.errors import AnalysisError, NoInputsError
from analysis.export import RUNS, export
from hsexp.config.axes import MEMORY_AXES, value_of
from hsexp.config.base import Config, ConfigError
from hsexp.config.campaigns import (
    AboutTheEngine,
    Campaign,
    CollectionCampaign,
    ContinuationCampaign,
    CountedCampaign,
    ServingCampaign,
)
from hsexp.config.catalog import as_override, options, read_option
from hsexp.config.engine import EngineConfig, SimEngine
from hsexp.config.launch import Launch, parse_launch
from hsexp.config.overrides import given_settings
from hsexp.console import make_console
from hsexp.core import CORE
from hsexp.ending import EXIT_FAILED_CELLS, EXIT_REFUSED, print_error
from hsexp.ledger import Ledger, LedgerError, Provenance
from hsexp.measure.metrics import metric_names
from hsexp.plan.cells import Cell, Plan, format_seeds
from hsexp.plan.contract import in_words
from hsexp.plan.devices import priced
from hsexp.plan.planner import make_plan
from hsexp.plan.resolve import (
    changed_pins,
    foreign_settings,
    means_nothing,
    memory_for,
    refused,
    require_settings,
    resolve,
)
from hsexp.plan.run import VllmRunConfig, parse_run
from runners.advised import Stage, stages
from runners.campaign import Summary, run_plan
from runners.continuation.execute import execute as check
from runners.continuation.plan import make_plan as continuation_plan
from runners.engine_checks import print_design, refusal
from runners.engines import Engine, choose_engine, executor, machine_for, num_workers
from runners.plan_view import print_counted, print_plan
from runners.recorded import plan_for, recorded
from runners.run_view import print_refusals, print_runs
from runners.status import print_status
from runners.trial import Outcome
from runners.vllm.weights import require_checkpoints

LEDGERS = Path("ledgers")
"""Folder of all ledgers, below the working directory; each is <campaign>/<engine>."""


class Analysis(Config):
    """Tables and figures of one ledger."""

    campaign: str
    ledger: Path
    seeds: tuple[int, ...] | None
    """Seeds that the launch narrowed the campaign to; None uses the campaign's."""
    cells: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Cell id -> axes: the runs to print if no table covers them. Empty where they have been
    printed already."""

    def make(self, console: Console) -> None:
        """Make them as `python -m analysis` and `python -m figures` do.

        Tables and figures name their missing cells. Runs that no table of the campaign covers end
        in the settings of the whole ledger. It is printed, and is not an error, that a figure
        cannot be drawn.

        Raises:
            AnalysisError: the tables cannot be made.
        """
        seeds = [] if self.seeds is None else [f"seeds={list(self.seeds)}"]
        try:
            report = self._make(seeds, seeds, console)
        except NoInputsError:
            console.print(f"{self.campaign}: no table of the campaign covers these runs")
            if self.cells:
                ledger = Ledger.read(self.ledger)
                print_runs(self.campaign, self.cells, ledger, console)
            report = partial(_report, self._arguments)
            with suppress(NoInputsError):
                report = self._make(["table=settings"], ["figure=settings"], console)
        _print_registration(Ledger.read(self.ledger), self.campaign, console)
        _print_report(self.campaign, report, console)

    def _make(self, tables: list[str], figures: list[str], console: Console) -> Callable[[], Path]:
        """Make some tables, then figures. Returns what writes them as a page.

        Args:
            tables: further arguments of `python -m analysis`.
            figures: further arguments of `python -m figures`.

        Raises:
            NoInputsError: the ledger has no run for any of the tables.
        """
        from analysis.__main__ import make_tables
        from analysis.command import parse
        from figures import FIGURES
        from figures.__main__ import draw
        from figures.report.page import report

        request, made = make_tables([*self._arguments, *tables], make_console())
        drawn = None
        with _figures_may_lack(self.campaign, console):
            wanted = parse([*self._arguments, *figures], kind="figure", known=tuple(FIGURES))
            drawn = draw(wanted, make_console())
        return partial(report, request, tables=made, figures=drawn)

    @property
    def _arguments(self) -> list[str]:
        return [f"campaign={self.campaign}", f"ledger={self.ledger}"]


def _report(arguments: list[str]) -> Path:
    """The page of a ledger without a table."""
    from analysis.command import parse
    from analysis.tables import TABLES
    from figures.report.page import report

    return report(parse(arguments, kind="table", known=tuple(TABLES)))


def _print_report(campaign: str, report: Callable[[], Path], console: Console) -> None:
    """Write a page and print its path, or why there is none.

    The runs are in their ledger by then, and `hsexp report` makes the page again: whatever is wrong
    with it must not end a launch, and not keep the next campaign of a collection from running.
    """
    try:
        path = report()
    except Exception as error:
        console.print(f"{campaign}: no report: {type(error).__name__}: {error}", markup=False)
    else:
        console.print(f"{campaign}: report {path}", markup=False)


@contextmanager
def _figures_may_lack(campaign: str, console: Console) -> Iterator[None]:
    """Print why there is no figure instead of ending with an error."""
    try:
        yield
    except AnalysisError as error:
        first, *others = str(error).split("; ")
        more = f"; and {len(others)} more" if others else ""
        console.print(f"{campaign}: no figure: {first}{more}", markup=False)


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a launch."""

    exit_code: int
    analyses: tuple[Analysis, ...] = ()
    """Tables and figures that are still to be made."""
    objective: float | None = None
    """Mean of the launch's objective over its cells; None without one, or if a cell lacks it."""


@dataclass(frozen=True, kw_only=True)
class _Command:
    """Parts of a command that launches of every kind use."""

    overrides: list[str]
    """The command line as Hydra read it."""
    console: Console
    analyse: bool
    """Make tables and figures of a ledger at once; a sweep makes them when all jobs have ended."""
    root: Path = LEDGERS
    """Folder of ledgers, and of tables that are counted without one."""


def run_launch(launch: Launch, overrides: list[str], console: Console, *, analyse: bool) -> Result:
    """Carry out one launch.

    Args:
        overrides: the command line as Hydra read it; a collection hands it to its members.
        analyse: make tables and figures at once; a sweep makes them when all jobs have ended.

    Raises:
        ConfigError: a setting is refused; nothing has run.
        LedgerError: the ledger cannot take these runs.
        AnalysisError: the tables cannot be made.
    """
    if launch.campaign is None:
        print_error(
            "Which campaign? Type one of\n"
            + "\n".join(f"  python -m hsexp campaign={name}" for name in options("campaign"))
            + "\nMore: python -m hsexp --help"
        )
        return Result(exit_code=EXIT_REFUSED)
    command = _Command(overrides=overrides, console=console, analyse=analyse)
    require_settings(launch, overrides)
    if isinstance(launch.campaign, CollectionCampaign):
        return _run_collection(launch.campaign, launch, command)
    return _run(launch, command)


def _run(launch: Launch, command: _Command) -> Result:
    """One campaign that is not a collection."""
    if launch.stage == "status":
        return _print_status(launch, command)
    match launch.campaign:
        case CountedCampaign() as campaign:
            return _run_counted(launch, campaign, command)
        case AboutTheEngine() as campaign:
            return _run_checks(launch, campaign, command)
        case _:
            return _run_serving(launch, command)


# -- several ---------------------------------------------------------------------------------------


def _run_collection(collection: CollectionCampaign, launch: Launch, command: _Command) -> Result:
    """Run the members one after the other. One that fails does not stop the others."""
    if launch.objective is not None:
        collection_of = f"campaign {collection.name}, which has several campaigns"
        raise ConfigError(means_nothing(collection_of, "objective", launch.objective))
    passed_on = [
        item
        for item in command.overrides
        if item.partition("=")[0] != "ledger" and not item.startswith(("campaign=", "campaign."))
    ]
    members = {name: member_of(name, collection, passed_on) for name in collection.campaigns}
    _require_a_use(collection, members.values())
    asks_status = launch.stage == "status"
    if launch.engine.name == "auto" and not asks_status:
        command.console.print(
            f"{collection.name}: engine=auto simulates a collection; engine=vllm runs it for real"
        )
        launch = launch.model_copy(update={"engine": _simulated(launch.engine)})
    engine = "sim" if asks_status else choose_engine(launch.engine.name, launch.device)[0]
    root = launch.ledger or LEDGERS
    results = _run_members(collection, members, replace(command, root=root))
    if collection.fresh_seeds and launch.seeds is None and engine == "sim":
        command.console.print(
            f"{collection.name}: the same on fresh seeds, {format_seeds(collection.fresh_seeds)}"
        )
        fresh = [*passed_on, f"seeds={list(collection.fresh_seeds)}"]
        members = {name: member_of(name, collection, fresh) for name in collection.campaigns}
        results += _run_members(collection, members, replace(command, root=root / FRESH))
    if launch.stage == "all" and collection.compare is not None:
        _compare(collection, launch, engine, command.console)
    return Result(
        exit_code=max(result.exit_code for result in results),
        analyses=tuple(analysis for result in results for analysis in result.analyses),
    )


def _run_members(
    collection: CollectionCampaign, members: Mapping[str, "Member"], command: _Command
) -> list[Result]:
    """Run the members one after the other, each with its ledger below the command's root."""
    start, results = time.monotonic(), []
    for name, member in members.items():
        for setting in member.foreign:
            command.console.print(f"{name} has no use for {setting}")
        try:
            require_settings(member.launch, member.overrides)
            results.append(_run(member.launch, command))
        except (ConfigError, LedgerError, AnalysisError) as error:
            print_error(f"error: {name}: {error}")
            results.append(Result(exit_code=EXIT_REFUSED))
    incomplete = sum(result.exit_code != 0 for result in results)
    command.console.print(
        f"{collection.name}: {len(members)} campaigns in {time.monotonic() - start:.0f} s"
        + (f", {incomplete} of them not complete" if incomplete else "")
    )
    return results


@dataclass(frozen=True, kw_only=True)
class Member:
    """A campaign of a collection, with the part of the command line that it uses."""

    launch: Launch
    overrides: list[str]
    foreign: dict[str, str]
    """Settings for other members, and their values."""


def member_of(name: str, collection: CollectionCampaign, passed_on: list[str]) -> Member:
    """The launch of one member, from the settings that it uses.

    Raises:
        ConfigError: there is no such campaign, it is a collection, or its settings are refused.
    """
    read_option("campaign", name)  # refuses an unknown name and lists the campaigns

    def launched(overrides: list[str]) -> Launch:
        path = as_override()
        return parse_launch(compose("config", overrides=[f"campaign={name}", *overrides, *path]))

    foreign = foreign_settings(launched(passed_on), passed_on)
    own = [item for item in passed_on if not given_settings([item]).keys() & foreign.keys()]
    member = launched(own)
    if isinstance(member.campaign, CollectionCampaign):
        raise ConfigError(f"campaign.campaigns must not name a collection, got {name}")
    if member.engine.name == "auto" and member.stage != "status":
        member = member.model_copy(update={"engine": _simulated(member.engine)})
    if member.stage == "all" and collection.compare is not None:
        member = member.model_copy(update={"stage": "run"})  # one page replaces their tables
    return Member(launch=member, overrides=own, foreign=foreign)


def _simulated(engine: EngineConfig) -> SimEngine:
    """The simulator, as exact as another engine."""
    return SimEngine(name="sim", exact=engine.exact)


def _require_a_use(collection: CollectionCampaign, members: Collection[Member]) -> None:
    """Refuse settings of the command line that no member uses.

    Raises:
        ConfigError: names each such setting with its value.
    """
    refusals = [
        means_nothing(f"any member of campaign {collection.name}", setting, value)
        for setting, value in next(iter(members)).foreign.items()
        if all(setting in member.foreign for member in members)
    ]
    if refusals:
        raise ConfigError("\n".join(refusals))


def _compare(
    collection: CollectionCampaign, launch: Launch, engine: Engine, console: Console
) -> None:
    """Print the comparison, then write its page and those of the members."""
    from analysis.__main__ import print_comparison
    from figures.report.index import index, report_members

    root = launch.ledger or LEDGERS
    arguments = [f"ledgers={root}", f"engine={engine}"]
    if launch.seeds is not None:
        arguments.append(f"seeds={list(launch.seeds)}")
    tables = print_comparison([f"compare={collection.compare}", *arguments], make_console())
    for name, report in report_members(collection.name, root, engine=engine):
        _print_report(name, report, console)
    _print_report(
        collection.name, partial(index, collection.name, arguments, tables=tables), console
    )


# -- one -------------------------------------------------------------------------------------------


def _run_counted(launch: Launch, campaign: CountedCampaign, command: _Command) -> Result:
    """Count and print; with stage=all also write and draw, as `python -m analysis` does.

    The jobs of a sweep write nothing: their files would have the same names.
    """
    from analysis.__main__ import make_requested, print_tables
    from analysis.command import Request
    from analysis.ledgers import Ledgers
    from figures.__main__ import draw
    from figures.report.page import report

    resolved, console = resolve(launch), command.console
    listed = listing(campaign.name if campaign.name in analysed_campaigns() else campaign.kind)
    if launch.stage == "plan":
        _print_head(launch, campaign, resolved.notes, console)
        print_counted(resolved, campaign, listed.tables, listed.figures, console)
        return Result(exit_code=0)
    request = Request(
        names=listed.tables,
        source="ledger",
        ledgers=Ledgers(command.root, launch=resolved, asked=campaign.name),
        out=command.root / "analysis",
    )
    tables = list(make_requested(request))  # any refusal comes before the first line is printed
    _print_head(launch, campaign, resolved.notes, console)
    writes = launch.stage == "all" and command.analyse
    print_tables(tables, request.out if writes else None, console)
    if launch.stage == "all" and not writes:
        console.print(f"{campaign.name}: a job of a sweep writes no files")
    if not writes:
        return Result(exit_code=0)
    drawn = None
    with _figures_may_lack(campaign.name, console):
        drawn = draw(replace(request, names=listed.figures), console) if listed.figures else {}
    _print_report(campaign.name, partial(report, request, tables=tables, figures=drawn), console)
    return Result(exit_code=0)


def _print_status(launch: Launch, command: _Command) -> Result:
    campaign, console = launch.campaign, command.console
    if not isinstance(campaign, ServingCampaign | ContinuationCampaign):
        assert campaign is not None
        console.print(f"{campaign.name}: has no runs; stage=plan says what it does", markup=False)
        return Result(exit_code=0)
    found = list(recorded(launch, command.root))
    for each in found:
        print_status(each, console, needs_steps=launch.keeps_steps)
    if not found:
        engine: Engine = "vllm" if launch.engine.name == "vllm" else "sim"
        plan = plan_for(launch, engine)
        console.print(
            f"{campaign.name}: {len(plan.cells)} planned, and no ledger below "
            f"{command.root / campaign.name}: nothing has run",
            markup=False,
        )
    return Result(exit_code=0)


def _run_serving(launch: Launch, command: _Command) -> Result:
    campaign, console = launch.serving, command.console
    _require_objective(launch)
    engine, why, plan = _planned(launch)
    _check_runs(plan)
    if engine == "sim":
        # Refused before the first cell, and in a plan.
        _ = priced(launch).device.known_step_time
    _print_head(launch, campaign, (_engine_note(engine, why, launch), *plan.notes), console)
    if launch.stage == "plan":
        print_plan(plan, console)
        console.print(f"{plan.campaign}: plan {plan.digest} (what all cells share, tests, seeds)")
        return Result(exit_code=0)
    if engine == "vllm":
        require_checkpoints(VllmRunConfig.parse(cell.config) for cell in plan.cells)
    return _carry_out(
        launch, plan, engine, executor(engine, launch), command, stages=stages(launch, engine)
    )


def _planned(launch: Launch) -> tuple[Engine, str, Plan]:
    """The engine, why it is this one, and the plan. `engine=auto` simulates what vLLM cannot run.

    Raises:
        ConfigError: a setting is refused, or the engine that was asked for cannot run.
    """
    engine, why = choose_engine(launch.engine.name, launch.device)
    try:
        return engine, why, make_plan(launch, engine=engine)
    except ConfigError as error:
        if launch.engine.name != "auto" or engine == "sim":
            raise
        plan = make_plan(launch, engine="sim")
        reason = str(error).splitlines()[0]
        return "sim", f"engine=auto: vllm cannot run this campaign: {reason}", plan


def _run_checks(launch: Launch, campaign: AboutTheEngine, command: _Command) -> Result:
    console = command.console
    print_design(campaign, console)
    engine, why = choose_engine(launch.engine.name, launch.device)
    if engine != campaign.needs_engine or not isinstance(campaign, ContinuationCampaign):
        raise refusal(campaign, launch.engine.name, launch.device)
    plan = continuation_plan(launch, campaign)
    for note in (_engine_note(engine, why, launch), *plan.notes, *changed_pins(launch)):
        console.print(f"{plan.campaign}: {note}")
    if launch.stage == "plan":
        print_plan(plan, console)
        return Result(exit_code=0)
    execute = partial(check, limit_s=campaign.limit_s, device=launch.device.name)
    return _carry_out(launch, plan, engine, execute, command)


def _print_head(launch: Launch, campaign: Campaign, notes: Iterable[str], console: Console) -> None:
    """Print the campaign, and notes on how the command line was read."""
    console.print(campaign.headline)
    for note in (*notes, *changed_pins(launch)):
        console.print(f"{campaign.name}: {note}", markup=False)


def _engine_note(engine: Engine, why: str, launch: Launch) -> str:
    return f"engine {engine} ({why}), device {launch.device.name}, core {CORE.name}"


def _carry_out(
    launch: Launch,
    plan: Plan,
    engine: Engine,
    execute: Callable[..., Outcome],
    command: _Command,
    *,
    stages: Sequence[Stage] = (),
) -> Result:
    """Run the cells that the ledger lacks, then make tables and figures.

    Args:
        execute: runs a cell; real runs also get `logs`, the folder for logs of their attempts.
        stages: extend the plan, one after the other, by what the runs so far show.
    """
    console = command.console
    path = launch.ledger or command.root / plan.campaign / engine
    ledger = Ledger.open(path, contract=plan.contract)
    plan = in_words(plan, ledger.contract.get("words", {}))
    ledger.register(plan.registration, digest=plan.digest, amend=launch.amend)
    notes = [*plan.notes, *_reuse(launch, plan, ledger, engine)]
    for note in notes[len(plan.notes) :]:
        console.print(f"{plan.campaign}: {note}")
    ledger.launch(
        overrides=command.overrides, notes=notes, provenance=Provenance.collect(), note=launch.note
    )
    is_complete = _run_cells(launch, plan, ledger, engine, execute, console).is_complete
    for stage in stages:
        extended = in_words(stage(plan, ledger), ledger.contract.get("words", {}))
        more = replace(extended, cells=_beyond(plan, extended))
        plan = extended
        if more.cells:
            summary = _run_cells(launch, more, ledger, engine, execute, console)
            is_complete = is_complete and summary.is_complete
    console.print(f"{plan.campaign}: ledger {path}")
    analyses: tuple[Analysis, ...] = ()
    cells: dict[str, dict[str, Any]] = {}
    is_listed = plan.campaign in analysed_campaigns()
    is_serving = isinstance(launch.campaign, ServingCampaign)
    if is_serving:
        cells = {cell.cell_id: dict(cell.axes) for cell in plan.cells}
        print_refusals(plan.campaign, cells, ledger, console)
    if cells and (not is_listed or launch.scale is not None):
        print_runs(plan.campaign, cells, ledger, console)
        cells = {}
    _export(ledger, plan.campaign, console)
    objective = _objective(launch, plan, ledger, console)
    if launch.stage == "all" and (is_listed or is_serving):
        seeds = own_seeds(launch, plan.cells) if is_listed else None
        analyses = (Analysis(campaign=plan.campaign, ledger=path, seeds=seeds, cells=cells),)
    if command.analyse and analyses:
        for analysis in analyses:
            analysis.make(console)
        analyses = ()
    else:
        _print_registration(ledger, plan.campaign, console)
    return Result(
        exit_code=0 if is_complete else EXIT_FAILED_CELLS,
        analyses=analyses,
        objective=objective,
    )


def _export(ledger: Ledger, campaign: str, console: Console) -> None:
    """Write the files for other programs beside the ledger. Everything is recorded before."""
    try:
        export(ledger.path)
    except NoInputsError:  # no run was accepted
        return
    except (LedgerError, AnalysisError) as error:
        console.print(f"{campaign}: {RUNS} was not written: {error}", markup=False)


def _objective(launch: Launch, plan: Plan, ledger: Ledger, console: Console) -> float | None:
    """Mean over the planned cells of the metric that the launch returns."""
    if launch.objective is None:
        return None
    cells = [cell.cell_id for cell in plan.cells]
    rows = ledger.frame().set_index("cell_id").reindex(index=cells, columns=[launch.objective])
    values = rows[launch.objective].astype("float64")
    mean = None if values.isna().any() else float(values.mean())
    shown = "unknown, since a cell lacks it" if mean is None else f"{mean:,.6g}"
    console.print(f"{plan.campaign}: objective {launch.objective}: {shown}", markup=False)
    return mean


def _beyond(plan: Plan, extended: Plan) -> tuple[Cell, ...]:
    """Cells that an extended plan adds."""
    known = {cell.cell_id for cell in plan.cells}
    return tuple(cell for cell in extended.cells if cell.cell_id not in known)


def own_seeds(launch: Launch, cells: Iterable[Cell]) -> tuple[int, ...] | None:
    """Seeds that replace the campaign's: those of the command line, or of its scale."""
    if launch.seeds is None and launch.scale is not None:
        return tuple(sorted({cell.axes["seed"] for cell in cells}))
    return launch.seeds


def _run_cells(
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
    """Reuse accepted runs of equal cells from the ledgers of other campaigns.

    These ledgers are `<campaign>/<engine>` beside this one. A cell with an excluded run in this
    ledger is run again instead. Returns one note for each campaign whose runs are reused.
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
            continue  # that campaign has no ledger
        other, own = source.accepted(), ledger.accepted()
        cells = [
            cell
            for cell in plan.cells
            if cell.cell_id in other and cell.cell_id not in own and cell.cell_id not in excluded
        ]
        for cell in cells:
            ledger.refer(cell, source)
        if cells:
            notes.append(f"{len(cells)} runs of {name} are reused by reference")
    return notes


def _print_registration(ledger: Ledger, campaign: str, console: Console) -> None:
    for line in ledger.registration_notes:
        console.print(f"{campaign}: {line}", markup=False)


def _require_objective(launch: Launch) -> None:
    """Refuse an objective that no run would have, before one starts.

    Raises:
        ConfigError: names the nearest metrics.
    """
    if launch.objective is None or launch.objective in (known := metric_names()):
        return
    near = get_close_matches(launch.objective, known, cutoff=0.0)
    raise ConfigError(
        f"objective must be a metric of a run, got {launch.objective}; "
        f"the nearest are {', '.join(near)}"
    )


def _check_runs(plan: Plan) -> None:
    """Set up one run of each shape, so that misfits are refused before any work starts."""
    seen: set[tuple[str, ...]] = set()
    for cell in plan.cells:
        shape = tuple(
            value_of(cell.axes, name) for name in ("budget", *(axis.name for axis in MEMORY_AXES))
        )
        if shape in seen:
            continue
        seen.add(shape)
        config = parse_run(cell.config)
        memory_for(config.organization, config.model)
        with refused(f"organization {config.organization.name} under budget {config.budget.name}"):
            config.memory()
