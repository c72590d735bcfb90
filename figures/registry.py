"""Decorators that register the functions that draw a figure.

@plot("3")                # takes `Ledgers`
def from_ledgers(ledgers: Ledgers) -> Figure: ...

@derived("3")               # from the published values alone
def from_paper() -> Figure: ...
"""

from collections.abc import Callable
from typing import TypeVar

from matplotlib.figure import Figure

from analysis import config as configs
from analysis.ledgers import Ledgers
from analysis.registry import Registry
from hsexp.plan.resolve import standing

REGISTRY = Registry[Figure]()
derived = REGISTRY.derived

F = TypeVar("F", bound=Callable[..., Figure])


def plot(name: str, *, analysis: str | None = None) -> Callable[[F], F]:
    """Decorate the function that draws a figure of runs. By default it takes `Ledgers`.

    Args:
        name: its number in the paper, or a name.
        analysis: campaign with a family of its own; the function takes its runs and its analysis.
    """

    def decorate(function: F) -> F:
        def from_ledgers(ledgers: Ledgers) -> Figure:
            if analysis is not None:
                config = configs.load(analysis)
                return function(ledgers.open_runs(config.campaign, config.design), config)
            return function(ledgers)

        REGISTRY.add(name, from_ledgers)
        return function

    return decorate


def drawing(name: str, *, campaign: str | None = None) -> Callable[[F], F]:
    """Decorate a function whose figure needs no run.

    Args:
        campaign: the counted campaign that the function takes, resolved; None if it takes nothing.
    """

    def decorate(function: F) -> F:
        if campaign is None:
            REGISTRY.add(name, lambda ledgers: function())
        else:
            REGISTRY.add(name, lambda ledgers: function(ledgers.resolved(campaign)))
            derived(name)(lambda: function(standing(campaign)))
        return function

    return decorate
