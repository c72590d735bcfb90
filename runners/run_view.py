"""Prints what a launch's cells have accepted: one line a setting, means over its seeds."""

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from hsexp.plan.cells import Plan

_COLUMNS = {
    "finished": ("num_finished", 1, ",.0f"),
    "refused": ("num_refused", 1, ",.0f"),
    "prompt ktok": ("prompt_tokens", 1e3, ",.1f"),
    "prefilled ktok": ("prefill_tokens", 1e3, ",.1f"),
    "output ktok": ("output_tokens", 1e3, ",.1f"),
    "preempted": ("num_preemptions", 1, ",.1f"),
    "tok/s": ("throughput_tok_per_s", 1, ",.1f"),
    "TTFT p99 s": ("ttft_p99_s", 1, ",.2f"),
    "E2E p99 s": ("e2e_p99_s", 1, ",.2f"),
}
"""Heading -> metric of the ledger row, its divisor and its form."""


def print_runs(plan: Plan, frame: pd.DataFrame, console: Console) -> None:
    """Means over the adopted runs of the plan's cells.

    Args:
        frame: adopted rows of the ledger, one a cell.
    """
    rows = frame[frame["cell_id"].isin([cell.cell_id for cell in plan.cells])]
    if rows.empty:
        return
    axes = [
        axis
        for axis in plan.cells[0].axes
        if axis != "seed" and (axis == "organization" or len(set(map(str, rows[axis]))) > 1)
    ]
    kinds = ", ".join(sorted(rows["data_kind"].unique()))
    table = Table(
        title=f"{plan.campaign}: {len(rows)} runs, {kinds}; means over seeds",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for axis in axes:
        table.add_column(axis, no_wrap=True)
    for heading in ("seeds", *_COLUMNS):
        table.add_column(heading, justify="right", no_wrap=True)
    for setting, group in _in_plan_order(rows, plan).groupby(axes, dropna=False, sort=False):
        table.add_row(
            *map(str, setting),
            str(len(group)),
            *(_mean(group[metric] / unit, form) for metric, unit, form in _COLUMNS.values()),
        )
    console.print(table)


def _in_plan_order(rows: pd.DataFrame, plan: Plan) -> pd.DataFrame:
    order = {cell.cell_id: number for number, cell in enumerate(plan.cells)}
    return rows.sort_values("cell_id", key=lambda ids: ids.map(order))


def _mean(values: pd.Series, form: str) -> str:
    """The mean, or a dash where a run has nothing to average."""
    return "-" if values.isna().any() else format(values.mean(), form)
