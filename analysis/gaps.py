"""Missing cells of a table or figure: one by one, or in one line if a launch was narrowed.

A launch of `budget=b63` leaves every cell of b83 and b108 without a run. These cells have a value
of an axis that no run of their block has, so those values describe exactly these cells.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

AxisValue = tuple[str, str | float | int]
"""An axis and one of its values; the axis "seed" has one value, a text that lists all seeds."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Cells of one arm without a run, or without a metric, for one reason."""

    cells: str
    reason: str
    campaign: str = ""
    block: str | None = None
    unrun: tuple[AxisValue, ...] = ()
    """Values of the cells that no run of their block has; each explains the gap on its own."""

    def __str__(self) -> str:
        return f"{self.cells}: {self.reason}"


def describe(gaps: Iterable[Gap]) -> tuple[str, ...]:
    """One line per campaign for cells explained by unrun values; one line per other gap."""
    every = list(dict.fromkeys(gaps))
    lines: dict[str, None] = {}
    for campaign in dict.fromkeys(gap.campaign for gap in every if gap.unrun):
        lines |= dict.fromkeys(_explained(campaign, every))
    lines |= dict.fromkeys(str(gap) for gap in every if not gap.unrun)
    return tuple(lines)


def _explained(campaign: str, gaps: Sequence[Gap]) -> list[str]:
    """The lines of one campaign; blocks that lack the same values share a line."""
    by_values: dict[str, list[str]] = {}
    of_campaign = [gap for gap in gaps if gap.campaign == campaign and gap.unrun]
    for block in dict.fromkeys(gap.block for gap in of_campaign):
        values = _cover([gap.unrun for gap in of_campaign if gap.block == block])
        by_values.setdefault(format_values(values), []).extend([block] if block else [])
    return [
        f"campaign {campaign}{_blocks(blocks)}: no run of {values}"
        for values, blocks in by_values.items()
    ]


def _blocks(names: Sequence[str]) -> str:
    return f", {'block' if len(names) == 1 else 'blocks'} {', '.join(names)}" if names else ""


def _cover(gaps: Sequence[tuple[AxisValue, ...]]) -> list[AxisValue]:
    """A small set of values that explains every gap: greedily, the most frequent value first."""
    chosen: list[AxisValue] = []
    left = list(gaps)
    while left:
        counts = Counter(value for gap in left for value in gap)
        best = max(counts, key=lambda value: counts[value])
        chosen.append(best)
        left = [gap for gap in left if best not in gap]
    return chosen


def format_values(values: Iterable[AxisValue]) -> str:
    """Join values by axis: `b83, b108, nor of headroom 0.0, 0.1`."""
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
