"""Decorators that register the functions that build a table.

    @table("G-1", block=("q2", "no_sharing"))   # takes the runs of one block
    def from_runs(runs: Runs) -> Table: ...

    @derived("G-1")                             # from the published values alone
    def from_paper() -> Table: ...

A table without a derived function names what the paper lacks: `@table("E-4", lacks="counters")`.
"""

from collections.abc import Callable
from typing import TypeVar

from analysis import config as configs
from analysis.ledgers import Ledgers
from analysis.registry import Registry
from analysis.tables.table import Table
from hsexp.plan.resolve import standing

REGISTRY = Registry[Table]()
derived = REGISTRY.derived

F = TypeVar("F", bound=Callable[..., Table])


def table(
    name: str,
    *,
    block: tuple[str, str] | None = None,
    analysis: str | None = None,
    lacks: str = "",
    by_adoption: bool = False,
) -> Callable[[F], F]:
    """Decorate the function that builds a table from runs. By default it takes `Ledgers`.

    Args:
        name: as in the paper.
        block: campaign and block; the function takes their runs.
        analysis: campaign with a family of its own; the function takes its runs and its analysis.
        lacks: what the paper does not print, if there is no derived function.
        by_adoption: whether the adoption of runs in doubt changes the table. If so,
            the derived function takes the adoption.
    """

    def decorate(function: F) -> F:
        def from_ledgers(ledgers: Ledgers) -> Table:
            if block is not None:
                return function(ledgers.runs(*block))
            if analysis is not None:
                config = configs.load(analysis)
                return function(ledgers.open_runs(config.campaign, config.design), config)
            return function(ledgers)

        REGISTRY.add(name, from_ledgers, lacks=lacks, by_adoption=by_adoption)
        return function

    return decorate


def computed(name: str, *, campaign: str | None = None) -> Callable[[F], F]:
    """Decorate a function whose table needs neither runs nor published inputs.

    Args:
        campaign: the counted campaign that the function takes; None if it takes nothing.
    """

    def decorate(function: F) -> F:
        _add_computed(name, function, campaign)
        if campaign is None:
            derived(name)(function)
        else:
            derived(name)(lambda: function(standing(campaign)))
        return function

    return decorate


def counted(name: str, *, campaign: str, lacks: str = "any such experiment") -> Callable[[F], F]:
    """Decorate a function of a resolved counted campaign whose numbers the paper does not print.

    Args:
        lacks: what the paper would have to print.
    """

    def decorate(function: F) -> F:
        _add_computed(name, function, campaign, lacks=lacks)
        return function

    return decorate


def _add_computed(
    name: str, function: Callable[..., Table], campaign: str | None, *, lacks: str = ""
) -> None:
    def from_ledgers(ledgers: Ledgers) -> Table:
        return function() if campaign is None else function(ledgers.resolved(campaign))

    REGISTRY.add(name, from_ledgers, lacks=lacks)
