"""The base of every configuration value: frozen, closed to unknown keys, ranges checked once."""

from collections.abc import Iterable
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError


class ConfigError(ValueError):
    """A configuration was refused; the message names each field and the value it was given."""


class Config(BaseModel):
    """A frozen value; a field's meaning and unit stand in its description."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=False,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )

    @classmethod
    def parse(cls, data: Any, *, path: str = "") -> Self:
        """Build the value from plain YAML data.

        Raises:
            ConfigError: names the field (prefixed with `path`) and the refused value.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise ConfigError(describe_errors(error, path=path)) from None


def describe_errors(error: ValidationError, *, path: str = "") -> str:
    """One line per refused field: `admission.headroom must be less than 1, got 1.2`."""
    return "\n".join(_describe(path, item["loc"], item) for item in error.errors())


def _describe(path: str, location: Iterable[Any], item: Any) -> str:
    field = ".".join([part for part in [path] if part] + [str(part) for part in location])
    message = str(item["msg"])
    if item["type"] == "extra_forbidden":
        return f"{field} is not a known setting here (got {item['input']!r})"
    if item["type"] == "missing":
        return f"{field} is required"
    message = message.removeprefix("Value error, ")
    message = message.replace("Input should be ", "must be ").replace("Input should ", "must ")
    return f"{field or 'config'} {message}, got {item['input']!r}"
