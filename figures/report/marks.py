"""The values that a drawn figure shows: every point and bar, where it lies and what it says.

All of it is read from the finished figure, so that no figure has to say its values a second time:
axes give names and units, the legend names the series, whiskers and bands give the intervals.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import LineCollection, PathCollection, PolyCollection
from matplotlib.colors import to_hex, to_rgba
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedFormatter

from figures import style

POINTS_PER_INCH = 72.0
"""Unit of an SVG that matplotlib writes."""

_MOST_OF_A_CURVE = 48
"""Points of a curve without markers that show a value."""

_CLOSE_PT = 1.5
"""Marks that are this close are one mark that says all of their values."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One place of a figure that shows a value. Lengths are points from the top left corner."""

    x: float
    y: float
    width: float = 0.0
    """Of a bar, which starts at (x, y); 0 for a point, whose centre is there."""
    height: float = 0.0
    lines: tuple[str, ...]
    """What it says."""

    @property
    def is_bar(self) -> bool:
        return self.width > 0.0

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@dataclass(frozen=True, kw_only=True)
class _Value:
    """One drawn value before it has a place on the page."""

    x: float
    y: float
    color: str
    marker: str
    hollow: bool
    bar: Rectangle | None = None


def marks(figure: Figure) -> list[Mark]:
    """The marks of a figure that has been drawn, panel by panel from left to right."""
    series = _Series(figure)
    found: list[Mark] = []
    for axes in figure.axes:
        if not axes.get_visible():
            continue
        panel = _Panel(axes)
        own = [
            _place(figure, axes, value, panel.text(value, series.name(value)))
            for value in _values(axes)
        ]
        found += _joined(sorted(own, key=lambda mark: (mark.x, mark.y)))
    return found


# -- what is drawn ---------------------------------------------------------------------------------


def _values(axes: Axes) -> Iterator[_Value]:
    caps: set[int] = set()
    for container in axes.containers:
        if isinstance(container, BarContainer):
            for bar in container.patches:
                yield _value_of_bar(bar, container.orientation)
        elif isinstance(container, ErrorbarContainer):
            caps |= {id(cap) for cap in container.lines[1]}
    for line in axes.get_lines():
        is_of_data = line.get_visible() and line.get_transform() == axes.transData
        if is_of_data and id(line) not in caps:
            yield from _values_of_line(line)
    for collection in axes.collections:
        if isinstance(collection, PathCollection) and collection.get_visible():
            color = _first_color(collection.get_facecolor())
            for x, y in np.asarray(collection.get_offsets(), dtype=np.float64):
                if np.isfinite([x, y]).all():
                    yield _Value(x=x, y=y, color=color, marker="o", hollow=False)


def _value_of_bar(bar: Rectangle, orientation: str | None) -> _Value:
    if orientation == "horizontal":
        x, y = bar.get_x() + bar.get_width(), bar.get_y() + bar.get_height() / 2
    else:
        x, y = bar.get_x() + bar.get_width() / 2, bar.get_y() + bar.get_height()
    color = to_hex(bar.get_facecolor())
    return _Value(x=x, y=y, color=color, marker="bar", hollow=False, bar=bar)


def _values_of_line(line: Line2D) -> Iterator[_Value]:
    marker = str(line.get_marker())
    has_marker = marker not in ("None", "none", "", " ")
    points = np.asarray(line.get_xydata(), dtype=np.float64)
    if not has_marker:
        if len(points) < 3:  # a rule, or the bar between two marks
            return
        step = -(-len(points) // _MOST_OF_A_CURVE)
        points = points[::step]
    edge = line.get_markeredgecolor() if has_marker else line.get_color()
    face = line.get_markerfacecolor()
    for x, y in points:
        if np.isfinite([x, y]).all():
            yield _Value(
                x=float(x),
                y=float(y),
                color=_hex(edge if has_marker and _is_empty(face) else line.get_color(), edge),
                marker=marker if has_marker else "",
                hollow=has_marker and _is_empty(face),
            )


def _is_empty(face: Any) -> bool:
    return str(face) == "none" or to_rgba(face)[:3] == (1.0, 1.0, 1.0)


def _hex(color: Any, otherwise: Any) -> str:
    return to_hex(otherwise if str(color) == "none" else color)


def _first_color(colors: Any) -> str:
    rows = np.atleast_2d(np.asarray(colors, dtype=np.float64))
    return to_hex(tuple(rows[0])) if rows.size else style.INK


# -- names -----------------------------------------------------------------------------------------


class _Series:
    """Names of series, from the legends of a figure."""

    def __init__(self, figure: Figure) -> None:
        self._exact: dict[tuple[str, str, bool], str] = {}
        self._by_form: dict[tuple[str, bool], set[str]] = {}
        self._by_color: dict[str, str] = {}
        legends = [*figure.legends]
        legends += [own for axes in figure.axes if (own := axes.get_legend()) is not None]
        for legend in legends:
            names = [text.get_text() for text in legend.get_texts()]
            for handle, name in zip(legend.legend_handles, names, strict=False):
                self._add(handle, name)
        self._organizations = {
            style.color(name).lower(): name.upper() for name in ("s0", "s1", "s2", "d0")
        }

    def _add(self, handle: Any, name: str) -> None:
        if isinstance(handle, Line2D):
            drawn = list(_values_of_line(_with_a_point(handle)))
            for value in drawn[:1]:
                self._exact[value.color, value.marker, value.hollow] = name
                self._by_form.setdefault((value.marker, value.hollow), set()).add(name)
        elif handle is not None and hasattr(handle, "get_facecolor"):
            color = to_hex(handle.get_facecolor())
            self._exact[color, "bar", False] = name
            self._by_color.setdefault(color, name)

    def name(self, value: _Value) -> str:
        """The series of a value; empty where nothing names it."""
        organization = self._organizations.get(value.color.lower(), "")
        exact = self._exact.get((value.color, value.marker, value.hollow))
        forms = self._by_form.get((value.marker, value.hollow), set())
        name = exact or (next(iter(forms)) if len(forms) == 1 and value.hollow else "")
        if not name and not value.hollow:
            name = self._by_color.get(value.color, "")
        if organization and not name.upper().startswith(organization):
            return f"{organization}, {name}" if name else organization
        return name


def _with_a_point(handle: Line2D) -> Line2D:
    """The handle with one point, since those of legends may have none or several."""
    copy = Line2D([0.0, 1.0, 2.0], [0.0, 0.0, 0.0])
    copy.update_from(handle)
    return copy


class _Panel:
    """Names, units and intervals of one panel."""

    def __init__(self, axes: Axes) -> None:
        self._axes = axes
        self._title = axes.get_title(loc="left") or axes.get_title()
        self._x_label, self._y_label = _label(axes, "x"), _label(axes, "y")
        self._x_ticks, self._y_ticks = _names_of(axes.xaxis), _names_of(axes.yaxis)
        self._is_sideways = bool(self._y_ticks) and not self._x_ticks
        self._spans = list(_spans(axes, sideways=self._is_sideways))

    def text(self, value: _Value, series: str) -> str:
        place, number = (value.y, value.x) if self._is_sideways else (value.x, value.y)
        names = self._y_ticks if self._is_sideways else self._x_ticks
        place_label = self._y_label if self._is_sideways else self._x_label
        label = self._x_label if self._is_sideways else self._y_label
        where = _nearest(names, place) if names else f"{place_label} {spelled(place)}".strip()
        what = f"{label} {spelled(number)}".strip()
        if (span := self._span(place, number, value)) is not None:
            what += f" [{spelled(span[0])}, {spelled(span[1])}]"
        said = ": ".join(filter(None, [", ".join(filter(None, [series, where])), what]))
        return f"{self._title} {said}".strip()

    def _span(self, place: float, number: float, value: _Value) -> tuple[float, float] | None:
        """The interval around a value: a whisker at its place, or a band of its colour."""
        if value.hollow:
            return None
        for span in self._spans:
            if span.color is not None and span.color != value.color:
                continue
            near = abs(span.place - place) <= 1e-9 * max(1.0, abs(place))
            if near and span.low <= number <= span.high:
                return span.low, span.high
        return None


@dataclass(frozen=True, kw_only=True)
class _Span:
    place: float
    low: float
    high: float
    color: str | None
    """Of the band; None for a whisker, which belongs to whatever is at its place."""


def _spans(axes: Axes, *, sideways: bool) -> Iterator[_Span]:
    along, across = (0, 1) if sideways else (1, 0)
    for collection in axes.collections:
        if isinstance(collection, LineCollection):
            for segment in collection.get_segments():
                ends = np.asarray(segment, dtype=np.float64)
                if len(ends) == 2 and ends[0, across] == ends[1, across]:
                    low, high = sorted(ends[:, along])
                    yield _Span(place=ends[0, across], low=low, high=high, color=None)
        elif isinstance(collection, PolyCollection) and not sideways:
            color = _first_color(np.asarray(collection.get_facecolor())[:, :3])
            for path in collection.get_paths():
                corners = np.asarray(path.vertices, dtype=np.float64)
                for place in np.unique(corners[:, 0]):
                    ends = corners[corners[:, 0] == place, 1]
                    yield _Span(
                        place=float(place),
                        low=float(ends.min()),
                        high=float(ends.max()),
                        color=color,
                    )


def _label(axes: Axes, which: str) -> str:
    """The label of an axis, or that of the panel whose label stands for it."""
    own = axes.get_xlabel() if which == "x" else axes.get_ylabel()
    if own:
        return own
    group = axes.get_shared_x_axes() if which == "x" else axes.get_shared_y_axes()
    others = [other for other in group.get_siblings(axes) if other is not axes]
    if which == "y":
        # A label at one end of a row of panels is that of all with their scale on its side.
        side = axes.yaxis.get_label_position()
        others += [
            other
            for other in axes.figure.axes
            if other is not axes and other.yaxis.get_label_position() == side
        ]
    labels = (other.get_xlabel() if which == "x" else other.get_ylabel() for other in others)
    return next(filter(None, labels), "")


def _names_of(axis: Axis) -> dict[float, str]:
    """Names along an axis of categories; empty for an axis of numbers."""
    formatter = axis.get_major_formatter()
    if not isinstance(formatter, FixedFormatter):
        return {}
    names = dict(zip(map(float, axis.get_majorticklocs()), formatter.seq, strict=False))
    return {} if all(_is_number(name) for name in names.values()) else names


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "").replace("−", "-"))
    except ValueError:
        return False
    return True


def _nearest(names: dict[float, str], place: float) -> str:
    return " ".join(names[min(names, key=lambda tick: abs(tick - place))].split())


def spelled(value: float) -> str:
    """A value at the precision that a reader can use."""
    size = abs(value)
    text = f"{value:,.0f}" if size >= 1000 else f"{value:.1f}" if size >= 100 else f"{value:.4g}"
    return text.replace("-", "−")


# -- places ----------------------------------------------------------------------------------------


def _place(figure: Figure, axes: Axes, value: _Value, text: str) -> Mark:
    if value.bar is None:
        x, y = _on_page(figure, axes, value.x, value.y)
        return Mark(x=x, y=y, lines=(text,))
    left, right = sorted((value.bar.get_x(), value.bar.get_x() + value.bar.get_width()))
    low, high = sorted((value.bar.get_y(), value.bar.get_y() + value.bar.get_height()))
    (x0, y0), (x1, y1) = (
        _on_page(figure, axes, *corner) for corner in ((left, high), (right, low))
    )
    return Mark(x=x0, y=y0, width=max(x1 - x0, 0.5), height=max(y1 - y0, 0.5), lines=(text,))


def _on_page(figure: Figure, axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Points from the top left corner, whatever the resolution of the figure is."""
    low, high = axes.get_ylim()
    clipped = min(max(y, min(low, high)), max(low, high))
    px, py = axes.transData.transform((x, clipped))
    width, height = figure.get_size_inches() * POINTS_PER_INCH
    return float(px / figure.bbox.width * width), float((1.0 - py / figure.bbox.height) * height)


def _joined(found: Sequence[Mark]) -> list[Mark]:
    """Points that lie on each other, as one that says all of them. Bars come first, so that the
    points on a bar can be reached."""
    bars = [mark for mark in found if mark.is_bar]
    points: list[Mark] = []
    for mark in found:
        if mark.is_bar:
            continue
        for place, other in enumerate(points):
            if abs(other.x - mark.x) <= _CLOSE_PT and abs(other.y - mark.y) <= _CLOSE_PT:
                lines = tuple(dict.fromkeys((*other.lines, *mark.lines)))
                points[place] = replace(other, lines=lines)
                break
        else:
            points.append(mark)
    return [*bars, *points]
