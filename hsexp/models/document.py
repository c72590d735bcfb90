"""The fields of one config.json, read with an error that names the field."""

from collections.abc import Mapping, Sequence
from typing import Any

from hsexp.config.base import ConfigError

_MISSING = object()


class Document:
    """A config.json as plain data."""

    def __init__(self, fields: Mapping[str, Any], *, source: str) -> None:
        """
        Args:
            source: where it was read, for messages.
        """
        self._fields = fields
        self.source = source

    def has(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def count(self, *names: str, default: int | None = None) -> int:
        """A positive integer; the first of the names that has a value counts.

        Raises:
            ConfigError: none has a value and there is no default, or it is not a positive integer.
        """
        value = self._first(names)
        if value is None and default is not None:
            return default
        if type(value) is not int or value < 1:
            raise self.refusal(names[0], f"must be a positive integer, got {value!r}")
        return value

    def number(self, name: str) -> int:
        """An integer from 0 on.

        Raises:
            ConfigError: it is absent, or something else.
        """
        value = self._fields.get(name)
        if type(value) is not int or value < 0:
            raise self.refusal(name, f"must be an integer from 0 on, got {value!r}")
        return value

    def flag(self, *names: str, default: bool = False) -> bool:
        """A yes or no; the first of the names that has a value counts."""
        value = self._first(names)
        return default if value is None else bool(value)

    def factor(self, name: str) -> float | None:
        """A number; None where there is none."""
        value = self._fields.get(name)
        return float(value) if isinstance(value, int | float) else None

    def indices(self, name: str) -> frozenset[int]:
        """Places of layers; empty where the field is absent."""
        value = self._fields.get(name)
        return frozenset(value) if isinstance(value, list) else frozenset()

    def text(self, name: str, default: str) -> str:
        return str(self._fields.get(name) or default)

    def layers(self, *names: str) -> Sequence[Any]:
        """A list with an entry for each layer; a string is one of characters."""
        value = self._first(names)
        if not isinstance(value, list | str) or not value:
            raise self.refusal(names[0], f"must be a list of layers, got {value!r}")
        return value

    def part(self, name: str) -> "Document":
        """A nested mapping."""
        value = self._fields.get(name)
        if not isinstance(value, Mapping):
            raise self.refusal(name, f"must be a mapping, got {value!r}")
        return Document(value, source=f"{self.source}: {name}")

    def refusal(self, name: str, why: str) -> ConfigError:
        if self._fields.get(name, _MISSING) is _MISSING and not why.startswith("is"):
            return ConfigError(f"{self.source}: {name} is required")
        return ConfigError(f"{self.source}: {name} {why}")

    def _first(self, names: Sequence[str]) -> Any:
        values = (self._fields.get(name) for name in names)
        return next((value for value in values if value is not None), None)
