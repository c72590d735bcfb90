"""How every figure looks and is saved: sizes, colours of the organizations, deterministic files."""

import textwrap
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from analysis.errors import AnalysisError
from analysis.runs import Origin
from hsexp.config.catalog import options, read_option

STYLE = Path(__file__).with_name("hsexp.mplstyle")

COLUMN_IN = 3.5
"""Width of one column of a two-column page, inches."""
PAGE_IN = 7.16
"""Width of both columns, inches."""
PAGE_CHARACTERS = 140
"""Characters of a 7 pt note that fit on the page's width."""

COLORS = {"s0": "#009E73", "s1": "#CC79A7", "s2": "#0072B2", "d0": "#D55E00"}
"""Okabe-Ito, by kind of organization; a new kind uses a colour of `_MORE_COLORS` until it has one
here. Organizations also differ in their markers."""
MARKERS = {"s0": "^", "s1": "v", "s2": "o", "d0": "s"}
"""The paper's organizations. A variant has its kind's colour and a marker of `_MORE_MARKERS`."""

_MORE_COLORS = ("#E69F00", "#56B4E9", "#000000", "#F0E442")
_MORE_MARKERS = ("P", "X", "<", ">", "p", "h", "*", "d")

INK = "#222222"
"""Colour of text, edges, and marks that belong to no organization."""
FAINT = "#888888"
"""Colour of marks behind the data."""

_NOTE_PT = 7.0
_LINE_IN = 1.3 * _NOTE_PT / 72.0
_MARGIN_IN = 0.05

_NO_DATE: dict[str, dict[str, str | None]] = {
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
    "png": {"Software": None},
}


def use() -> None:
    """Apply the project's style to all figures drawn from now on."""
    mpl.use("Agg")
    plt.style.use(["default", STYLE])


def color(organization: str) -> str:
    """The colour of an organization: that of its kind."""
    kind = _kinds().get(organization, organization)
    return COLORS.get(kind) or _MORE_COLORS[_rank(kind, set(COLORS)) % len(_MORE_COLORS)]


def marker(organization: str) -> str:
    """The marker of an organization, its own among the variants of its kind."""
    if organization in MARKERS:
        return MARKERS[organization]
    kind = _kinds().get(organization, organization)
    like = {name for name, other in _kinds().items() if other == kind} - set(MARKERS)
    rank = sorted(like | {organization}).index(organization)
    return _MORE_MARKERS[rank % len(_MORE_MARKERS)]


def _rank(kind: str, known: set[str]) -> int:
    """Index of a kind among those without a colour of their own."""
    return sorted({*_kinds().values(), kind} - known).index(kind)


@cache
def _kinds() -> dict[str, str]:
    """Kind of each organization of conf/organization."""
    return {name: read_option("organization", name)["kind"] for name in options("organization")}


def published_marker(**changes: Any) -> dict[str, Any]:
    """Style of a published value: a hollow diamond in front of the runs, in every figure."""
    return {
        "linestyle": "none",
        "marker": "D",
        "markersize": 4.0,
        "markerfacecolor": "white",
        "markeredgecolor": INK,
        "markeredgewidth": 0.9,
        "zorder": 6,
        **changes,
    }


def seed_marker(**changes: Any) -> dict[str, Any]:
    """Style of one run: a small dot with a light edge, visible on a bar of the same colour."""
    return {
        "linestyle": "none",
        "marker": "o",
        "markersize": 2.6,
        "markerfacecolor": INK,
        "markeredgecolor": "white",
        "markeredgewidth": 0.35,
        "zorder": 5,
        **changes,
    }


def interval_bar(**changes: Any) -> dict[str, Any]:
    """Arguments of `errorbar` for an interval of a mean."""
    return {
        "fmt": "none",
        "ecolor": INK,
        "elinewidth": 0.9,
        "capsize": 1.8,
        "capthick": 0.9,
        "zorder": 4,
        **changes,
    }


def origin_sentence(origin: Origin) -> str:
    """The sentence of every figure on the origin of its data."""
    if origin.engine is None:
        return f"Data: {origin.data_kind}."
    return (
        f"{origin.data_kind.capitalize()}: engine {origin.engine}, device {origin.device}, time "
        f"model {origin.time_model}."
    )


def footer(figure: Figure, *sentences: str) -> float:
    """Write sentences below everything, each on its own lines. Returns their height in inches."""
    characters = int(PAGE_CHARACTERS * figure.get_figwidth() / PAGE_IN)
    lines = [line for sentence in sentences for line in textwrap.wrap(sentence, characters)]
    height = figure.get_figheight()
    figure.text(
        0.5,
        _MARGIN_IN / height,
        "\n".join(lines),
        ha="center",
        va="bottom",
        fontsize=_NOTE_PT,
        linespacing=1.3,
    )
    return _MARGIN_IN + len(lines) * _LINE_IN


def leave_out(figure: Figure, lines: Sequence[str]) -> None:
    """List the undrawn arms below everything else; the figure grows by the height of the text."""
    if not lines:
        return
    characters = int(PAGE_CHARACTERS * figure.get_figwidth() / PAGE_IN)
    wrapped = textwrap.wrap(f"Not drawn: {'; '.join(lines)}.", characters)
    _grow(figure, len(wrapped) * _LINE_IN)
    figure.text(
        0.5,
        _MARGIN_IN / figure.get_figheight(),
        "\n".join(wrapped),
        ha="center",
        va="bottom",
        fontsize=_NOTE_PT,
        linespacing=1.3,
    )


def _grow(figure: Figure, inches: float) -> None:
    """Add room at the bottom; drawn content keeps its size and its distance from the top."""
    old = figure.get_figheight()
    new = old + inches

    def raised(y: float) -> float:
        return (y * old + inches) / new

    to_figure = figure.transFigure.inverted()
    anchors = [legend.get_bbox_to_anchor().transformed(to_figure).p0 for legend in figure.legends]
    boxes = [axis.get_position() for axis in figure.axes]
    figure.set_figheight(new)
    for axis, box in zip(figure.axes, boxes, strict=True):
        axis.set_position((box.x0, raised(box.y0), box.width, box.height * old / new))
    for legend, (x, y) in zip(figure.legends, anchors, strict=True):
        legend.set_bbox_to_anchor((x, raised(y)), transform=figure.transFigure)
    for text in figure.texts:
        text.set_y(raised(text.get_position()[1]))


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write PDF, SVG and PNG without dates, so that equal input gives equal bytes.

    Raises:
        AnalysisError: the folder cannot be written to.
    """
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, metadata in _NO_DATE.items():
            path = folder / f"{name}.{suffix}"
            figure.savefig(path, metadata=metadata)
            paths.append(path)
    except OSError as error:
        raise AnalysisError(f"{folder}: cannot be written: {error.strerror}") from None
    finally:
        plt.close(figure)
    return paths
