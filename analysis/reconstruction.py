"""Raw p values implied by the printed Holm-adjusted ones (Appendices B.5 and B.12).

A sign-flip test of n seeds has p = k / 2^n with an even k, since it is two-sided. Holm turns sorted
counts k_1 <= k_2 <= ... of m tests into the running maximum of m k_1, (m - 1) k_2, ... So tests of
one adjusted p stand at neighbouring ranks, and the first of them is where the maximum was reached:

    ranks          1 ... 17 | 18   19 | 20 | ...      (m = 22, in units of 1/4096)
    adjusted          44    | 150 150 | 162
    first count    44 / 22  | 150 / 5 | 162 / 3       forced
    others       2 ... 6    |  30..36 |               at least the first, at most maximum/multiplier
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from analysis.errors import AnalysisError
from analysis.published import PrintedNumber

STEP = 2
"""Counts of two-sided sign-flip tests are even."""


def on_grid(printed: PrintedNumber, assignments: int) -> Fraction:
    """The only multiple of 1/assignments that rounds to the printed number.

    Raises:
        AnalysisError: no multiple does, or several do.
    """
    near = round(printed.value * assignments)
    fits = [k for k in range(near - 1, near + 2) if printed.shows(k / assignments)]
    if len(fits) != 1:
        raise AnalysisError(f"{printed.text} fits {len(fits)} multiples of 1/{assignments}")
    return Fraction(fits[0], assignments)


@dataclass(frozen=True, kw_only=True)
class RankGroup:
    """Tests that share one adjusted p, in any order."""

    names: tuple[str, ...]
    first: Fraction
    """Smallest raw p of the group; which test has it is unknown."""
    last: Fraction
    """Upper bound of the raw p of the group."""

    @property
    def forced(self) -> bool:
        """Whether every raw p is known."""
        return self.first == self.last


def rank_groups(adjusted: Mapping[str, Fraction], assignments: int) -> list[RankGroup]:
    """Bounds on the raw p of a whole family from its adjusted p, smallest first.

    Adjusted p of 1 are left out: products beyond 1 are cut off and give no bound.

    Raises:
        AnalysisError: no even counts give the adjusted p.
    """
    groups: list[RankGroup] = []
    ranked = 0
    for level in sorted(set(adjusted.values()) - {Fraction(1)}):
        names = tuple(name for name, value in adjusted.items() if value == level)
        multiplier = len(adjusted) - ranked
        ranked += len(names)
        unit = Fraction(STEP, assignments)
        first = level / multiplier
        last = level / (multiplier - len(names) + 1) // unit * unit
        if first % unit or (groups and first < groups[-1].first):
            raise AnalysisError(
                f"no even counts of {assignments} give the adjusted p {float(level)} of "
                f"{', '.join(names)}"
            )
        groups.append(RankGroup(names=names, first=first, last=last))
    return groups


def holm_exact(raw: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """Holm's adjustment in rational numbers, in the order given."""
    adjusted: dict[str, Fraction] = {}
    running = Fraction(0)
    for rank, name in enumerate(sorted(raw, key=lambda each: raw[each])):
        running = max(running, min(Fraction(1), (len(raw) - rank) * raw[name]))
        adjusted[name] = running
    return {name: adjusted[name] for name in raw}
