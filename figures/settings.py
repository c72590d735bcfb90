"""The figure of a ledger that no other figure covers: its settings, ranked by one metric."""

from collections.abc import Sequence

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.errors import NoInputsError
from analysis.ledgers import Ledgers
from analysis.runs import THROUGHPUT
from analysis.settings import Place, Ranking, Setting, measure_of, ranking_of
from figures import style
from figures.points import Point, of_seeds, spread_sentence
from figures.registry import plot
from hsexp.plan.cells import format_seeds

BESIDE = "ttft_p99_s"
"""Metric of the second panel; throughput where the first one has this."""

MAX_LINES = 60
"""Settings that a page holds."""

_LINE_IN = 0.16
_HEAD_IN, _FOOT_IN = 0.35, 0.75

Line = tuple[Place, Setting]


@plot("settings")
def draw(ledgers: Ledgers) -> Figure:
    """One line a setting, best first at each place, in two panels: the metric, and TTFT p99.

    Raises:
        NoInputsError: there is one setting, so nothing to compare.
    """
    ranking = ranking_of(ledgers)
    every: list[Line] = [(place, setting) for place in ranking.places for setting in place.settings]
    if len(every) < 2:
        raise NoInputsError(f"campaign {ranking.campaign} has one setting, nothing to compare")
    lines = _kept(ranking)
    metrics = (ranking.metric, BESIDE if ranking.metric != BESIDE else THROUGHPUT)
    height = _HEAD_IN + _FOOT_IN + _LINE_IN * len(lines)
    figure, panels = plt.subplots(1, 2, sharey=True, figsize=(style.PAGE_IN, height))
    points = [
        point
        for panel, metric in zip(panels, metrics, strict=True)
        for point in _draw_panel(panel, lines, metric)
    ]
    panels[0].set_yticks(range(len(lines)), _labels(ranking, lines))
    panels[0].set_ylim(len(lines) - 0.4, -0.6)
    left_out = len(every) - len(lines)
    foot = style.footer(
        figure,
        f"{style.origin_sentence(ranking.origin)} Campaign {ranking.campaign}, means over seeds "
        f"{format_seeds(ranking.seeds)}. {spread_sentence(points)}",
        *(
            [f"{left_out} more settings are not drawn; the best of each place are."]
            * bool(left_out)
        ),
    )
    figure.subplots_adjust(
        left=0.32,
        right=0.985,
        top=1.0 - _HEAD_IN / height,
        bottom=min(0.9, (foot + 0.42) / height),
        wspace=0.06,
    )
    return figure


def _kept(ranking: Ranking) -> list[Line]:
    """As many settings as fit: the first of every place, then the second, and so on."""
    kept: set[int] = set()
    for rank in range(max(len(place.settings) for place in ranking.places)):
        for place in ranking.places:
            if rank < len(place.settings) and len(kept) < MAX_LINES:
                kept.add(id(place.settings[rank]))
    return [
        (place, setting)
        for place in ranking.places
        for setting in place.settings
        if id(setting) in kept
    ]


def _draw_panel(panel: Axes, lines: Sequence[Line], metric: str) -> list[Point]:
    drawn = []
    for height, (_, setting) in enumerate(lines):
        values = setting.values(metric).dropna()
        if values.empty or len(values) < len(setting.rows):
            continue
        point = of_seeds(values)
        drawn.append(point)
        organization = str(setting.axes["organization"])
        if point.interval is not None:
            low, high = point.error
            panel.errorbar([point.value], [height], xerr=[[low], [high]], **style.interval_bar())
        else:
            panel.plot(point.seeds, [height] * len(point.seeds), **style.seed_marker())
        panel.plot(
            [point.value],
            [height],
            linestyle="none",
            marker=style.marker(organization),
            color=style.color(organization),
            zorder=3,
        )
    panel.set_xlabel(measure_of(metric).heading)
    panel.grid(visible=True, axis="x")
    return drawn


def _labels(ranking: Ranking, lines: Sequence[Line]) -> list[str]:
    """Names of settings; the first line of each place has the place's name before it."""
    labels, before = [], None
    for place, setting in lines:
        where = ranking.name_of_place(place)
        name = ranking.name_of(setting)
        labels.append(f"{where}:  {name}" if where and place is not before else name)
        before = place
    return labels
