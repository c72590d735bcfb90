"""The contract of a plan: what its cells share, and what the names in their axes mean.

It is computed from the cells alone, so that it contains only what they use. Its use in a ledger is
described in `hsexp.ledger.contract`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from hsexp.plan.cells import Cell, Plan, cell_key, without_places

FREE_TEXT = {"device": ("description", "source")}
"""Fields of a cell's configuration that do not affect a run."""

_OF_BLOCK = ("workload", "arrivals", "exact")
"""Parts of a configuration that a block of a campaign sets, besides `scheduler.separate`."""


def contract_of(campaign: str, cells: Iterable[Cell]) -> dict[str, Any]:
    """What the cells of one campaign share, their options by name, and their blocks."""
    shared: dict[str, Any] = {"campaign": campaign}
    options: dict[str, Any] = {}
    blocks: dict[str, Any] = {}
    words: dict[str, Any] = {}
    for cell in cells:
        for part, value in without_places(cell.config).items():
            meaning = _without(value, (*cell.axes, *FREE_TEXT.get(part, ())))
            if part in cell.axes:
                if isinstance(value, Mapping):
                    _state(options, part, str(cell.axes[part]), value)
            elif part in _OF_BLOCK:
                if value is not None:
                    _state(blocks, cell.block, part, meaning)
            elif part == "scheduler":
                _state(blocks, cell.block, "separate", value["separate"])
                _state(shared, part, _without(meaning, ("separate",)))
            elif meaning != {}:
                _state(shared, part, meaning)
        _state(blocks, cell.block, "exact", cell.config.get("exact", False))
        for part, fields in FREE_TEXT.items():
            words.setdefault(part, {field: cell.config[part][field] for field in fields})
    return {**shared, "options": options, "blocks": blocks, "words": words}


def in_words(plan: Plan, words: Mapping[str, Mapping[str, Any]]) -> Plan:
    """The plan with the free texts of a ledger.

    They are part of the cells' configurations and so of their ids. Without this, a text edited
    since the ledger began would make every cell a new one.
    """
    if not words:
        return plan
    return replace(plan, cells=tuple(_reworded(cell, words) for cell in plan.cells))


def _reworded(cell: Cell, words: Mapping[str, Mapping[str, Any]]) -> Cell:
    config = cell.config | {
        part: cell.config[part] | texts for part, texts in words.items() if part in cell.config
    }
    return replace(cell, config=config, cell_id=cell_key(config))


def _without(value: Any, fields: Iterable[str]) -> Any:
    if not isinstance(value, Mapping):
        return value
    left_out = set(fields)
    return {key: kept for key, kept in value.items() if key not in left_out}


def _state(into: dict[str, Any], *path_and_value: Any) -> None:
    """Put a value under a path; a value that is already there must be equal."""
    *path, last, value = path_and_value
    for key in path:
        into = into.setdefault(key, {})
    assert into.setdefault(last, value) == value, f"two meanings of {last} in one plan"
