"""An arm: what is compared with something else, as values of some axes."""

from hsexp.config.axes import ARM_AXES, Axes
from hsexp.config.axis import InArm, holding
from hsexp.config.base import Config

Level = str | float | int
"""A value of an axis."""


@holding(
    ARM_AXES,
    type_of=lambda axis: axis.type | None,
    default=lambda axis: None,
)
class Arm(Axes, InArm, Config):
    """A setting of some axes; the ledger's columns carry the same names."""

    def __init__(self, **axes: Level | None) -> None:
        super().__init__(**axes)

    @property
    def axes(self) -> dict[str, Level]:
        """The axes that are set."""
        return {name: value for name, value in self if value is not None}

    @property
    def label(self) -> str:
        """Organization with its headroom, as the paper writes arms: D0(0.10)."""
        headroom = "" if self.headroom is None else f"({self.headroom:.2f})"
        return f"{self.organization_label}{headroom}"

    @property
    def organization_label(self) -> str:
        """Upper case, as in the paper."""
        return (self.organization or "").upper()

    def at(self, place: "Arm") -> "Arm":
        """This arm with the axes of `place` added."""
        return Arm(**{**place.axes, **self.axes})
