"""What becomes of every numeric cell of analysis/paper: declared beside the targets.

A cell is compared (a target or a test of a family uses it), derived from other cells by a rule, an
input of the paper's design, or omitted for a reason. A declaration states how many cells it covers,
so that a new cell can neither slip into a pattern nor stay unnamed.
"""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from hsexp.config.base import Config
from hsexp.config.fields import Name

Texts = Annotated[tuple[str, ...], Field(min_length=1)]

Cell = tuple[str, str, str]
"""Table, row and column of analysis/paper."""

Rule = Literal["same", "sum", "difference", "ratio", "change", "mean", "product"]
"""How a cell follows from others: equal to the only one; their sum, mean or product; or the first
less, over, or in percent above the second."""


class Cells(Config):
    """Numeric cells of one table whose row and column match a pattern (`*` matches any text)."""

    table: Name
    rows: Texts = ("*",)
    columns: Texts = ("*",)
    unit: str | None = None
    """Only cells in this unit; null is any."""
    cells: PositiveInt
    """How many cells match."""
    within: PositiveFloat | None = None
    """How far the printed number may be off, in its unit; null is half its last digit."""


class Derived(Cells):
    """Cells that follow from others."""

    rule: Rule | None = None
    of: tuple[Cell, ...] = ()
    """The cells that the rule takes. `*` as a row or column stands for the derived cell's own."""
    factor: float = 1.0
    """Converts the result to the derived cell's unit."""
    from_table: Name | None = None
    """Table whose `source=paper` form recomputes the cells (`analysis.tables`)."""

    @model_validator(mode="after")
    def _has_one_rule(self) -> "Derived":
        if (self.rule is None) == (self.from_table is None):
            raise ValueError(f"derived cells of {self.table} need `rule` or `from_table`")
        if (self.rule is None) != (not self.of):
            raise ValueError(f"derived cells of {self.table}: `rule` and `of` go together")
        return self


class Input(Cells):
    """Cells that describe the paper's design; checked against `conf/` where it has them."""

    axis: str | None = None
    """Axis, or `seed_first`, `seed_last`, `seeds` (any of them), `num_seeds`, `num_arms`,
    `num_runs` of the block; of the arms of the row's own targets if no block is named."""
    denominator: bool = False
    """Of the targets' second arm."""
    campaign: Name | None = None
    block: Name | None = None
    fact: str | None = None
    """Name of a size of the paper's model, organizations and budgets (`analysis.compare.facts`)."""
    why: str | None = None
    """What the number is, where nothing here can check it."""

    @model_validator(mode="after")
    def _has_one_check(self) -> "Input":
        if sum(each is not None for each in (self.axis, self.fact, self.why)) != 1:
            raise ValueError(f"inputs of {self.table} need `axis`, `fact` or `why`")
        if (self.campaign is None) != (self.block is None):
            raise ValueError(f"inputs of {self.table}: campaign and block go together")
        return self


class Omitted(Cells):
    """Cells that nothing here can be compared with."""

    why: Name
    """Name of the reason."""


class Printed(Config):
    """Declarations for every numeric cell that no target compares."""

    derived: tuple[Derived, ...] = ()
    inputs: tuple[Input, ...] = ()
    reasons: dict[Name, str] = Field(default_factory=dict)
    """Reasons for an omission, by name."""
    omitted: tuple[Omitted, ...] = ()

    @model_validator(mode="after")
    def _reasons_are_declared_and_used(self) -> "Printed":
        used = {each.why for each in self.omitted}
        if used != self.reasons.keys():
            raise ValueError(
                f"reasons {', '.join(sorted(used ^ self.reasons.keys()))} must be declared and used"
            )
        return self
