"""How a table registers itself, by decorators of the functions that build it.

    @table("G-1", block=("q2", "no_sharing"))   # takes the runs of one block
    def from_runs(runs: Runs) -> Table: ...

    @derived("G-1")                             # from the published values alone
    def from_paper() -> Table: ...

A table without a derived function says what the paper lacks: `@table("E-4", lacks="counters")`.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from analysis import config as configs
from analysis.ledgers import Ledgers
from analysis.registry import Registry
from analysis.tables.table import Table

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
    """Decorate the function that builds a table from runs. It takes `Ledgers`, unless told below.

    Args:
        name: as in the paper.
        block: campaign and block; the function takes the runs of these.
        analysis: campaign with a family of its own; the function takes its runs and its analysis.
        lacks: what the paper does not print, where no function is derived.
        by_adoption: whether the adoption of runs in doubt changes the table. The derived function
            then takes it.
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


def computed(name: str) -> Callable[[F], F]:
    """Decorate a function without arguments: its table needs neither runs nor published inputs."""

    def decorate(function: F) -> F:
        _add_computed(name, function)
        return derived(name)(function)

    return decorate


def counted(name: str) -> Callable[[F], F]:
    """Decorate a function without arguments: its experiment is not the paper's and needs no run."""

    def decorate(function: F) -> F:
        _add_computed(name, function, lacks="any such experiment")
        return function

    return decorate


def _add_computed(name: str, function: Callable[[], Table], **options: Any) -> None:
    REGISTRY.add(name, lambda ledgers: function(), **options)
