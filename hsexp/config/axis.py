"""What an axis is, and what each class that has a field for it holds.

    class         Option[BudgetConfig]     Setting[bool]    Nested[float]    Repeats[int]
    block         ("b63", "b83")           (False, True)    (0.0, 0.19)      (1, 2, 3)
    arm           "b63"                    True             0.19
    launch        the option, or None      True             (in a section)   (1, 2), or None
    server        "s2", or its values (`Part`)

`Axes` (`hsexp.config.axes`) declares each axis once, as an attribute of one of these types. A type
checker reads them as descriptors, so that the type of `block.budget` follows from the class of
`block`. At run time they only carry the types, and `holding` gives each class its fields.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints, overload

from pydantic import Field, create_model

from hsexp.config.base import Config
from hsexp.config.fields import Name

Value = TypeVar("Value")
Held = TypeVar("Held", bound=Config)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One setting that a campaign can vary from cell to cell.

    A declaration in `Axes` gives the first five fields; `declared` reads the others from the name
    and the type of the attribute.
    """

    meaning: str
    spelling: str = ""
    """The setting as the command line spells it; empty where that is the name."""
    pairs: bool = False
    """Whether runs must agree in it to form a pair: the same requests under the same load."""
    neutral: tuple[Any, ...] | None = None
    """Values of a block that does not name the axis; None where every block must."""
    is_implied: bool = False
    """Whether a cell leaves the axis out where it has its neutral value. So an axis that is new
    changes nothing about the cells that do not vary it, and ledgers without it stay as they are."""
    name: str = ""
    """Its field in a block, its column in a ledger."""
    type: Any = None
    """Type of one value in a block."""
    pin: Any = None
    """Type of what the command line pins it to."""
    options: Any = None
    """For an axis that is a Hydra group of the same name: type of the group's options. Blocks name
    options, and the command line pins one. None where the axis is not a group."""
    is_part: bool = False
    """Whether its options are parts of a memory, so that a server chooses one as well."""
    is_repeat: bool = False
    """Whether its values are independent repeats of the same setting."""

    @property
    def path(self) -> tuple[str, ...]:
        """The setting's place in a composed configuration."""
        return tuple((self.spelling or self.name).split("."))

    def pinned(self, launch: Any) -> tuple[Any, ...] | None:
        """The values that a launch pins the axis to; None leaves them to the campaign."""
        value = launch
        for part in self.path:
            value = value.get(part) if isinstance(value, dict) else getattr(value, part)
        if value is None:
            return None
        if self.options is not None:
            return (value.name,)
        return tuple(value) if self.is_repeat else (value,)


# -- what a class holds --------------------------------------------------------------------------


class InBlock:
    """Holds the values of each axis."""


class InArm:
    """Holds at most one value of each axis."""


class InLaunch:
    """Holds what the command line pins an axis to; None leaves it to the campaign."""


class InSection:
    """Holds the same for the axes that are spelled as its fields."""


class InServer:
    """Holds the choice of each part of a memory."""


class Option(Generic[Value]):
    """An option of the Hydra group with the axis's name."""

    @overload
    def __get__(self, held_by: "InBlock", kind: Any) -> tuple[str, ...]: ...
    @overload
    def __get__(self, held_by: "InArm", kind: Any) -> str | None: ...
    @overload
    def __get__(self, held_by: "InLaunch", kind: Any) -> Value | None: ...
    def __get__(self, held_by: Any, kind: Any) -> Any:
        raise NotImplementedError

    @staticmethod
    def facts(value: Any) -> dict[str, Any]:
        """Fields of `Axis` that follow from the type's parameter."""
        return {"type": Name, "pin": value, "options": value}


class Part(Option[Value]):
    """An option that is a part of a memory; a server names one, or gives its values."""

    @overload
    def __get__(self, held_by: "InBlock", kind: Any) -> tuple[str, ...]: ...
    @overload
    def __get__(self, held_by: "InArm", kind: Any) -> str | None: ...
    @overload
    def __get__(self, held_by: "InLaunch", kind: Any) -> Value | None: ...
    @overload
    def __get__(self, held_by: "InServer", kind: Any) -> str | dict[str, Any]: ...
    def __get__(self, held_by: Any, kind: Any) -> Any:
        raise NotImplementedError

    @staticmethod
    def facts(value: Any) -> dict[str, Any]:
        return Option.facts(value) | {"is_part": True}


class Setting(Generic[Value]):
    """A value that the command line spells as the axis."""

    @overload
    def __get__(self, held_by: "InBlock", kind: Any) -> tuple[Value, ...]: ...
    @overload
    def __get__(self, held_by: "InArm", kind: Any) -> Value | None: ...
    @overload
    def __get__(self, held_by: "InLaunch", kind: Any) -> Value | None: ...
    def __get__(self, held_by: Any, kind: Any) -> Any:
        raise NotImplementedError

    @staticmethod
    def facts(value: Any) -> dict[str, Any]:
        return {"type": value, "pin": value}


class Nested(Generic[Value]):
    """A value that the command line spells as a field of a section (`Axis.spelling`)."""

    @overload
    def __get__(self, held_by: "InBlock", kind: Any) -> tuple[Value, ...]: ...
    @overload
    def __get__(self, held_by: "InArm", kind: Any) -> Value | None: ...
    @overload
    def __get__(self, held_by: "InSection", kind: Any) -> Value | None: ...
    def __get__(self, held_by: Any, kind: Any) -> Any:
        raise NotImplementedError

    @staticmethod
    def facts(value: Any) -> dict[str, Any]:
        return {"type": value, "pin": value}


class Repeats(Generic[Value]):
    """Independent repeats; they do not distinguish arms."""

    @overload
    def __get__(self, held_by: "InBlock", kind: Any) -> tuple[Value, ...]: ...
    @overload
    def __get__(self, held_by: "InLaunch", kind: Any) -> tuple[Value, ...] | None: ...
    def __get__(self, held_by: Any, kind: Any) -> Any:
        raise NotImplementedError

    @staticmethod
    def facts(value: Any) -> dict[str, Any]:
        several = Annotated[tuple[value, ...], Field(min_length=1)]
        return {"type": value, "pin": several, "is_repeat": True}


def declared(axes: type) -> tuple[Axis, ...]:
    """The axes that a class declares, in order."""
    found = []
    for name, hint in get_type_hints(axes, include_extras=True).items():
        (annotated,) = get_args(hint)  # of a ClassVar
        held, axis = get_args(annotated)
        (value,) = get_args(held)
        found.append(replace(axis, name=name, **get_origin(held).facts(value)))
    return tuple(found)


def holding(
    axes: tuple[Axis, ...],
    type_of: Callable[[Axis], Any],
    default: Callable[[Axis], Any],
) -> Callable[[type[Held]], type[Held]]:
    """Decorates a settings class with one field an axis.

    Args:
        type_of: type of the field of an axis.
        default: its default; `...` makes it required.
    """
    fields: dict[str, Any] = {
        axis.name: (Annotated[type_of(axis), Field(description=axis.meaning)], default(axis))
        for axis in axes
    }

    def with_fields(settings: type[Held]) -> type[Held]:
        made: type[Held] = create_model(
            settings.__name__,
            __base__=settings,
            __module__=settings.__module__,
            __doc__=settings.__doc__,
            **fields,
        )
        return made

    return with_fields
