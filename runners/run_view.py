"""Prints the accepted runs of a launch's cells: one line a setting, means over its seeds."""

from collections.abc import Sequence

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from hsexp.config.axes import value_of
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
"""Heading -> metric of the ledger row, its divisor and its format."""


def print_runs(plan: Plan, frame: pd.DataFrame, console: Console) -> None:
    """Print means over the adopted runs of the plan's cells, and counts where runs are missing.

    Args:
        frame: adopted rows of the ledger, one a cell.
    """
    planned = {cell.cell_id for cell in plan.cells}
    rows = frame[frame["cell_id"].isin(planned)]
    is_complete = len(rows) == len(planned)
    axes = [
        axis
        for axis in plan.axes
        if axis != "seed"
        and (
            axis == "organization"
            or len({str(value_of(cell.axes, axis)) for cell in plan.cells}) > 1
        )
    ]
    counts = str(len(rows)) if is_complete else f"{len(rows)} of {len(planned)}"
    kinds = "".join(f", {kind}" for kind in sorted(rows["data_kind"].unique()))
    seeds = "seeds" if is_complete else "the seeds that have one"
    table = Table(
        title=f"{plan.campaign}: {counts} runs{kinds}; means over {seeds}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for axis in axes:
        table.add_column(axis, no_wrap=True)
    for heading in ("seeds", *_COLUMNS):
        table.add_column(heading, justify="right", no_wrap=True)
    for setting, ids in _settings(plan, axes).items():
        group = rows[rows["cell_id"].isin(ids)].reindex(
            columns=[m for m, _, _ in _COLUMNS.values()]
        )
        table.add_row(
            *setting,
            str(len(group)) if len(group) == len(ids) else f"{len(group)} of {len(ids)}",
            *(_mean(group[metric] / unit, form) for metric, unit, form in _COLUMNS.values()),
        )
    console.print(table)


def _settings(plan: Plan, axes: Sequence[str]) -> dict[tuple[str, ...], set[str]]:
    """The cells of each setting, with or without a run, in the order of the plan."""
    settings: dict[tuple[str, ...], set[str]] = {}
    for cell in plan.cells:
        setting = tuple(str(value_of(cell.axes, axis)) for axis in axes)
        settings.setdefault(setting, set()).add(cell.cell_id)
    return settings


def _mean(values: "pd.Series[float]", form: str) -> str:
    """The mean, or a dash where there is no run or a run lacks the metric."""
    return "-" if values.isna().any() or values.empty else format(values.mean(), form)
