"""Families of tests, declared as data in conf/analysis: which arms are compared, and where."""

from itertools import product
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from hsexp.config.arm import Arm, Level
from hsexp.config.axes import ARM_AXES
from hsexp.config.base import Config
from hsexp.config.campaigns import Block
from hsexp.config.fields import Name, Seed

Adoption = Literal["current", "complete_case", "invalid"]
"""How a run in doubt is treated (Appendix E.14): it counts as adopted; its seed is left out of its
contrasts; or those contrasts are not estimable and have p = 1. The family keeps its size."""


Printed = tuple[str, str, str]
"""Where the paper prints a number: table, row, column of `analysis/paper`."""


class Contrast(Config):
    """Numerator over denominator, paired by seed."""

    id: Name
    campaign: Name | None = None
    """Campaign of its runs; null uses that of the analysis."""
    block: Name | None = None
    """Block of conf/campaign with its runs and seeds; null uses the design of the analysis."""
    numerator: Arm
    denominator: Arm
    at: Arm
    """Values that both arms share, on axes that the block varies."""
    published_change: Printed | None = None
    published_p: Printed | None = None
    """Where the paper prints the adjusted p."""

    @model_validator(mode="after")
    def _place_is_not_varied(self) -> "Contrast":
        varied = self.numerator.axes.keys() | self.denominator.axes.keys()
        if both := sorted(varied & self.at.axes.keys()):
            raise ValueError(f"contrast {self.id} sets {', '.join(both)} in an arm and in `at`")
        return self

    @property
    def is_self_comparison(self) -> bool:
        """Whether both arms are the same cell, so p = 1."""
        return self.numerator == self.denominator

    @property
    def label(self) -> str:
        """The arms, as the paper writes them: D0(0.00)/S2(0.27)."""
        return f"{self.numerator.label}/{self.denominator.label}"

    @property
    def place(self) -> str:
        """The values that both arms share: b63."""
        return " ".join(str(value) for value in self.at.axes.values())


class Interaction(Config):
    """Difference of two contrasts' log ratios, paired by seed."""

    id: Name
    minuend: Name
    subtrahend: Name
    definition: Literal["published", "inferred"]
    """Whether the paper spells the contrast out."""
    published_change: Printed | None = None
    published_p: Printed | None = None
    """The adjusted p."""


class AffectedRun(Config):
    """A run whose adoption is in doubt (Appendix E.14)."""

    arm: Arm
    seed: Seed
    why: str


class GoodputConfig(Config):
    """Latency thresholds of Table E-13."""

    percent: Annotated[float, Field(gt=0.0, lt=100.0)]
    """Percentile of observed latencies up to which a request counts."""


class Family(Config):
    """Tests whose decisions are adjusted together."""

    name: Name
    source: str
    alpha: Annotated[float, Field(gt=0.0, lt=1.0)]
    scale: Literal["log ratio", "relative change"] = "log ratio"
    """The quantity whose signs are flipped; the display is always in percent."""
    looks: tuple[PositiveInt, ...] = ()
    """Number of seeds at each look of a sequential test (Eq. B1); empty tests all seeds once."""
    contrasts: tuple[Contrast, ...] = ()
    components: tuple[Contrast, ...] = ()
    """Contrasts that interactions need and that are not tested themselves."""
    interactions: tuple[Interaction, ...] = ()
    affected: tuple[AffectedRun, ...] = ()
    goodput: GoodputConfig | None = None

    @model_validator(mode="after")
    def _names_are_unique_and_known(self) -> "Family":
        ids = [contrast.id for contrast in (*self.contrasts, *self.components)]
        every = ids + [interaction.id for interaction in self.interactions]
        if twice := {name for name in every if every.count(name) > 1}:
            raise ValueError(f"family {self.name} declares {', '.join(sorted(twice))} twice")
        for interaction in self.interactions:
            for part in (interaction.minuend, interaction.subtrahend):
                if part not in ids:
                    raise ValueError(f"interaction {interaction.id} needs contrast {part}")
        return self

    @property
    def tests(self) -> tuple[Contrast | Interaction, ...]:
        """Tests that Holm adjusts, in order."""
        return (*self.contrasts, *self.interactions)

    @property
    def size(self) -> int:
        """Number of tests that Holm adjusts for."""
        return len(self.tests)


class Design(Block):
    """The cells that a campaign's tables need: one block of the campaign, run whole."""

    same_law: tuple[Name, ...] = ()
    """Blocks with this one's workload, arrivals and steps. Cells of equal axes are the same run in
    all of them, recorded under one name; empty accepts any name."""

    @property
    def axes(self) -> dict[str, tuple[Level | None, ...]]:
        """Every value that a run of the design may have, by axis; seeds are not restricted."""
        return {axis.name: self.values(axis) for axis in ARM_AXES}

    def cells(self) -> list[Arm]:
        """Every cell without its seed; budget, organization and headroom vary as in the tables."""
        order = ["budget", "organization", "headroom"]
        order += [name for name in Arm.model_fields if name not in order]
        factors = product(*(getattr(self, name) for name in order))
        places = [Arm(**dict(zip(order, values, strict=True))) for values in factors]
        return [arm.at(place) for place in places for arm in self.arms.values() or (Arm(),)]

    def whole(self, arm: Arm) -> Arm:
        """The arm with every axis that has a single value in the design."""
        fixed = {name: values[0] for name, values in self.axes.items() if len(values) == 1}
        return Arm(**{**fixed, **arm.axes})


class BootstrapConfig(Config):
    """Seed-level percentile bootstrap of a mean."""

    level: Annotated[float, Field(gt=0.0, lt=1.0)]
    resamples: PositiveInt
    seed: Seed


class SignFlipConfig(Config):
    """Exact up to `max_exact` seeds, then random assignments."""

    max_exact: Annotated[int, Field(ge=1, le=40)]
    resamples: PositiveInt
    seed: Seed


class Listing(Config):
    """Tables and figures of one campaign, in order."""

    campaign: Name
    title: str
    tables: tuple[Name, ...]
    figures: tuple[Name, ...]


class AnalysisConfig(Listing):
    """The listing of a campaign with a family of its own (Q6)."""

    design: Design
    preselected: dict[Name, dict[Name, Arm]]
    """The setting chosen before the confirmation, by budget and organization."""
    family: Family
    interval: BootstrapConfig
    sign_flip: SignFlipConfig
