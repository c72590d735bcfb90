"""Prints a plan: one line for all seeds of a setting."""

from rich.console import Console
from rich.table import Table

from hsexp.plan.cells import Cell, Plan


def print_plan(plan: Plan, console: Console) -> None:
    """Cells in the order of their first run, the seeds of a setting gathered in one line."""
    groups: dict[tuple[object, ...], list[Cell]] = {}
    for cell in plan.cells:
        setting = tuple(value for axis, value in cell.axes.items() if axis != "seed")
        groups.setdefault((cell.block, *setting), []).append(cell)
    axes = [axis for axis in plan.cells[0].axes if axis != "seed"]
    varying = [axis for axis in axes if len({str(cell.axes[axis]) for cell in plan.cells}) > 1]
    fixed = {axis: plan.cells[0].axes[axis] for axis in axes if axis not in varying}
    table = Table(title=f"{plan.campaign}: {len(plan.cells)} cells")
    for column in ("block", *varying, "seeds", "first cell"):
        table.add_column(column)
    for (block, *_), cells in groups.items():
        seeds = [cell.axes["seed"] for cell in cells]
        table.add_row(
            str(block),
            *(str(cells[0].axes[axis]) for axis in varying),
            _seeds(seeds),
            cells[0].cell_id,
        )
    console.print(table)
    console.print("all cells: " + ", ".join(f"{axis} {value}" for axis, value in fixed.items()))


def _seeds(seeds: list[int]) -> str:
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}-{seeds[-1]} ({len(seeds)})"
    return ", ".join(map(str, seeds))
