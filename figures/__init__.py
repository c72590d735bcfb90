"""The figures, one function each: those of the paper by number, those of the labs by name.

A module of this package registers its figures (`registry.py`); nothing else lists them.
"""

import hsexp.starting  # noqa: F401, I001

from matplotlib.figure import Figure

from hsexp.shadows import guard

guard("analysis")

from analysis.errors import AnalysisError
from figures.registry import REGISTRY

FIGURES = REGISTRY.gather(__name__, __path__)


def derive(name: str) -> Figure:
    """A figure from published values alone.

    Raises:
        AnalysisError: the paper does not print the plotted values.
    """
    entry = FIGURES[name]
    if entry.from_paper is None:
        drawable = [each for each, other in FIGURES.items() if other.from_paper is not None]
        raise AnalysisError(
            f"figure {name} cannot be drawn from published values, since the paper prints none of "
            f"its curves; choose from {', '.join(drawable)}"
        )
    return entry.from_paper("current")
