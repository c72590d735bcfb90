"""The plan: what one campaign runs, as an ordered list of cells named by their content."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

KEY_DIGITS = 16

PLACES = {"workload": ("path",)}
"""Fields of a cell's configuration that say where an input lies. Another field names its content.
"""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a campaign: a resolved configuration and where it stands in the comparison."""

    campaign: str
    block: str
    """Group of cells inside the campaign, e.g. the sweep of one budget."""
    axes: dict[str, Any]
    """The swept settings as plain scalars: organization, budget, rate_per_s, ..., seed."""
    config: dict[str, Any]
    """The fully resolved configuration of the run, as plain data."""
    cell_id: str
    """`cell_key(config)`."""
    pair_id: str
    """The same for cells that are compared with each other."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The cells of one campaign in the order of their first run."""

    campaign: str
    cells: tuple[Cell, ...]
    contract: dict[str, Any]
    """What the cells share and what the names in their axes mean (`hsexp.plan.contract`)."""
    notes: tuple[str, ...]
    """What was narrowed or chosen while planning, in words."""
    registration: dict[str, Any] = field(default_factory=dict)
    """What the campaign fixes before its first run: tests, seeds and rules, as plain data."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes that at least one cell names, in the order in which they are first named."""
        return tuple(dict.fromkeys(axis for cell in self.cells for axis in cell.axes))

    @property
    def digest(self) -> str:
        """Names what is frozen before the first run: the contract of these cells, without its
        free texts, and the registration of their campaign."""
        contract = {part: value for part, value in self.contract.items() if part != "words"}
        return content_key({"contract": contract, "registration": self.registration})


def content_digest(data: object) -> str:
    """SHA-256 (64 hex digits) over the canonical JSON of plain data.

    Raises:
        ValueError: a number is NaN or infinite.
        TypeError: a value or a key is not plain JSON data.
    """
    return hashlib.sha256(canonical_json(data).encode()).hexdigest()


def content_key(data: object) -> str:
    """The first 16 hex digits of `content_digest`: readable, and unique among any cells."""
    return content_digest(data)[:KEY_DIGITS]


def cell_key(config: Mapping[str, Any]) -> str:
    """The content key of a cell's configuration; a moved input does not change it."""
    return content_key(without_places(config))


def without_places(config: Mapping[str, Any]) -> dict[str, Any]:
    """A cell's configuration without the places of its inputs."""
    return {
        part: {field: kept for field, kept in value.items() if field not in PLACES[part]}
        if part in PLACES and isinstance(value, Mapping)
        else value
        for part, value in config.items()
    }


def canonical_json(data: object) -> str:
    """One spelling per value: sorted keys, no white space, floats by their shortest repr."""
    for path, value in _leaves(data, ""):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{path or 'value'} must be finite, got {value!r}")
        if not isinstance(value, str | int | float | None):
            raise TypeError(f"{path or 'value'} is not plain data: {type(value).__name__}")
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _leaves(data: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            if not isinstance(key, str):
                raise TypeError(f"{path or 'value'} has the key {key!r}; keys must be strings")
            yield from _leaves(value, f"{path}.{key}" if path else key)
    elif isinstance(data, Sequence) and not isinstance(data, str | bytes):
        for index, value in enumerate(data):
            yield from _leaves(value, f"{path}[{index}]")
    else:
        yield path, data


def format_seeds(seeds: Sequence[int]) -> str:
    """Consecutive seeds as first-last, others listed; they ascend."""
    if len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"{seeds[0]}-{seeds[-1]}"
    return ", ".join(map(str, seeds))
