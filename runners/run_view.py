"""Prints the accepted runs of a launch's cells: one line a setting, means over its seeds.

Below the table stand the settings that were overloaded. All of it comes from the ledger alone.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from hsexp.config.axes import value_of
from hsexp.ledger import Ledger
from hsexp.measure.load import is_overloaded

Cells = Mapping[str, Mapping[str, Any]]
"""Cell id -> axes, in the order of the plan."""

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


def print_runs(campaign: str, cells: Cells, ledger: Ledger, console: Console) -> None:
    """Print means over the adopted runs of the cells, and counts where runs are missing."""
    rows = _rows_of(cells, ledger)
    is_complete = len(rows) == len(cells)
    axes = _shown_axes(cells)
    counts = str(len(rows)) if is_complete else f"{len(rows)} of {len(cells)}"
    kinds = "".join(f", {kind}" for kind in sorted(rows["data_kind"].unique()))
    seeds = "seeds" if is_complete else "the seeds that have one"
    table = Table(
        title=f"{campaign}: {counts} runs{kinds}; means over {seeds}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for axis in axes:
        table.add_column(axis, no_wrap=True)
    for heading in ("seeds", *_COLUMNS):
        table.add_column(heading, justify="right", no_wrap=True)
    for setting, ids in _settings(cells, axes).items():
        group = rows[rows["cell_id"].isin(ids)].reindex(
            columns=[m for m, _, _ in _COLUMNS.values()]
        )
        table.add_row(
            *setting,
            str(len(group)) if len(group) == len(ids) else f"{len(group)} of {len(ids)}",
            *(_mean(group[metric] / unit, form) for metric, unit, form in _COLUMNS.values()),
        )
    console.print(table)
    for line in _overloads(cells, rows):
        console.print(f"{campaign}: {line}", markup=False)


def print_refusals(campaign: str, cells: Cells, ledger: Ledger, console: Console) -> None:
    """Print why requests of the cells' adopted runs were refused: one line a setting and kind of
    reason. Prints nothing if none was."""
    rows = _rows_of(cells, ledger)
    if "num_refused" not in rows:
        return
    rows = rows[rows["num_refused"] > 0]
    for setting, ids in _settings(cells, _shown_axes(cells)).items():
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
                f"{campaign}: {' '.join(setting)} refused {count:,} of "
                f"{runs['num_requests'].sum():,.0f} requests: {examples[kind]}",
                markup=False,
            )


def _overloads(cells: Cells, rows: pd.DataFrame) -> Iterator[str]:
    """One line for each setting with a run that was offered more than it served."""
    for setting, ids in _settings(cells, _shown_axes(cells)).items():
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


def _rows_of(cells: Cells, ledger: Ledger) -> pd.DataFrame:
    """Adopted rows of the cells, one a cell."""
    frame = ledger.frame()
    return frame[frame["cell_id"].isin(cells)]


def _shown_axes(cells: Cells) -> list[str]:
    """The organization, and the axes in which the cells differ."""
    named = dict.fromkeys(axis for cell in cells.values() for axis in cell)
    return [
        axis
        for axis in named
        if axis != "seed"
        and (
            axis == "organization"
            or len({str(value_of(cell, axis)) for cell in cells.values()}) > 1
        )
    ]


def _settings(cells: Cells, axes: Sequence[str]) -> dict[tuple[str, ...], set[str]]:
    """The cells of each setting, with or without a run, in the order of the plan."""
    settings: dict[tuple[str, ...], set[str]] = {}
    for cell_id, cell in cells.items():
        setting = tuple(str(value_of(cell, axis)) for axis in axes)
        settings.setdefault(setting, set()).add(cell_id)
    return settings


def _mean(values: "pd.Series[float]", form: str) -> str:
    """The mean, or a dash where there is no run or a run lacks the metric."""
    return "-" if values.isna().any() or values.empty else format(values.mean(), form)
