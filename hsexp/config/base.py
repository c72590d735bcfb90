"""The base of every configuration value: frozen, closed to unknown keys, ranges checked once."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs, ErrorDetails


class ConfigError(ValueError):
    """A configuration was refused; the message names each field and the value it was given."""


class Config(BaseModel):
    """A frozen value. The docstring under a field gives its meaning and unit."""

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
            raise ConfigError(describe_errors(error, data, path=path)) from None


def parse_union(kind: Any, data: Any, *, path: str) -> Any:
    """Check data against a discriminated union such as OrganizationConfig.

    Raises:
        ConfigError: names the field and the value.
    """
    try:
        return _adapter(kind).validate_python(data)
    except ValidationError as error:
        raise ConfigError(describe_errors(error, data, path=path)) from None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def describe_errors(error: ValidationError, data: Any, *, path: str = "") -> str:
    """One line per refused field: `admission.headroom must be less than 1, got 1.2`.

    Args:
        data: the refused data.
        path: name of the data as a whole, put before each field.
    """
    return "\n".join(
        _describe(_field(path, item, data), item)
        for item in error.errors()
        if not (item["type"] == "too_short" and item["input"])  # its bad items are listed
    )


def _field(path: str, item: ErrorDetails, data: Any) -> str:
    """The dotted name as the user would type it: without tags of unions, which are not keys."""
    parts = [path] if path else []
    for place, part in enumerate(item["loc"], start=1):
        is_missing = item["type"] == "missing" and place == len(item["loc"])
        if isinstance(data, Mapping) and part not in data and not is_missing:
            continue
        parts.append(str(part))
        if isinstance(data, Mapping):
            data = data.get(part)
        elif isinstance(data, Sequence) and isinstance(part, int):
            data = data[part]
    return ".".join(parts)


def _describe(field: str, item: ErrorDetails) -> str:
    if item["type"] == "extra_forbidden":
        return f"{field} is not a known setting here (got {item['input']!r})"
    if item["type"] == "missing":
        return f"{field} is required"
    if item["type"] == "too_short":
        return f"{field} must not be empty, got {item['input']!r}"
    message = item["msg"].removeprefix("Value error, ")
    message = message.replace("Input should be ", "must be ").replace("Input should ", "must ")
    message = message.replace("a valid tuple", "a list").replace("a valid dictionary", "a mapping")
    # Of several values that do not fit together, the message names each.
    if isinstance(item["input"], Mapping | ArgsKwargs):
        return f"{field} {message}".strip()
    return f"{field or 'config'} {message}, got {item['input']!r}"
