"""Which published number is compared with which runs, declared in conf/analysis/compare.

The file contains no published number: a target names where the paper prints it (a cell of
analysis/paper) and which cell of a campaign gives ours. Numbers that no target compares are
declared beside the targets (`analysis.compare.printed`).
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from analysis.compare.formula import names_in
from analysis.compare.printed import Printed
from analysis.errors import AnalysisError
from analysis.published import published_value
from hsexp.config.arm import Arm
from hsexp.config.base import Config, ConfigError
from hsexp.config.catalog import options, read_file, remembered, shown
from hsexp.config.fields import Name

GROUP = "analysis/compare"

Tag = Literal["tuned", "held-out"]
"""Whether rules that were inferred for the simulator were chosen with this number in sight."""

Measure = Literal["mean", "difference", "ratio", "change", "change of means", "log change"]
"""How seeds become one number: their mean; or the mean of seedwise differences, ratios, relative
changes in percent; or the change in percent of means over seeds, or of mean log ratios (Eq. G3)."""

Statistic = Literal[
    "mean", "smallest", "largest", "positive", "negative", "interval low", "interval high"
]
"""How seeds are summed up: their mean; the smallest or the largest of as many seeds as the paper
has; how many of as many seeds are above or below 0; or an end of the 95 % interval of as many seeds
(percentile bootstrap of mean changes, paired t of log changes)."""

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
    groups: tuple[Name, ...]
    measure: Literal["mean", "largest"]
    """Statistic of the absolute errors."""
    at_most: NonNegativeFloat
    tag: Tag | None = None
    """Judges only targets with this tag; null judges all."""


class NoiseGoal(Config):
    """Bounds on mean |error| over the mean |error| that seed noise alone gives, group by group."""

    largest: PositiveFloat
    """For every group."""
    median: PositiveFloat
    """For the median group."""


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
    others: tuple[Arm, ...] = ()
    """Further arms; a seed's number is the largest over all of them."""
    less_arm: Arm | None = None
    less_over: Arm | None = None
    """A second pair; the line is the first pair's change less this one's."""
    less_campaign: Name | None = None
    less_block: Name | None = None
    """Campaign and block of the second pair; null uses those of the line. Seeds that both have
    count."""
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
    statistic: Statistic = "mean"
    metric: str
    """Metric of the runs, or a formula of metrics: `refusals / num_finished`."""
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
            if (line.less_arm is None) != (line.less_over is None):
                raise ValueError(f"line {line.name} of {self.table}: a second pair has two arms")
            if line.less_arm is not None and self.measure not in ("change", "log change"):
                raise ValueError(
                    f"line {line.name} of {self.table}: only changes can have a second pair"
                )
            if line.others and self.measure != "mean":
                raise ValueError(f"line {line.name} of {self.table}: only means can have `others`")
        if self.statistic.startswith("interval") and self.measure not in ("change", "log change"):
            raise ValueError(f"{self.table}: an interval needs changes, got {self.measure}")
        if self.measure == "change of means" and self.statistic != "mean":
            raise ValueError(f"{self.table}: a change of means is a mean")
        if self.metrics != [self.metric] and self.measure not in ("mean", "difference"):
            raise ValueError(
                f"{self.table}: a formula of metrics and measure {self.measure} do not go together"
            )
        return self

    def place(self, line: Line) -> tuple[str, str]:
        """Campaign and block of the line's runs."""
        return line.campaign or self.campaign, line.block or self.block

    def second_place(self, line: Line) -> tuple[str, str]:
        """Campaign and block of the second pair's runs."""
        campaign, block = self.place(line)
        return line.less_campaign or campaign, line.less_block or block

    def arms(self, line: Line) -> list[Arm]:
        """The arm, and the arm it is compared with, if any."""
        return [arm.at(self.at) for arm in (line.arm, line.over, *line.others) if arm is not None]

    def second_pair(self, line: Line) -> list[Arm]:
        """The pair whose change is subtracted; empty if there is none."""
        pair = (line.less_arm, line.less_over)
        return [arm.at(self.at) for arm in pair if arm is not None]

    @property
    def metrics(self) -> list[str]:
        """All metrics that the set reads."""
        return names_in(self.metric)

    def cells(self, line: Line) -> list[tuple[str, str, str]]:
        """Table, row and column of every printed number that the line uses."""
        columns = line.columns * (len(line.rows) if len(line.columns) == 1 else 1)
        cells = [
            (self.table, row, column or self.column)
            for row, column in zip(line.rows, columns, strict=True)
        ]
        if line.over_row is not None:
            cells.append((self.table, line.over_row, self.column))
        return cells

    def published(self, line: Line) -> float:
        """The printed number, in the group's unit.

        Raises:
            AnalysisError: the paper does not print it.
        """
        values = [published_value(*cell) for cell in self.cells(line)]
        if line.over_row is not None:
            *values, base = values
            return self.published_factor * 100.0 * (sum(values) / len(values) / base - 1.0)
        return self.published_factor * sum(values) / len(values)


class Targets(Config):
    """Everything that one comparison consists of."""

    title: str
    groups: dict[Name, Group]
    goals: tuple[Goal, ...]
    noise: NoiseGoal | None = None
    tries: str | None = None
    """File that says what was tried at the goals that are not reached."""
    families: tuple[Name, ...]
    """Families of conf/analysis/families, compared test by test."""
    confirmations: dict[Name, Name]
    """Campaigns with a family of their own: block that the family draws on."""
    raw_p: dict[Name, tuple[Name, Name]] = Field(default_factory=dict)
    """Table and column with the raw p of a family's tests, by family; the row is the test."""
    printed: Printed = Printed()
    """Every numeric cell of analysis/paper that no target compares."""
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
        raise AnalysisError(f"compare {name} is unknown; choose from {', '.join(options(GROUP))}")
    data = read_file(GROUP, name)
    try:
        return Targets.parse(data)
    except ConfigError as error:
        raise AnalysisError(f"{shown(GROUP, name)}: {error}") from None
