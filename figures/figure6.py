"""Figure 6: output throughput against admission headroom, D0 and S2 at three budgets (Q6)."""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis import config as configs
from analysis.families import AnalysisConfig
from analysis.intervals import declared_interval
from analysis.runs import THROUGHPUT, Runs
from analysis.tables.beside import PAPER
from analysis.tables.q6 import published_cell
from figures import style
from figures.points import has, leave_empty, not_drawn
from figures.registry import derived, plot
from hsexp.config.arm import Arm


@plot("6", analysis="q6")
def draw(runs: Runs, config: AnalysisConfig) -> Figure:
    """Means over seeds with bootstrap intervals, preselected settings, and the published levels.

    Raises:
        AnalysisError: an arm lacks a seed or its throughput; all such cells are named.
    """
    absent = not_drawn("6", [(runs, config.design.cells(), [THROUGHPUT])])
    arms = [arm for arm in config.design.cells() if has(runs, arm, [THROUGHPUT])]
    budgets = config.design.budget
    figure, axes = plt.subplots(
        1, len(budgets), figsize=(style.PAGE_IN, 3.0), sharey=True, squeeze=False
    )
    tokens = tokens_per_request(runs)
    for axis, budget, letter in zip(axes[0], budgets, "abcdefgh", strict=False):
        title = f"({letter}) {budget}"
        if not any(arm.budget == budget for arm in arms):
            leave_empty(axis, title, runs)
            continue
        for organization in config.design.organization:
            curve = [
                arm for arm in arms if arm.budget == budget and arm.organization == organization
            ]
            if curve:
                _draw_curve(axis, runs, config, curve, tokens)
        axis.set_title(title)
        axis.set_xticks(config.design.headroom, [_tick(f) for f in config.design.headroom])
        axis.set_xlabel("admission headroom f")
    axes[0][0].set_ylabel("output tokens / s")
    figure.subplots_adjust(left=0.072, right=0.995, top=0.925, bottom=0.355, wspace=0.07)
    drawn = {arm.organization for arm in arms}
    _legend(figure, config, [name for name in config.design.organization if name in drawn])
    figure.text(0.5, 0.012, _footer(runs, config, tokens), ha="center", va="bottom", fontsize=7)
    style.leave_out(figure, absent)
    return figure


@derived("6")
def from_paper() -> Figure:
    """The printed request rates; the paper prints no output tokens a second of these cells."""
    config = configs.load("q6")
    budgets = config.design.budget
    figure, axes = plt.subplots(
        1, len(budgets), figsize=(style.PAGE_IN, 3.0), sharey=True, squeeze=False
    )
    for axis, budget, letter in zip(axes[0], budgets, "abcdefgh", strict=False):
        for organization in config.design.organization:
            arms = [
                Arm(organization=organization, budget=budget, headroom=headroom)
                for headroom in config.design.headroom
            ]
            _draw_published(axis, config, arms)
        axis.set_title(f"({letter}) {budget}")
        axis.set_xticks(config.design.headroom, [_tick(f) for f in config.design.headroom])
        axis.set_xlabel("admission headroom f")
    axes[0][0].set_ylabel("requests / s")
    figure.subplots_adjust(left=0.072, right=0.995, top=0.925, bottom=0.355, wspace=0.07)
    _published_legend(figure, config.design.organization)
    style.footer(figure, f"{style.origin_sentence(PAPER)} Table B-8: means over twelve seeds.")
    return figure


def _draw_published(axis: Axes, config: AnalysisConfig, arms: Sequence[Arm]) -> None:
    organization, budget = str(arms[0].organization), str(arms[0].budget)
    color = style.color(organization)
    levels = np.array([published_cell(arm, "requests_per_s") for arm in arms], dtype=np.float64)
    headroom = np.array([arm.headroom for arm in arms])
    axis.plot(headroom, levels, color=color, marker=style.marker(organization), zorder=3)
    chosen = config.preselected[budget].get(organization)
    if chosen is not None:
        at = headroom == chosen.headroom
        axis.plot(headroom[at], levels[at], **_ring(color), zorder=4)


def _published_legend(figure: Figure, organizations: Sequence[str]) -> None:
    handles: list[Any] = [
        Line2D([], [], color=style.color(name), marker=style.marker(name)) for name in organizations
    ]
    labels = [name.upper() for name in organizations]
    handles.append(
        tuple(
            Line2D([], [], **{**_ring(style.color(name)), "markersize": 8})
            for name in organizations
        )
    )
    labels.append("preselected f")
    figure.legend(
        handles,
        labels,
        loc="lower center",
        bbox_to_anchor=(0.5, 0.115),
        ncols=len(labels),
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.3)},
    )


def tokens_per_request(runs: Runs) -> float:
    """Mean output tokens of a finished request over all runs drawn."""
    finished = runs.adopted[["output_tokens", "num_finished"]].sum()
    return float(finished["output_tokens"] / finished["num_finished"])


def _draw_curve(
    axis: Axes, runs: Runs, config: AnalysisConfig, arms: list[Arm], tokens: float
) -> None:
    organization = str(arms[0].organization)
    color, marker = style.color(organization), style.marker(organization)
    headroom = np.array([arm.headroom for arm in arms])
    values = [runs.values(arm, THROUGHPUT) for arm in arms]
    means = np.array([value.mean() for value in values])
    intervals = [declared_interval(value, config.interval) for value in values]
    axis.fill_between(
        headroom,
        [interval.low for interval in intervals],
        [interval.high for interval in intervals],
        color=color,
        alpha=0.18,
        linewidth=0,
    )
    axis.plot(headroom, means, color=color, marker=marker, zorder=3)
    published = [published_cell(arm, "requests_per_s") for arm in arms]
    axis.plot(
        headroom,
        [np.nan if level is None else level * tokens for level in published],
        **_ghost(color),
        zorder=2,
    )
    chosen = config.preselected[str(arms[0].budget)].get(organization)
    if chosen is not None:
        at = [index for index, arm in enumerate(arms) if arm.headroom == chosen.headroom]
        axis.plot(headroom[at], means[at], **_ring(color), zorder=4)


def _ghost(color: str) -> dict[str, Any]:
    """Published levels: hollow and dotted, behind the runs."""
    return {
        "color": color,
        "linestyle": (0, (1, 1.6)),
        "linewidth": 1.0,
        "marker": "D",
        "markersize": 3.8,
        "markerfacecolor": "white",
        "markeredgewidth": 0.8,
        "alpha": 0.75,
    }


def _ring(color: str) -> dict[str, Any]:
    """Open ring around a setting that was chosen before the confirmation."""
    return {
        "linestyle": "none",
        "marker": "o",
        "markersize": 10.5,
        "markerfacecolor": "none",
        "markeredgecolor": color,
        "markeredgewidth": 1.1,
    }


def _legend(figure: Figure, config: AnalysisConfig, organizations: Sequence[str]) -> None:
    colors = [style.color(organization) for organization in organizations]
    handles: list[Any] = [
        Line2D([], [], color=color, marker=style.marker(organization))
        for organization, color in zip(organizations, colors, strict=True)
    ]
    labels = [f"{organization.upper()}, mean" for organization in organizations]
    handles.append(tuple(Patch(facecolor=color, alpha=0.25) for color in colors))
    labels.append(f"{100 * config.interval.level:.0f} % interval of the mean")
    handles.append(tuple(Line2D([], [], **{**_ring(color), "markersize": 8}) for color in colors))
    labels.append("preselected f")
    handles.append(tuple(Line2D([], [], **_ghost(color)) for color in colors))
    labels.append("paper (Table B-8, converted)")
    figure.legend(
        handles,
        labels,
        loc="lower center",
        bbox_to_anchor=(0.5, 0.115),
        ncols=len(labels),
        columnspacing=1.4,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.3)},
    )


def _footer(runs: Runs, config: AnalysisConfig, tokens: float) -> str:
    origin = runs.origin
    sentences = (
        f"{origin.data_kind.capitalize()}: engine {origin.engine}, device {origin.device}, time "
        f"model {origin.time_model}. n = {len(runs.seeds)} seeds a point ({runs.seeds_text}).",
        f"Bands: percentile bootstrap over seeds, {config.interval.resamples:,} resamples. Paper: "
        f"requests/s of Table B-8 × {tokens:.1f} output tokens a request of these runs.",
    )
    return "\n".join(textwrap.fill(sentence, style.PAGE_CHARACTERS) for sentence in sentences)


def _tick(headroom: float) -> str:
    return "0" if headroom == 0 else f"{headroom:.2f}".lstrip("0")
