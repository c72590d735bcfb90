"""Which published number is compared with which runs, declared in conf/analysis/compare.

The file contains no published number: a target names where the paper prints it (a cell of
analysis/paper) and which cell of a campaign gives ours.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, model_validator

from analysis.errors import AnalysisError
from analysis.families import Arm
from analysis.published import published_value
from hsexp.config.base import Config, ConfigError
from hsexp.config.catalog import options, read_file, remembered, shown
from hsexp.config.fields import Name

GROUP = "analysis/compare"

Tag = Literal["tuned", "held-out"]
"""Whether rules that were inferred for the simulator were chosen with this number in sight."""

Measure = Literal["mean", "difference", "ratio", "change", "change of means", "log change"]
"""How seeds become one number: their mean; or the mean of seedwise differences, ratios, relative
changes in percent; or the change in percent of means over seeds, or of mean log ratios (Eq. G3)."""

Rows = Annotated[tuple[str, ...], Field(min_length=1)]


class Group(Config):
    """Targets that are summarized together."""

    title: str
    unit: str
    error: Literal["%", "pp", "unit"]
    """Relative error; or the difference, in percentage points or in the group's unit."""
    spec: str = ".2f"
    """Format of both sides."""

    @property
    def error_unit(self) -> str:
        """Unit in which errors are printed."""
        return self.unit if self.error == "unit" else self.error


class Goal(Config):
    """A bound that the simulation should reach."""

    title: str
    groups: tuple[Name, ...] = ()
    """Groups that it covers; empty covers all."""
    measure: Literal["mean", "largest", "largest ratio", "median ratio"]
    """Statistic of the absolute errors; or, over the groups, of the ratio of a group's mean
    absolute error to the one that seed noise alone would give."""
    at_most: NonNegativeFloat


class Line(Config):
    """One target. Of several rows (one per seed), the mean of the printed numbers is used."""

    rows: Rows
    columns: Rows = ("",)
    """One per row, or one for all; empty uses the set's column."""
    over_row: str | None = None
    """The published number is this row's relative change, in percent, over that one."""
    campaign: Name | None = None
    block: Name | None = None
    """Campaign and block of the runs; null uses those of the set."""
    arm: Arm
    over: Arm | None = None
    """Denominator or subtrahend."""
    label: str | None = None

    @property
    def name(self) -> str:
        """Printed name; defaults to the rows."""
        return self.label or ", ".join(self.rows)


class TargetSet(Config):
    """Targets of one published table that are measured the same way."""

    group: Name
    tag: Tag
    table: Name
    column: str = ""
    quantity: str
    """Short name of the compared quantity."""
    campaign: Name
    block: Name
    measure: Measure = "mean"
    metric: Name
    per: Name | None = None
    """Metric that divides `metric`, run by run."""
    factor: float = 1.0
    """Converts the measured number to the group's unit."""
    published_factor: float = 1.0
    """Converts the printed number to the group's unit."""
    at: Arm = Arm()
    """Values that all arms share, on axes that the block varies."""
    note: str = ""
    lines: Annotated[tuple[Line, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _lines_fit_the_measure(self) -> "TargetSet":
        for line in self.lines:
            if (line.over is None) != (self.measure == "mean"):
                raise ValueError(
                    f"line {line.name} of {self.table}: measure {self.measure} needs "
                    f"{'no' if self.measure == 'mean' else 'an'} `over`"
                )
        if self.per is not None and self.measure not in ("mean", "difference"):
            raise ValueError(f"{self.table}: `per` and measure {self.measure} do not go together")
        return self

    def place(self, line: Line) -> tuple[str, str]:
        """Campaign and block of the line's runs."""
        return line.campaign or self.campaign, line.block or self.block

    def arms(self, line: Line) -> list[Arm]:
        """The arm, and the arm it is compared with, if any."""
        return [arm.at(self.at) for arm in (line.arm, line.over) if arm is not None]

    @property
    def metrics(self) -> list[str]:
        """All metrics that the set reads."""
        return [self.metric] if self.per is None else [self.metric, self.per]

    def published(self, line: Line) -> float:
        """The printed number, in the group's unit.

        Raises:
            AnalysisError: the paper does not print it.
        """
        columns = line.columns * (len(line.rows) if len(line.columns) == 1 else 1)
        values = [
            published_value(self.table, row, column or self.column)
            for row, column in zip(line.rows, columns, strict=True)
        ]
        mean = sum(values) / len(values)
        if line.over_row is not None:
            mean = 100.0 * (mean / published_value(self.table, line.over_row, self.column) - 1.0)
        return self.published_factor * mean


class Omission(Config):
    """Published numbers that no line covers."""

    what: str
    why: str


class Targets(Config):
    """Everything that one comparison consists of."""

    title: str
    groups: dict[Name, Group]
    goals: tuple[Goal, ...]
    families: tuple[Name, ...]
    """Families of conf/analysis/families, compared test by test."""
    confirmations: dict[Name, Name]
    """Campaigns with a family of their own: block that the family draws on."""
    omitted: tuple[Omission, ...]
    sets: tuple[TargetSet, ...]

    @model_validator(mode="after")
    def _groups_are_declared(self) -> "Targets":
        named = [each.group for each in self.sets]
        named += [group for goal in self.goals for group in goal.groups]
        if unknown := sorted(set(named) - self.groups.keys()):
            raise ValueError(f"groups {', '.join(unknown)} are not declared")
        return self

    @property
    def lines(self) -> Iterator[tuple[TargetSet, Line]]:
        """All targets, group by group."""
        for group in self.groups:
            for each in self.sets:
                if each.group == group:
                    yield from ((each, line) for line in each.lines)


@remembered
def load_targets(name: str) -> Targets:
    """A comparison of conf/analysis/compare.

    Raises:
        AnalysisError: there is none, or its file is refused (field and value are named).
    """
    if name not in options(GROUP):
        raise AnalysisError(f"compare {name} is unknown; there is {', '.join(options(GROUP))}")
    data = read_file(GROUP, name)
    try:
        return Targets.parse(data)
    except ConfigError as error:
        raise AnalysisError(f"{shown(GROUP, name)}: {error}") from None
