"""Types of fields that several settings share."""

import importlib
import sys
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, ValidatorFunctionWrapHandler
from pydantic_core import CoreSchema, core_schema

from hsexp.config.base import Config
from hsexp.config.catalog import CONF, folders

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
OpenFraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]+$")]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class Choice(Config, ABC):
    """Settings of one rule among several, chosen by name."""

    kind: str
    """The rule: a name of ours, or the `module.Class` of these settings."""
    name: Name
    """The option; two options of one rule have different settings."""


@dataclass(frozen=True)
class OrOwn:
    """Annotates a union of settings: a user's own class may stand in for one of ours.

    Its `kind` is `module.Class`. The module is looked for where Python finds any other, and then in
    the user's folders with options (`--config-dir`).
    """

    base: type[Choice]
    """What the class must inherit from."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(
            self._parse, handler(source), serialization=core_schema.simple_ser_schema("any")
        )

    def _parse(self, given: Any, ours: ValidatorFunctionWrapHandler) -> Any:
        if isinstance(given, self.base):
            return given
        kind = given.get("kind") if isinstance(given, Mapping) else None
        if isinstance(kind, str) and "." in kind:
            return self._class(kind).model_validate(given)
        return ours(given)

    def _class(self, kind: str) -> type[Config]:
        module, _, name = kind.rpartition(".")
        try:
            found = getattr(_import(module), name, None)
        except ImportError as error:
            raise ValueError(f"kind {kind!r} cannot be imported: {error}") from None
        if not (isinstance(found, type) and issubclass(found, self.base)):
            raise ValueError(f"kind {kind!r} must name a subclass of {self.base.__name__}")
        return found


def _import(module: str) -> Any:
    before = sys.path
    sys.path = before + [str(folder) for folder in folders() if folder != CONF]
    try:
        return importlib.import_module(module)
    finally:
        sys.path = before
