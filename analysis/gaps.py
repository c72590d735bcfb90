"""What a table or figure lacks: cells one by one, or in one line where a launch was narrowed.

A launch of `budget=b63` leaves every cell of b83 and b108 without a run. These cells have a value
of an axis that no run of their block has, so that the values describe them all, and nothing else.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

AxisValue = tuple[str, str | float | int]
"""An axis and a value of it; the axis "seed" has one value, which spells all the seeds."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Cells of one arm without a run, or without a metric, for one reason."""

    cells: str
    reason: str
    campaign: str = ""
    block: str | None = None
    unrun: tuple[AxisValue, ...] = ()
    """Values of the cells that no run of their block has; each alone explains these cells."""

    def __str__(self) -> str:
        return f"{self.cells}: {self.reason}"


def describe(gaps: Iterable[Gap]) -> tuple[str, ...]:
    """One line a campaign for all cells that unrun values explain; each other gap by itself."""
    every = list(dict.fromkeys(gaps))
    lines: dict[str, None] = {}
    for campaign in dict.fromkeys(gap.campaign for gap in every if gap.unrun):
        lines |= dict.fromkeys(_explained(campaign, every))
    lines |= dict.fromkeys(str(gap) for gap in every if not gap.unrun)
    return tuple(lines)


def _explained(campaign: str, gaps: Sequence[Gap]) -> list[str]:
    """The lines of one campaign; blocks that lack the same values share theirs."""
    by_values: dict[str, list[str]] = {}
    of_campaign = [gap for gap in gaps if gap.campaign == campaign and gap.unrun]
    for block in dict.fromkeys(gap.block for gap in of_campaign):
        values = _cover([gap.unrun for gap in of_campaign if gap.block == block])
        by_values.setdefault(spell_values(values), []).extend([block] if block else [])
    return [
        f"campaign {campaign}{_blocks(blocks)}: no run of {values}"
        for values, blocks in by_values.items()
    ]


def _blocks(names: Sequence[str]) -> str:
    return f", {'block' if len(names) == 1 else 'blocks'} {', '.join(names)}" if names else ""


def _cover(gaps: Sequence[tuple[AxisValue, ...]]) -> list[AxisValue]:
    """Few values of which every gap has one: always that which explains most of what is left."""
    chosen: list[AxisValue] = []
    left = list(gaps)
    while left:
        counts = Counter(value for gap in left for value in gap)
        best = max(counts, key=lambda value: counts[value])
        chosen.append(best)
        left = [gap for gap in left if best not in gap]
    return chosen


def spell_values(values: Iterable[AxisValue]) -> str:
    """b83, b108, nor of headroom 0.0, 0.1."""
    by_axis: dict[str, list[str | float | int]] = {}
    for axis, value in values:
        by_axis.setdefault(axis, []).append(value)
    return ", nor of ".join(_of_axis(axis, found) for axis, found in by_axis.items())


def _of_axis(axis: str, values: Sequence[str | float | int]) -> str:
    match axis:
        case "organization":
            return ", ".join(str(value).upper() for value in values)
        case "budget":
            return ", ".join(map(str, values))
    return f"{axis} {', '.join(map(str, values))}"
