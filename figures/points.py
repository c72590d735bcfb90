"""The marks of a figure: the mean over seeds, its spread, and the published value.

Twelve seeds get an interval; three get only dots, since a t interval of three values is too wide
to be informative.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes

from analysis.errors import AnalysisError
from analysis.gaps import Gap, describe
from analysis.intervals import Interval, paired_t
from analysis.ledgers import Need
from analysis.runs import Runs
from figures import style
from hsexp.config.arm import Arm

FEWEST_FOR_INTERVAL = 6
"""With fewer seeds, dots are shown instead of an interval."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One mark."""

    value: float
    """Mean over seeds, or the published value if nothing else is drawn."""
    seeds: tuple[float, ...] = ()
    """Values of the single runs."""
    interval: Interval | None = None
    published: float | None = None
    """Published value drawn beside a mean of runs."""

    @property
    def error(self) -> tuple[float, float]:
        """Distance from the mean to either end of the interval."""
        if self.interval is None:
            return (0.0, 0.0)
        return (self.value - self.interval.low, self.interval.high - self.value)


Bars = dict[str, Point]
"""Points by organization; organizations without a run are absent."""


def of_seeds(values: pd.Series, published: float | None = None) -> Point:
    """The mean of complete values: a t interval from six seeds on, dots below."""
    seeds = tuple(float(value) for value in values)
    return Point(
        value=float(values.mean()),
        seeds=seeds,
        interval=paired_t(values) if len(seeds) >= FEWEST_FOR_INTERVAL else None,
        published=published,
    )


def spread_sentence(points: Iterable[Point]) -> str:
    """Sentence on how the spread of these points is shown."""
    parts = []
    every = list(points)
    if any(point.interval is not None for point in every):
        parts.append("whiskers: 95 % t interval of the mean over seeds")
    if any(point.seeds and point.interval is None for point in every):
        parts.append("dots: single seeds, no interval")
    return f"{'; '.join(parts).capitalize()}." if parts else ""


def not_drawn(figure: str, needs: Iterable[Need]) -> tuple[str, ...]:
    """Describe the arms that a figure leaves out because they have no run or lack a metric.

    Blocks without any run are not included: their panels are labelled.

    Raises:
        AnalysisError: an arm has only some of its seeds, so its mean would be partial, or no arm
            has any; all such cells are named.
    """
    drawn = False
    absent: list[Gap] = []
    partial: list[Gap] = []
    for runs, arms, metrics in needs:
        if not is_there(runs):
            continue
        wanted = tuple(metrics)
        for arm in arms:
            if gaps := runs.gaps([arm], wanted):
                (partial if _has_some(runs, arm, wanted) else absent).extend(gaps)
            else:
                drawn = True
    if partial or not drawn:
        raise lacks_cells(figure, describe(partial or absent))
    return describe(absent)


def lacks_cells(figure: str, lines: Iterable[str]) -> AnalysisError:
    """The error of a figure that lacks cells."""
    return AnalysisError(f"figure {figure} lacks cells: {'; '.join(lines)}")


def has(runs: Runs, arm: Arm, metrics: Iterable[str]) -> bool:
    """Whether an arm has every seed with every metric."""
    return is_there(runs) and not runs.gaps([arm], metrics)


def _has_some(runs: Runs, arm: Arm, metrics: Sequence[str]) -> bool:
    """Whether at least one seed of an arm has every metric."""
    values = pd.DataFrame({metric: runs.values(arm, metric) for metric in metrics})
    return bool(values.notna().all(axis="columns").any())


def is_there(runs: Runs) -> bool:
    """Whether the block has any run."""
    return runs.why_absent is None


def leave_empty(axis: Axes, title: str, runs: Runs, *, x: float = 0.5) -> None:
    """Label a panel that has no run; `x` is the position between its left and right edge."""
    axis.set_title(title)
    axis.axis("off")
    seeds = runs.seeds_text
    axis.text(
        x,
        0.5,
        f"no runs of campaign\n{runs.campaign}, seeds\n{seeds}",
        transform=axis.transAxes,
        ha="center",
        va="center",
        color=style.FAINT,
    )


def bars(
    axis: Axes,
    positions: Sequence[float],
    points: Sequence[Point],
    *,
    colors: Sequence[str],
    width: float,
    alpha: float = 1.0,
) -> None:
    """Draw bars of means with their spread and published values."""
    axis.bar(
        positions,
        [point.value for point in points],
        width=width,
        color=list(colors),
        alpha=alpha,
        zorder=2,
    )
    marks(axis, positions, points, spread=0.45 * width)


def marks(
    axis: Axes, positions: Sequence[float], points: Sequence[Point], *, spread: float
) -> None:
    """Draw the spread and published values of points drawn elsewhere.

    A published value is shifted to the right; the dots of seeds are then shifted to the left.

    Args:
        spread: how far marks may move to either side.
    """
    for position, point in zip(positions, points, strict=True):
        if point.interval is not None:
            low, high = point.error
            axis.errorbar([position], [point.value], yerr=[[low], [high]], **style.interval_bar())
        elif point.seeds:
            right = -0.1 if point.published is not None else 0.8
            places = _fan(position - 0.8 * spread, position + right * spread, len(point.seeds))
            axis.plot(places, point.seeds, **style.seed_marker())
        if point.published is not None:
            axis.plot([position + 0.55 * spread], [point.published], **style.published_marker())


def _fan(left: float, right: float, count: int) -> list[float]:
    if count == 1:
        return [(left + right) / 2.0]
    return [left + (right - left) * k / (count - 1) for k in range(count)]
