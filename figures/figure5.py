"""Figure 5: throughput of D0 and S2 over the offered load, at two budgets (Q5)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.ledgers import Ledgers, common_origin
from analysis.published import published_value
from analysis.runs import THROUGHPUT, Runs
from figures import style
from figures.points import (
    Point,
    has,
    is_there,
    leave_empty,
    not_drawn,
    of_seeds,
    spread_sentence,
)
from figures.registry import plot
from hsexp.config.arm import Arm
from hsexp.plan.cells import format_seeds

BLOCKS = ("curve_b63", "curve_b108")

PRINTED: Mapping[tuple[str, str, float], tuple[str, str]] = {
    ("b63", "s2", 0.8): ("E-3", "b63/S2"),
    ("b108", "s2", 0.8): ("E-3", "b108/S2"),
    ("b63", "s2", 3.0): ("E-1", "b63/S2"),
    ("b108", "s2", 4.5): ("E-1", "b108/S2"),
    ("b63", "d0", 3.0): ("E-6", "L/D0"),
    ("b108", "d0", 3.0): ("E-6", "M/D0"),
    ("b108", "s2", 3.0): ("E-6", "M/S2"),
    ("b108", "d0", 4.5): ("E-6", "H/D0"),
}
"""Table and row of the points that the paper prints as means of seeds 0 to 2, in column
`throughput`. The paper prints no other values of the curves."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One organization under one budget."""

    organization: str
    rates_per_s: tuple[float, ...]
    points: tuple[Point, ...]


@plot("5")
def from_ledgers(ledgers: Ledgers) -> Figure:
    """Means over the seeds that all points share (Section 5.3).

    Raises:
        NoRunsError: neither block was run.
        AnalysisError: an arm lacks a seed or its throughput; all such cells are named.
    """
    every = [ledgers.runs("q5", block) for block in BLOCKS]
    origin = common_origin(every)
    absent = not_drawn("5", [(runs, runs.design.cells(), [THROUGHPUT]) for runs in every])
    figure, axes = plt.subplots(
        1, len(every), figsize=(style.PAGE_IN, 3.05), sharey=True, squeeze=False
    )
    drawn: dict[str, list[Point]] = {}
    for axis, runs, letter in zip(axes[0], every, "ab", strict=True):
        title = f"({letter}) {runs.design.budget[0]}, cap {runs.design.cap[0]}"
        if not is_there(runs):
            leave_empty(axis, title, runs)
            continue
        for organization in runs.design.organization:
            curve = _curve(runs, organization)
            if curve.points:
                _plot(axis, curve)
                drawn.setdefault(organization, []).extend(curve.points)
        rates = [rate for rate in runs.design.rate_per_s if rate is not None]
        axis.set_title(title)
        axis.set_xticks(rates, [f"{rate:g}" for rate in rates])
        axis.set_xlabel("offered requests / s")
    axes[0][0].set_ylabel("output tokens / s")
    axes[0][0].set_ylim(0.0, 800.0)
    _legend(figure, drawn)
    seeds = every[0].seeds
    style.footer(
        figure,
        f"{style.origin_sentence(origin)} n = {len(seeds)} seeds a point ({format_seeds(seeds)}).",
        f"{spread_sentence(chain(*drawn.values()))} D0 is drawn over S2.",
        "Paper: the points that Tables E-1, E-3 and E-6 (traced runs) print.",
    )
    figure.subplots_adjust(left=0.072, right=0.99, top=0.92, bottom=0.365, wspace=0.07)
    style.leave_out(figure, absent)
    return figure


def _curve(runs: Runs, organization: str) -> Curve:
    budget = runs.design.budget[0]
    arms = {
        rate: Arm(organization=organization, rate_per_s=rate)
        for rate in runs.design.rate_per_s
        if rate is not None
    }
    rates = tuple(rate for rate, arm in arms.items() if has(runs, arm, [THROUGHPUT]))
    return Curve(
        organization=organization,
        rates_per_s=rates,
        points=tuple(
            of_seeds(
                runs.values(arms[rate], THROUGHPUT),
                published=_published(budget, organization, rate),
            )
            for rate in rates
        ),
    )


def _published(budget: str, organization: str, rate: float) -> float | None:
    place = PRINTED.get((budget, organization, rate))
    return None if place is None else published_value(*place, "throughput")


def _plot(axis: Axes, curve: Curve) -> None:
    """Draw a curve, its single runs and the published values, each at its load.

    D0 is on top; the larger marks of the others show below it where both are equal.
    """
    color = style.color(curve.organization)
    on_top = curve.organization == "d0"
    layer = 0.5 if on_top else 0.0
    axis.plot(
        curve.rates_per_s,
        [point.value for point in curve.points],
        color=color,
        marker=style.marker(curve.organization),
        markersize=3.2 if on_top else 6.0,
        zorder=3 + layer,
    )
    dots = style.seed_marker(markerfacecolor=color) | {"zorder": 4 + layer}
    paper = style.published_marker(markeredgecolor=color) | {"zorder": 5 + layer}
    for rate, point in zip(curve.rates_per_s, curve.points, strict=True):
        axis.plot([rate] * len(point.seeds), point.seeds, **dots)
        if point.published is not None:
            axis.plot([rate], [point.published], **paper)


def _legend(figure: Figure, drawn: Mapping[str, Sequence[Point]]) -> None:
    handles = []
    for name in drawn:
        color = style.color(name)
        label = name.upper()
        handles.append(Line2D([], [], color=color, marker=style.marker(name), label=label))
    for name, points in drawn.items():
        if all(point.published is None for point in points):
            continue
        marker = style.published_marker(markeredgecolor=style.color(name))
        handles.append(Line2D([], [], **marker, label=f"{name.upper()}, paper"))
    figure.legend(
        handles=handles, loc="lower center", bbox_to_anchor=(0.5, 0.155), ncols=4, columnspacing=2.0
    )
