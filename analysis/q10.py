"""Q10's declaration (conf/analysis/q10.yaml) and the cells of its blocks, by the names of arms."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import pandas as pd
from pydantic import Field, model_validator

from analysis.config import parsed
from analysis.effects import log_effect_percent, log_ratios
from analysis.families import Listing
from analysis.ledgers import Ledgers, Need
from analysis.runs import THROUGHPUT, Runs
from hsexp.config.arm import Arm
from hsexp.config.axes import ARM_AXES
from hsexp.config.base import Config
from hsexp.config.fields import Name

CAMPAIGN = "q10"

Names = Annotated[tuple[Name, ...], Field(min_length=1)]


class ArmContrast(Config):
    """One arm over another, in one cell of a block."""

    id: str
    block: Name
    at: Arm
    numerator: Name
    denominator: Name


class Prediction(ArmContrast):
    """A change that was predicted."""

    predicted_percent: tuple[float, float]

    @model_validator(mode="after")
    def _range_is_ordered(self) -> "Prediction":
        low, high = self.predicted_percent
        if low > high:
            raise ValueError(f"predicted_percent of {self.id} must ascend, got {low} and {high}")
        return self


class Control(ArmContrast):
    """A change that must not be worse than a margin."""

    margin_percent: float


class Ladder(Config):
    """Rules added one after the other; each step is compared with the first."""

    block: Name
    steps: Names
    others: tuple[Name, ...]
    """Arms beside the ladder, compared with its first step too."""


class Bound(Config):
    """An arm that no policy is expected to pass."""

    block: Name
    arm: Name


class Bounds(Config):
    """What throughput is compared with."""

    fine: Bound
    """Small pages, so that little more than live bytes is in use; at each budget."""
    boundless: Bound
    """Memory that nothing fills."""


class Q10Analysis(Listing):
    """The declaration."""

    alpha: Annotated[float, Field(gt=0.0, lt=1.0)]
    level: Annotated[float, Field(gt=0.0, lt=1.0)]
    baselines: Names
    baselines_hit_first: Names
    candidates: Names
    primaries: Annotated[tuple[Prediction, ...], Field(min_length=1)]
    controls: tuple[Control, ...]
    grid: Names
    ladder: Ladder
    bounds: Bounds
    stress: Names

    @property
    def all_baselines(self) -> tuple[str, ...]:
        return self.baselines + self.baselines_hit_first


def declaration() -> Q10Analysis:
    """conf/analysis/q10.yaml.

    Raises:
        AnalysisError: the file is refused; field and value are named.
    """
    return parsed(CAMPAIGN, Q10Analysis)


@dataclass(frozen=True)
class Cell:
    """The runs of one place of a block: equal requests under every arm."""

    runs: Runs
    place: Arm
    """Values of the axes that the block's arms do not set."""

    @classmethod
    def of(cls, ledgers: Ledgers, block: str) -> Iterator["Cell"]:
        """Every place of a block, in the order of its axes."""
        runs = ledgers.runs(CAMPAIGN, block)
        design = runs.design
        together = {axis for arm in design.arms.values() for axis in arm.axes}
        free = [axis for axis in ARM_AXES if axis.name not in together]
        varied = [axis for axis in free if design.values(axis) != (None,)]
        for values in product(*(design.values(axis) for axis in varied)):
            yield cls(runs, Arm(**dict(zip((axis.name for axis in varied), values, strict=True))))

    def known(self, names: Iterable[str]) -> list[str]:
        """Those of the named arms that the block has."""
        return [name for name in names if name in self.runs.design.arms]

    def arm(self, name: str) -> Arm:
        return self.runs.design.arm(name).at(self.place)

    def values(self, name: str, metric: str = THROUGHPUT) -> pd.Series:
        """A metric by seed."""
        return self.runs.values(self.arm(name), metric)

    def mean(self, name: str, metric: str = THROUGHPUT) -> float | None:
        """Mean over the seeds; None if one is missing."""
        values = self.values(name, metric)
        return None if values.empty or values.isna().any() else float(values.mean())

    def best(self, names: Iterable[str]) -> str | None:
        """The arm with the highest mean throughput; None if one has no mean."""
        means = {name: self.mean(name) for name in self.known(names)}
        if not means or None in means.values():
            return None
        return max(means, key=lambda name: means[name] or 0.0)

    def logs(self, numerator: str, denominator: str) -> pd.Series | None:
        """Paired log ratios of throughput; None if a pair is incomplete."""
        pairs = self.runs.pairs(self.arm(numerator), self.arm(denominator), THROUGHPUT)
        return None if pairs.undefined or not len(pairs.numerator) else log_ratios(pairs)

    def change_percent(self, numerator: str, denominator: str | None) -> float | None:
        """Geometric mean of the paired ratios, as a change; None if it is unknown."""
        if denominator is None or not self.known([numerator]):
            return None
        logs = self.logs(numerator, denominator)
        return None if logs is None else log_effect_percent(logs)

    def changes_percent(self, names: Iterable[str], denominator: str | None) -> dict[str, Any]:
        """Entries of a row: the change of each arm over one of them."""
        return {f"{name}_percent": self.change_percent(name, denominator) for name in names}

    def need(self, names: Sequence[str]) -> Need:
        """What a table needs of these arms."""
        return self.runs, [self.arm(name) for name in self.known(names)], [THROUGHPUT]


def cell_of(ledgers: Ledgers, contrast: ArmContrast) -> Cell:
    """The cell of a contrast.

    Raises:
        ValueError: the block has no such place.
    """
    for cell in Cell.of(ledgers, contrast.block):
        if contrast.at.axes.items() <= cell.place.axes.items():
            return cell
    raise ValueError(f"{contrast.id}: block {contrast.block} has no cell {contrast.at.axes}")
