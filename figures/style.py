"""How every figure looks and is saved: sizes, colours of the organizations, deterministic files."""

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from analysis.errors import AnalysisError

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

_NO_DATE: dict[str, dict[str, str | None]] = {
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
    "png": {"Software": None},
}


def use() -> None:
    """Apply the project's style to all figures drawn from now on."""
    mpl.use("Agg")
    plt.style.use(["default", STYLE])


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
