"""Tables and figures register themselves where they are defined; this module gathers them.

A table or figure has a function that builds it from runs, and may have one that derives it from the
published values. The two may be in different modules, so entries are made only after every
module of the package is imported.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from analysis.families import Adoption
from analysis.ledgers import Ledgers

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Entry(Generic[T]):
    """How to build one table or figure."""

    from_ledgers: Callable[[Ledgers], T]
    from_paper: Callable[[Adoption], T] | None = None
    """None if the paper does not print the inputs."""
    lacks: str = ""
    """What the paper omits that `from_paper` would need."""
    by_adoption: bool = False
    """Whether the adoption of runs in doubt changes it."""


class Registry(Generic[T]):
    """The tables or the figures of a package, by name.

    Invariant: a name has one function of runs, and at most one of published values.
    """

    def __init__(self) -> None:
        self._of_runs: dict[str, Entry[T]] = {}
        self._derived: dict[str, Callable[..., T]] = {}

    def add(
        self,
        name: str,
        from_ledgers: Callable[[Ledgers], T],
        *,
        lacks: str = "",
        by_adoption: bool = False,
    ) -> None:
        """Register the function that builds a table or figure from runs."""
        assert name not in self._of_runs, f"{name} is registered twice"
        self._of_runs[name] = Entry(from_ledgers=from_ledgers, lacks=lacks, by_adoption=by_adoption)

    def derived(self, name: str) -> Callable[[F], F]:
        """Decorate the function that derives a table or figure from published values.

        The function takes the adoption of runs in doubt if this changes the table or figure;
        otherwise it takes no argument.
        """

        def decorate(function: F) -> F:
            assert name not in self._derived, f"{name} is derived twice"
            self._derived[name] = function
            return function

        return decorate

    def gather(self, package: str, path: list[str]) -> dict[str, Entry[T]]:
        """Import every module of a package and return the entries that they register.

        Those of the paper come first, in its order; the others follow by name.
        """
        for module in pkgutil.iter_modules(path):
            if not module.name.startswith("_"):
                importlib.import_module(f"{package}.{module.name}")
        assert self._derived.keys() <= self._of_runs.keys(), "derived, but not from runs"
        return {name: self._entry(name) for name in sorted(self._of_runs, key=_place)}

    def _entry(self, name: str) -> Entry[T]:
        entry, derive = self._of_runs[name], self._derived.get(name)
        if derive is None:
            return entry
        assert not entry.lacks, f"{name} is derived, so that the paper lacks nothing"
        return Entry(
            from_ledgers=entry.from_ledgers,
            from_paper=derive if entry.by_adoption else lambda adoption: derive(),
            by_adoption=entry.by_adoption,
        )


def _place(name: str) -> tuple[bool, str, int]:
    """Sort key: names of the paper (a letter and a number, or a number) come first."""
    letter, _, number = name.rpartition("-")
    is_of_paper = len(letter) <= 1 and number.isdigit()
    return (not is_of_paper, letter if is_of_paper else name, int(number) if is_of_paper else 0)
