"""How every figure looks and is saved: sizes, colours of the organizations, deterministic files."""

import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from analysis.errors import AnalysisError
from analysis.runs import Origin

STYLE = Path(__file__).with_name("hsexp.mplstyle")

COLUMN_IN = 3.5
"""Width of one column of a two-column page, inches."""
PAGE_IN = 7.16
"""Width of both columns, inches."""
PAGE_CHARACTERS = 140
"""Characters of a 7 pt note that fit on the page's width."""

COLORS = {"s0": "#009E73", "s1": "#CC79A7", "s2": "#0072B2", "d0": "#D55E00"}
"""Okabe-Ito; organizations also differ in their markers."""
MARKERS = {"s0": "^", "s1": "v", "s2": "o", "d0": "s"}

INK = "#222222"
"""Text, edges, and what belongs to no organization."""
FAINT = "#888888"
"""What stays behind the data."""

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


def published_marker(**changes: Any) -> dict[str, Any]:
    """A published value: a hollow diamond, the same in every figure, in front of the runs."""
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
    """One run: a small dot with a light edge, so that it shows on a bar of its own colour."""
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
    """What the data are, in every figure."""
    if origin.engine is None:
        return f"Data: {origin.data_kind}."
    return (
        f"{origin.data_kind.capitalize()}: engine {origin.engine}, device {origin.device}, time "
        f"model {origin.time_model}."
    )


def footer(figure: Figure, *sentences: str) -> float:
    """Write sentences below everything, each on lines of its own. Returns their height, inches."""
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
