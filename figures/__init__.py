"""The figures, each by one function: those of the paper by number, and the labs' by name."""

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure

from analysis import config as configs
from analysis.errors import AnalysisError
from analysis.ledgers import Ledgers
from figures import (
    block_sharing,
    block_waste,
    figure1,
    figure2,
    figure3,
    figure4,
    figure5,
    figure6,
    figure7,
    state_ownership,
)
from hsexp.plan.resolve import standing


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Ways to one figure."""

    from_ledgers: Callable[[Ledgers], Figure]
    from_paper: Callable[[], Figure] | None = None
    """None where the paper does not print what is plotted."""


def _figure6(ledgers: Ledgers) -> Figure:
    config = configs.load("q6")
    return figure6.draw(ledgers.open_runs(config.campaign, config.design), config)


FIGURES: dict[str, Entry] = {
    "1": Entry(
        from_ledgers=lambda ledgers: figure1.draw(ledgers.resolved("capacity")),
        from_paper=lambda: figure1.draw(standing("capacity")),
    ),
    "2": Entry(from_ledgers=figure2.from_ledgers),
    "3": Entry(from_ledgers=figure3.from_ledgers, from_paper=figure3.from_paper),
    "4": Entry(from_ledgers=figure4.from_ledgers, from_paper=figure4.from_paper),
    "5": Entry(from_ledgers=figure5.from_ledgers),
    "6": Entry(from_ledgers=_figure6),
    "7": Entry(from_ledgers=figure7.from_ledgers, from_paper=figure7.from_paper),
    "block-sharing": Entry(from_ledgers=lambda ledgers: block_sharing.draw()),
    "block-waste": Entry(from_ledgers=lambda ledgers: block_waste.draw()),
    "state-ownership": Entry(from_ledgers=lambda ledgers: state_ownership.draw()),
}


def derive(name: str) -> Figure:
    """A figure from published values alone.

    Raises:
        AnalysisError: the paper does not print what is plotted.
    """
    entry = FIGURES[name]
    if entry.from_paper is None:
        drawable = [each for each, other in FIGURES.items() if other.from_paper is not None]
        raise AnalysisError(
            f"figure {name} cannot be drawn from published values, since the paper prints none of "
            f"its curves; there is {', '.join(drawable)}"
        )
    return entry.from_paper()
