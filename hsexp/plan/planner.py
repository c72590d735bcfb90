"""From a launch to a plan: narrow the axes, resolve every cell, name it by its content."""

from collections import deque
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

from hsexp.config.axes import ARM_AXES, AXES, SEEDS, stated
from hsexp.config.base import ConfigError, parse_union
from hsexp.config.campaigns import Block
from hsexp.config.catalog import changes, with_changes
from hsexp.config.device import DeviceConfig
from hsexp.config.engine import VllmEngine
from hsexp.config.launch import Launch
from hsexp.memory.organizations import OrganizationConfig
from hsexp.memory.policies.admission import AdmissionConfig
from hsexp.plan import sharing
from hsexp.plan.advice import feasible, prepared
from hsexp.plan.cells import Cell, Plan, cell_key, content_key
from hsexp.plan.contract import contract_of
from hsexp.plan.devices import priced, require_memory
from hsexp.plan.registration import registration_of
from hsexp.plan.resolve import Catalog, open_sizes, resolve
from hsexp.plan.run import RunConfig, VllmRunConfig
from hsexp.plan.traces import PlannedTraces
from hsexp.sim.config import SchedulerConfig
from hsexp.workload import WorkloadConfig
from hsexp.workload.arrivals import ArrivalsConfig
from hsexp.workload.traces.config import TraceWorkload


def make_plan(
    launch: Launch,
    *,
    engine: Literal["sim", "vllm"],
    follow_ups: Mapping[str, Block] = MappingProxyType({}),
) -> Plan:
    """Every cell of a serving campaign, in the order in which they run.

    Args:
        engine: the engine that the launch's `engine` was resolved to.
        follow_ups: blocks beside the campaign's own, which no pin narrows.

    Raises:
        TraceError: a trace cannot be read.
        ConfigError: an axis value is unknown or a resolved cell is refused.
    """
    computed: list[str] = []
    if launch.serving.advice is not None:
        launch, computed = prepared(launch)
    resolved = resolve(launch)
    launch = priced(resolved.launch) if engine == "sim" else resolved.launch
    catalog = _fitted(resolved.catalog, launch.device) if engine == "sim" else resolved.catalog
    campaign = launch.serving
    blocks, notes = _narrow(launch)
    if campaign.advice is not None:
        blocks, left_out = feasible(resolved, blocks)
        notes += left_out
    blocks |= follow_ups
    if engine == "sim" and (doubt := launch.device.doubt(launch.model.name)) is not None:
        notes.append(doubt)
    cells: dict[str, Cell] = {}
    total = 0
    traces = PlannedTraces()
    said: dict[str, None] = {}
    for name, block in blocks.items():
        laws = {
            "workload": _law_of(block.workload, "workload", launch.workload),
            "arrivals": _law_of(block.arrivals, "arrivals", launch.arrivals),
        }
        for axes in _combinations(block, rotate=engine != "sim"):
            total += 1
            config = _resolve(launch, block, laws, axes, catalog, traces, engine=engine)
            said |= dict.fromkeys(sharing.notes(laws["workload"], axes["sharing"]))
            said |= dict.fromkeys(_trace_notes(config.workload, traces))
            said |= dict.fromkeys(open_sizes(launch, (config.organization,)))
            data = config.model_dump(mode="json")
            cell = Cell(
                campaign=campaign.name,
                block=name,
                axes=stated(axes),
                config=data,
                cell_id=cell_key(data),
                pair_id=content_key(
                    {axis.name: axes[axis.name] for axis in AXES if axis.pairs}
                    | {"seed": axes["seed"]}
                    | {"workload": block.workload, "arrivals": block.arrivals}
                    | _content_of(config.workload)
                ),
            )
            cells.setdefault(cell.cell_id, cell)
    if len(cells) < total:
        notes.append(f"{total - len(cells)} cells are shared between blocks and run once")
    return Plan(
        campaign=campaign.name,
        cells=tuple(cells.values()),
        contract=contract_of(campaign.name, cells.values()),
        notes=tuple(dict.fromkeys((*resolved.notes, *computed, *notes, *said))),
        registration=registration_of(launch),
    )


# -- narrowing -----------------------------------------------------------------------------------


def _narrow(launch: Launch) -> tuple[dict[str, Block], list[str]]:
    """Blocks after narrowing, and notes. Blocks that lack a chosen value are left out; if every
    block lacks it, the value replaces the axis in all of them."""
    blocks, notes = dict(launch.serving.blocks), []
    for axis in (*ARM_AXES, SEEDS):
        chosen = axis.pinned(launch)
        if chosen is None:
            continue
        for value in chosen:  # a law's values are plain data: a list, perhaps
            parse_union(axis.type, value, path=axis.spelling or axis.name)
        declared = sorted(
            {value for block in blocks.values() for value in block.values(axis)},
            key=lambda value: (value is not None, value),
        )
        if list(chosen) == declared:
            continue
        if set(chosen) <= set(declared):
            blocks = {
                name: block
                for name, block in blocks.items()
                if set(chosen) <= set(block.values(axis))
            } or blocks
            notes.append(
                f"{axis.name} narrowed to {_describe_values(chosen)} "
                f"(of {_describe_values(declared)})"
            )
        else:
            notes.append(
                f"{axis.name} set to {_describe_values(chosen)}, which the campaign does not plan "
                f"(it has {_describe_values(declared)})"
            )
        blocks = {name: block.pinned(axis, chosen) for name, block in blocks.items()}
    return blocks, notes


def _describe_values(values: Any) -> str:
    values = list(values)
    if len(values) > 6 and all(isinstance(value, int) for value in values):
        return f"{len(values)} values from {values[0]} to {values[-1]}"
    return ", ".join(str(value) for value in values)


def _combinations(block: Block, *, rotate: bool) -> Iterator[dict[str, Any]]:
    """Seeds outermost, so that an unfinished ledger holds whole repeats; organizations innermost,
    so that the arms of a pair run close together.

    Args:
        rotate: begin every seed with another setting, so that a machine that becomes slower does
            not always slow the same one (Appendix E.11).
    """
    combinations = deque(block.combinations())
    for seed in block.values(SEEDS):
        for axes in list(combinations):
            yield {axis.name: axes[axis.name] for axis in ARM_AXES} | {"seed": seed}
        if rotate:
            combinations.rotate(-1)


# -- resolving -----------------------------------------------------------------------------------


def _resolve(
    launch: Launch,
    block: Block,
    laws_of_block: Mapping[str, Mapping[str, Any]],
    axes: Mapping[str, Any],
    catalog: Catalog,
    traces: PlannedTraces,
    *,
    engine: Literal["sim", "vllm"],
) -> RunConfig:
    laws: dict[str, dict[str, Any]] = {group: dict(law) for group, law in laws_of_block.items()}
    laws["admission"] = {}
    chosen: dict[str, Any] = {"seed": axes["seed"]}
    for axis in ARM_AXES:
        value = axes[axis.name]
        if axis.options is not None:
            chosen[axis.name] = catalog.option(axis.name, value)
        elif len(axis.path) == 1:
            chosen[axis.name] = value
        else:
            section, setting = axis.path
            laws[section][setting] = value
    if (fixer := sharing.fixer_of(laws["workload"])) is not None:
        del laws["workload"]["sharing"]
        if (typed := launch.workload.get("sharing")) is not None:
            raise ConfigError(
                f"workload.sharing must be null, got {typed}: {fixer} fixes its own sharing"
            )
    workload = parse_union(WorkloadConfig, laws["workload"], path="workload")
    refusals = [] if fixer is None else sharing.refusals(fixer, block)
    if isinstance(workload, TraceWorkload):
        refusals = [*traces.refusals(workload, block, axes, engine=engine), *refusals]
    elif axes["rate_per_s"] is None:
        refusals.append(
            f"arrivals.rate_per_s is required: workload {workload.name} has no times of its own"
        )
    if refusals:
        raise ConfigError("\n".join(refusals))
    if isinstance(workload, TraceWorkload):
        workload = traces.fixed(workload)
    chosen |= {
        "model": launch.model,
        "admission": AdmissionConfig.parse(laws["admission"], path="admission"),
        "workload": workload,
        "arrivals": None
        if axes["rate_per_s"] is None
        else parse_union(ArrivalsConfig, laws["arrivals"], path="arrivals"),
        "scheduler": _scheduler_of(launch, block, engine=engine),
        "device": _device_of(launch, engine=engine),
        "exact": _exact_of(launch, block),
    }
    if engine == "sim":
        return RunConfig.parse({"engine": engine, **chosen})
    config = VllmRunConfig.parse({"engine": engine, **_serving_of(launch), **chosen})
    require_memory(launch.device, launch.model, config.budget)
    return config


def _trace_notes(workload: WorkloadConfig, traces: PlannedTraces) -> list[str]:
    return traces.notes(workload) if isinstance(workload, TraceWorkload) else []


def _content_of(workload: WorkloadConfig) -> dict[str, str | None]:
    """What a pair must agree in beside its axes: the requests of a trace."""
    return {"content": workload.content_digest} if isinstance(workload, TraceWorkload) else {}


def _fitted(catalog: Catalog, device: DeviceConfig) -> Catalog:
    """The options of a simulation: organizations as the engine has them that the device was fitted
    to."""
    organizations = {
        name: _as_fitted(option, device) if name in device.organization else option
        for name, option in catalog.options["organization"].items()
    }
    return Catalog(options={**catalog.options, "organization": organizations})


def _as_fitted(organization: OrganizationConfig, device: DeviceConfig) -> OrganizationConfig:
    """The organization as the engine has it that the device was fitted to.

    A field that the command line or the scale changed stays as it is.
    """
    given = organization.model_dump(mode="json")
    kept = changes("organization", given)
    fields = {
        name: given[name] | value if isinstance(value, dict) else value
        for name, value in device.organization[organization.name].items()
        if name not in kept
    }
    return type(organization).parse(given | fields, path=f"device.organization.{organization.name}")


def _device_of(launch: Launch, *, engine: str) -> DeviceConfig:
    """The device of a run; without models on a real engine, which measures."""
    if engine == "sim":
        return launch.device
    unmodelled = {"step_time": None, "runner": None, "source": "measured"}
    return launch.device.model_copy(update=unmodelled)


def _serving_of(launch: Launch) -> dict[str, Any]:
    """Settings that only a run on vLLM has.

    Raises:
        ConfigError: the device is only simulated.
    """
    asked, hardware = launch.engine, launch.device.hardware
    assert isinstance(asked, VllmEngine)
    if hardware is None:
        raise ConfigError(
            f"device.hardware is required to run vllm, got null for device {launch.device.name}: "
            "it is only simulated"
        )
    return {
        "hardware": hardware,
        "checkpoint": launch.model.checkpoint,
        "seeded_width": launch.model.seeded_width,
        "checkpoint_revision": launch.model.checkpoint_revision,
        "checkpoint_sha256": launch.model.checkpoint_sha256,
        "transport": asked.transport,
        "num_warmup_requests": asked.num_warmup_requests,
        "max_retries": asked.max_retries,
    }


def _law_of(name: str | None, group: str, law_of_launch: dict[str, Any]) -> dict[str, Any]:
    """The launch's law, or the block's own one with what the command line changes in a law."""
    if name is None:
        return law_of_launch
    return with_changes(group, name, law_of_launch)


def _scheduler_of(
    launch: Launch, block: Block, *, engine: Literal["sim", "vllm"]
) -> SchedulerConfig:
    scheduler = launch.scheduler
    if block.separate is not None:
        scheduler = scheduler.model_copy(update={"separate": block.separate})
    if scheduler.separate and engine != "sim":
        raise ConfigError(
            "scheduler.separate must be false unless engine is sim: the scheduler of engine "
            f"{engine} mixes prefill and decode in a step, got True"
        )
    return scheduler


def _exact_of(launch: Launch, block: Block) -> bool:
    return launch.engine.exact if block.exact is None else block.exact
