"""Widths of our intervals over the paper's: whether seeds scatter here as they do in the paper."""

from collections.abc import Sequence

import pandas as pd

from analysis.compare.estimates import Comparison
from analysis.effects import geometric_mean
from analysis.runs import Origin
from analysis.tables.table import Column, Table


def widths_table(comparisons: Sequence[Comparison], origin: Origin) -> list[Table]:
    """Each interval of the paper beside ours of as many seeds; no table without an interval."""
    ends = {
        (each.targets.table, each.line.name, each.targets.statistic): each for each in comparisons
    }
    rows = []
    for (table, name, statistic), low in ends.items():
        high = ends.get((table, name, "interval high"))
        if statistic != "interval low" or high is None:
            continue
        ours = _width(low.estimate.value, high.estimate.value)
        paper = high.published - low.published
        rows.append(
            {
                "table": table,
                "interval": name,
                "n": low.num_published_seeds,
                "width": ours,
                "width_paper": paper,
                "width_ratio": None if ours is None else ours / paper,
            }
        )
    if not rows:
        return []
    every = pd.DataFrame(rows)
    wide = every[every["width_ratio"] > 0.0]  # seeds that are all equal have no width
    means = {
        str(table): geometric_mean(of_table["width_ratio"])
        for table, of_table in wide.groupby("table")
    }
    return [
        Table(
            name="compare-widths",
            title="Widths of 95 % intervals over as many seeds as the paper has",
            rows=every,
            views=(
                (
                    Column(heading="table", templates=("{table}",)),
                    Column(heading="interval", templates=("{interval}",)),
                    Column(heading="n", templates=("{n:d}",)),
                    Column(group="width, pp", heading="ours", templates=("{width:.2f}",)),
                    Column(group="width, pp", heading="paper", templates=("{width_paper:.2f}",)),
                    Column(heading="ours over paper", templates=("{width_ratio:.2f}",)),
                ),
            ),
            origin=origin,
            notes=tuple(
                f"{table}: geometric mean of the ratios above 0 is {mean:.2f}."
                for table, mean in means.items()
            ),
        )
    ]


def _width(low: float | None, high: float | None) -> float | None:
    return None if low is None or high is None else high - low
