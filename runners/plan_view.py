"""Prints a launch's plan: one line for all seeds of a setting, or a counted campaign's settings."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from hsexp.config.axes import value_of
from hsexp.config.base import Config
from hsexp.config.campaigns import Campaign, CountedCampaign
from hsexp.plan.cells import Cell, Plan, format_seeds
from hsexp.plan.resolve import Resolved


def print_plan(plan: Plan, console: Console) -> None:
    """Print the cells in the order of their first run, one line for all seeds of a setting."""
    axes = [axis for axis in plan.axes if axis != "seed"]
    groups: dict[tuple[object, ...], list[Cell]] = {}
    for cell in plan.cells:
        setting = (value_of(cell.axes, axis) for axis in axes)
        groups.setdefault((cell.block, *setting), []).append(cell)
    varying = [
        axis for axis in axes if len({str(value_of(cell.axes, axis)) for cell in plan.cells}) > 1
    ]
    fixed = {axis: plan.cells[0].axes[axis] for axis in axes if axis not in varying}
    table = Table(title=f"{plan.campaign}: {len(plan.cells)} cells")
    for column in ("block", *varying, "seeds", "first cell"):
        table.add_column(column)
    for (block, *_), cells in groups.items():
        seeds = [cell.axes["seed"] for cell in cells]
        table.add_row(
            str(block),
            *(str(value_of(cells[0].axes, axis)) for axis in varying),
            _seeds(seeds),
            cells[0].cell_id,
        )
    console.print(table)
    console.print("all cells: " + ", ".join(f"{axis} {value}" for axis, value in fixed.items()))


def print_counted(
    resolved: Resolved,
    campaign: CountedCampaign,
    tables: Iterable[str],
    figures: Iterable[str],
    console: Console,
) -> None:
    """Print the settings that a counted campaign would use, and its tables and figures."""
    chosen: dict[str, Config] = {}
    if campaign.uses("model"):
        chosen[f"model {resolved.launch.model.name}"] = resolved.launch.model
    chosen |= {f"organization {m.organization.name}": m.organization for m in resolved.memories}
    chosen |= {f"budget {budget.name}": budget for budget in resolved.budgets}
    if campaign.uses("device"):
        chosen[f"device {resolved.launch.device.name}"] = resolved.launch.device
    chosen["campaign"] = campaign
    console.print(f"{campaign.name}: {campaign.method}")
    for what, config in chosen.items():
        settings = _settings(config.model_dump(mode="json"))
        for group in campaign.options:  # printed by themselves
            settings.pop(group, None)
            settings.pop(f"{group}s", None)
        values = ", ".join(f"{name} {value}" for name, value in settings.items())
        console.print(f"  {what}: {values}", markup=False)
    made = [f"Table {name}" for name in tables] + [f"Figure {name}" for name in figures]
    console.print(f"{campaign.name}: makes {', '.join(made)}")


def _settings(data: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Every setting that affects a number, by its dotted name."""
    settings: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            settings |= _settings(value, f"{above}{name}.")
        elif value is not None and (above or name not in Campaign.model_fields):
            settings[f"{above}{name}"] = value
    return settings


def _seeds(seeds: list[int]) -> str:
    text = format_seeds(seeds)
    return f"{text} ({len(seeds)})" if "-" in text else text
