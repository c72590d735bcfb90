"""From a launch to a plan: narrow the axes, resolve every cell, name it by its content."""

import itertools
import math
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from hsexp.config.axes import AXES
from hsexp.config.base import Config, ConfigError, parse_union
from hsexp.config.campaigns import Block
from hsexp.config.catalog import options, read_option
from hsexp.config.device import DeviceConfig
from hsexp.config.engine import VllmEngine
from hsexp.config.launch import Launch
from hsexp.memory.config import BudgetConfig
from hsexp.memory.organizations import OrganizationConfig
from hsexp.memory.policies.admission import AdmissionConfig
from hsexp.memory.policies.pinning import PinningConfig
from hsexp.memory.policies.retention import RetentionConfig
from hsexp.plan.cells import Cell, Plan, content_key
from hsexp.plan.contract import contract_of
from hsexp.plan.registration import registration_of
from hsexp.plan.run import RunConfig, VllmRunConfig
from hsexp.plan.scale import scaled, scaled_option
from hsexp.sim.config import SchedulerConfig
from hsexp.workload import WorkloadConfig
from hsexp.workload.arrivals import ArrivalsConfig
from hsexp.workload.isolation import IsolationConfig

_GROUP_AXES: dict[str, Any] = {
    "organization": OrganizationConfig,
    "budget": BudgetConfig,
    "retention": RetentionConfig,
    "pinning": PinningConfig,
    "isolation": IsolationConfig,
}
"""Axes whose values name options of a Hydra group."""

_PAIRED_BY = ("budget", "rate_per_s", "cap", "sharing", "isolation", "seed")
"""Runs that agree in these see the same requests under the same load: they form pairs."""

_SPELLED = {
    "headroom": "admission.headroom",
    "cap": "admission.cap",
    "rate_per_s": "arrivals.rate_per_s",
    "sharing": "workload.sharing",
}
"""How the command line spells an axis that is not a group."""

_OPEN_ENDED = ("bytes",)
"""Options that say nothing by themselves."""


def make_plan(launch: Launch, *, engine: Literal["sim", "vllm"]) -> Plan:
    """Every cell of a serving campaign, in the order in which they run.

    Args:
        engine: "sim" or "vllm", what `engine` of the launch was resolved to.

    Raises:
        ConfigError: an axis value is unknown or a resolved cell is refused.
    """
    launch = scaled(launch)
    campaign = launch.serving
    blocks, notes = _narrow(launch)
    if launch.scale is not None:
        notes.insert(0, f"scale {launch.scale.name}: budgets x {launch.scale.budget_factor:g}")
    catalog = _catalog(launch)
    cells: dict[str, Cell] = {}
    for name, block in blocks.items():
        for axes in _combinations(block, rotate=engine != "sim"):
            config = _resolve(launch, block, axes, catalog, engine=engine)
            data = config.model_dump(mode="json")
            cell = Cell(
                campaign=campaign.name,
                block=name,
                axes=axes,
                config=data,
                cell_id=content_key(data),
                pair_id=content_key(
                    {axis: axes[axis] for axis in _PAIRED_BY}
                    | {"workload": block.workload, "arrivals": block.arrivals}
                ),
            )
            cells.setdefault(cell.cell_id, cell)
    total = sum(_size(block) for block in blocks.values())
    if len(cells) < total:
        notes.append(f"{total - len(cells)} cells are shared between blocks and run once")
    return Plan(
        campaign=campaign.name,
        cells=tuple(cells.values()),
        contract=contract_of(campaign.name, cells.values()),
        notes=tuple(notes),
        registration=registration_of(launch),
    )


# -- narrowing -----------------------------------------------------------------------------------


def _choices(launch: Launch) -> dict[str, tuple[Any, ...]]:
    """Axes that the command line pinned, and to what."""
    chosen: dict[str, tuple[Any, ...] | None] = {
        axis: (getattr(launch, axis).name,) if getattr(launch, axis) is not None else None
        for axis in _GROUP_AXES
    }
    scalars = {
        "headroom": launch.admission.headroom,
        "cap": launch.admission.cap,
        "rate_per_s": launch.arrivals.get("rate_per_s"),
        "sharing": launch.workload.get("sharing"),
        "trace": launch.trace,
    }
    chosen |= {axis: None if value is None else (value,) for axis, value in scalars.items()}
    chosen["seeds"] = launch.seeds
    return {axis: values for axis, values in chosen.items() if values is not None}


def _narrow(launch: Launch) -> tuple[dict[str, Block], list[str]]:
    """Blocks after narrowing. A block that lacks a chosen value is left out while another block
    has it; where none has it, the value replaces the axis in all."""
    campaign, notes = launch.serving, []
    blocks = dict(campaign.blocks)
    for axis, chosen in _choices(launch).items():
        declared = sorted(
            {value for block in blocks.values() for value in getattr(block, axis)},
            key=lambda value: (value is not None, value),
        )
        if list(chosen) == declared:
            continue
        known = set(chosen) <= set(declared)
        if known:
            blocks = {
                name: block
                for name, block in blocks.items()
                if set(chosen) <= set(getattr(block, axis))
            } or blocks
            notes.append(f"{axis} narrowed to {_words(chosen)} (of {_words(declared)})")
        else:
            notes.append(
                f"{axis} set to {_words(chosen)}, which the campaign does not plan "
                f"(it has {_words(declared)})"
            )
        try:
            blocks = {
                name: Block.parse(block.model_dump() | {axis: chosen})
                for name, block in blocks.items()
            }
        except ConfigError as error:
            refused = str(error).replace(f"{axis}.0 ", f"{_SPELLED.get(axis, axis)} ")
            raise ConfigError(refused) from None
    return blocks, notes


def _words(values: Any) -> str:
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
    inner = [axis for axis in AXES if axis != "seeds"]
    values = [getattr(block, axis) for axis in inner]
    combinations = deque(itertools.product(*values))
    for seed in block.seeds:
        for combination in list(combinations):
            axes = dict(zip(inner, combination, strict=True))
            yield {"organization": axes.pop("organization"), **axes, "seed": seed}
        if rotate:
            combinations.rotate(-1)


def _size(block: Block) -> int:
    return math.prod(len(getattr(block, axis)) for axis in AXES)


# -- resolving -----------------------------------------------------------------------------------


def _catalog(launch: Launch) -> dict[str, dict[str, Config]]:
    """Every option of the axes' groups, checked; a pinned group replaces its option."""
    catalog: dict[str, dict[str, Config]] = {}
    for group, kind in _GROUP_AXES.items():
        catalog[group] = {
            name: parse_union(
                kind,
                scaled_option(launch.scale, group, read_option(group, name)),
                path=f"{group}.{name}",
            )
            for name in options(group)
            if name not in _OPEN_ENDED
        }
        pinned = getattr(launch, group)
        if pinned is not None:
            catalog[group][pinned.name] = pinned
    return catalog


def _resolve(
    launch: Launch,
    block: Block,
    axes: Mapping[str, Any],
    catalog: dict[str, dict[str, Config]],
    *,
    engine: Literal["sim", "vllm"],
) -> RunConfig:
    chosen: dict[str, Any] = {}
    for group in _GROUP_AXES:
        name = axes[group]
        if name not in catalog[group]:
            read_option(group, name)  # refuses with the options there are
        chosen[group] = catalog[group][name]
    workload = dict(_of_block(launch.workload, "workload", block.workload))
    if "sharing" in workload:
        workload["sharing"] = axes["sharing"]
    arrivals = None
    if axes["rate_per_s"] is not None:
        law = _of_block(launch.arrivals, "arrivals", block.arrivals)
        arrivals = parse_union(
            ArrivalsConfig, law | {"rate_per_s": axes["rate_per_s"]}, path="arrivals"
        )
    chosen |= {
        "model": launch.model,
        "admission": AdmissionConfig.parse(
            {"headroom": axes["headroom"], "cap": axes["cap"]}, path="admission"
        ),
        "workload": parse_union(WorkloadConfig, workload, path="workload"),
        "arrivals": arrivals,
        "scheduler": _scheduler_of(launch, block, engine=engine),
        "device": _device_of(launch, engine=engine),
        "trace": axes["trace"],
        "exact": _exact_of(launch, block),
        "seed": axes["seed"],
    }
    if engine == "sim":
        return RunConfig(engine=engine, **chosen)
    if axes["trace"]:
        raise ConfigError(
            f"trace must be false unless engine is sim: engine {engine} records no state depths, "
            "got True"
        )
    return VllmRunConfig(engine=engine, **_serving_of(launch), **chosen)


def _device_of(launch: Launch, *, engine: str) -> DeviceConfig:
    """A real engine measures: what the device's steps would take is no part of its runs."""
    if engine == "sim":
        return launch.device
    return launch.device.model_copy(update={"step_time": None, "source": "measured"})


def _serving_of(launch: Launch) -> dict[str, Any]:
    """What a run on vLLM has beyond a simulated one.

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
        "transport": asked.transport,
        "num_warmup_requests": asked.num_warmup_requests,
        "max_retries": asked.max_retries,
    }


def _of_block(of_launch: dict[str, Any], group: str, name: str | None) -> dict[str, Any]:
    return of_launch if name is None else read_option(group, name)


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
