"""Prints the accepted runs of a launch's cells: one line a setting, means over its seeds.

Below the table stand the settings that were overloaded. All of it comes from the ledger alone.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from hsexp.ledger import Ledger
from hsexp.measure.load import is_overloaded
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


_NUMBER = re.compile(r"[0-9][0-9,.]*")
"""Reasons that differ in nothing else are of one kind."""


def print_runs(plan: Plan, ledger: Ledger, console: Console) -> None:
    """Print means over the adopted runs of the plan's cells, and counts where runs are missing."""
    planned = {cell.cell_id for cell in plan.cells}
    rows = _rows_of(plan, ledger)
    is_complete = len(rows) == len(planned)
    axes = _shown_axes(plan)
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
    for line in _overloads(plan, rows):
        console.print(f"{plan.campaign}: {line}", markup=False)


def print_refusals(plan: Plan, ledger: Ledger, console: Console) -> None:
    """Print why requests of the plan's adopted runs were refused: one line a setting and kind of
    reason. Prints nothing if none was."""
    rows = _rows_of(plan, ledger)
    if "num_refused" not in rows:
        return
    rows = rows[rows["num_refused"] > 0]
    for setting, ids in _settings(plan, _shown_axes(plan)).items():
        runs = rows[rows["cell_id"].isin(ids)]
        examples: dict[str, str] = {}
        counts: Counter[str] = Counter()
        for run in runs.to_dict("records"):
            requests = ledger.request_table(run["cell_id"])
            refused = requests[(requests["status"] == "refused").to_numpy(dtype=bool)]
            for request in refused.to_dict("records"):
                kind = _NUMBER.sub("#", str(request["reason"]))
                place = f"request {request['request_id']} of seed {run['seed']}"
                examples.setdefault(kind, f"{request['reason']} ({place})")
                counts[kind] += 1
        for kind, count in counts.items():
            console.print(
                f"{plan.campaign}: {' '.join(setting)} refused {count:,} of "
                f"{runs['num_requests'].sum():,.0f} requests: {examples[kind]}",
                markup=False,
            )


def _overloads(plan: Plan, rows: pd.DataFrame) -> Iterator[str]:
    """One line for each setting with a run that was offered more than it served."""
    for setting, ids in _settings(plan, _shown_axes(plan)).items():
        runs = rows[rows["cell_id"].isin(ids)]
        overloaded = runs[[bool(is_overloaded(run)) for run in runs.to_dict("records")]]
        if len(overloaded):
            mean = overloaded.mean(numeric_only=True)
            which = "is" if len(overloaded) == len(runs) else f"is in {len(overloaded)} runs"
            yield (
                f"{' '.join(setting)} {which} overloaded: {mean['planned_rate_per_s']:.2f} "
                f"requests/s arrive and {mean['requests_per_s']:.2f} are served, so its latencies "
                f"measure the length of the run (TTFT p99 {mean['ttft_p99_s']:,.0f} s)"
            )


def _rows_of(plan: Plan, ledger: Ledger) -> pd.DataFrame:
    """Adopted rows of the plan's cells, one a cell."""
    frame = ledger.frame()
    return frame[frame["cell_id"].isin({cell.cell_id for cell in plan.cells})]


def _shown_axes(plan: Plan) -> list[str]:
    """The organization, and the axes in which the plan's cells differ."""
    return [
        axis
        for axis in plan.cells[0].axes
        if axis != "seed"
        and (axis == "organization" or len({str(cell.axes[axis]) for cell in plan.cells}) > 1)
    ]


def _settings(plan: Plan, axes: Sequence[str]) -> dict[tuple[str, ...], set[str]]:
    """The cells of each setting, with or without a run, in the order of the plan."""
    settings: dict[tuple[str, ...], set[str]] = {}
    for cell in plan.cells:
        setting = tuple(str(cell.axes[axis]) for axis in axes)
        settings.setdefault(setting, set()).add(cell.cell_id)
    return settings


def _mean(values: "pd.Series[float]", form: str) -> str:
    """The mean, or a dash where there is no run or a run lacks the metric."""
    return "-" if values.isna().any() or values.empty else format(values.mean(), form)
