"""The contract: what all cells of one ledger share, and in which fields a run differs from it."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from hsexp.plan.cells import canonical_json


def plain_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data as JSON gives it back: tuples are lists, keys are sorted."""
    plain: dict[str, Any] = json.loads(canonical_json(data))
    return plain


def differences(*, ledger: Mapping[str, Any], run: Mapping[str, Any]) -> list[str]:
    """One line a differing field: `workload.num_requests: ledger has 300, this run has 100`."""
    ours, theirs = dict(_leaves(plain_data(ledger))), dict(_leaves(plain_data(run)))
    return [
        f"{field}: ledger has {ours.get(field, 'nothing')}, "
        f"this run has {theirs.get(field, 'nothing')}"
        for field in sorted(ours.keys() | theirs.keys())
        if ours.get(field) != theirs.get(field)
    ]


def _leaves(data: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names and the JSON of their values; a list is one value."""
    for key, value in data.items():
        name = f"{path}.{key}" if path else key
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, name)
        else:
            yield name, json.dumps(value, ensure_ascii=False)
