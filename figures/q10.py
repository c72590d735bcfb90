"""Q10: throughput of the policies and the best baselines, as a share of boundless memory's."""

from collections.abc import Sequence

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.ledgers import Ledgers, common_origin
from analysis.q10 import Cell, Q10Analysis, declaration
from figures import style
from figures.registry import plot
from hsexp.plan.cells import format_seeds

_DRAWN = {
    "best": ("best baseline, first come", style.FAINT, "x"),
    "best_fair": ("best baseline, any order", style.INK, "+"),
    "s2_p": ("S2 + P", style.COLORS["s2"], "o"),
    "d0_p": ("D0 + P", style.COLORS["d0"], "s"),
    "s3_p": ("S3 + P", style.color("s3"), "D"),
}
"""Label, colour and marker."""


@plot("q10")
def draw(ledgers: Ledgers) -> Figure:
    """One panel a sharing, one mark an arm and cell; cells without a run stay empty.

    Raises:
        NoRunsError: no block of the grid was run.
    """
    config = declaration()
    cells = [cell for block in config.grid for cell in Cell.of(ledgers, block)]
    origin = common_origin([cell.runs for cell in cells])
    limits = {
        (cell.place.rate_per_s, cell.place.sharing): cell.mean(config.bounds.boundless.arm)
        for cell in Cell.of(ledgers, config.bounds.boundless.block)
    }
    sharings = sorted({float(cell.place.sharing or 0.0) for cell in cells})
    figure, axes = plt.subplots(
        1, len(sharings), figsize=(style.PAGE_IN, 3.1), sharey=True, squeeze=False
    )
    for axis, sharing, letter in zip(axes[0], sharings, "abc", strict=False):
        shown = [cell for cell in cells if cell.place.sharing == sharing]
        shown.sort(key=_size)
        _panel(axis, shown, config, limits)
        axis.set_title(f"({letter}) q = {sharing:g}")
    axes[0][0].set_ylabel("share of boundless memory, %")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", bbox_to_anchor=(0.5, 0.1), ncols=len(labels))
    seeds = cells[0].runs.seeds
    style.footer(
        figure,
        f"{style.origin_sentence(origin)} Means over {len(seeds)} seeds ({format_seeds(seeds)}).",
        "Boundless memory: S2 with hit-first, on its own seeds. The best baselines are chosen in "
        "each cell among S2 and D0, without and with headroom, and S2 with retention.",
    )
    figure.subplots_adjust(left=0.072, right=0.99, top=0.92, bottom=0.4, wspace=0.07)
    return figure


def _panel(
    axis: Axes,
    cells: Sequence[Cell],
    config: Q10Analysis,
    limits: dict[tuple[float | None, float | None], float | None],
) -> None:
    for offset, (arm, (label, color, marker)) in enumerate(_DRAWN.items()):
        shares = [_share(cell, _name(cell, arm, config), limits) for cell in cells]
        axis.plot(
            np.arange(len(cells)) + 0.1 * (offset - 2),
            shares,
            linestyle="none",
            marker=marker,
            color=color,
            label=label,
        )
    axis.set_xticks(range(len(cells)), [_tick(cell) for cell in cells])
    axis.set_xlabel("budget, requests / s")


def _name(cell: Cell, arm: str, config: Q10Analysis) -> str | None:
    if arm == "best":
        return cell.best(config.baselines)
    if arm == "best_fair":
        return cell.best(config.all_baselines)
    return arm


def _share(
    cell: Cell, name: str | None, limits: dict[tuple[float | None, float | None], float | None]
) -> float:
    limit = limits.get((cell.place.rate_per_s, cell.place.sharing))
    mean = None if name is None or not cell.known([name]) else cell.mean(name)
    return np.nan if mean is None or limit is None else 100.0 * mean / limit


def _size(cell: Cell) -> tuple[float, int, str]:
    """Rate, then budget: b63 before b108."""
    budget = str(cell.place.budget)
    return cell.place.rate_per_s or 0.0, len(budget), budget


def _tick(cell: Cell) -> str:
    return f"{cell.place.budget}\n{cell.place.rate_per_s:g}"
