"""Contracts of older ledgers, in today's form.

They named every option of every group, used or not, and named the laws of a block by the option
that it chose. Only what the rows use still counts.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from hsexp.ledger.contract import BLOCKS, OPTIONS, WORDS, Contract

_GROUPS = ("organization", "retention", "pinning", "isolation")
_LAWS = ("workload", "arrivals")
_FREE_TEXT = ("description", "source")
"""Fields of a device that do not affect a run."""


def contract_of_header(data: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> Contract:
    """The contract of a header, whatever its form.

    Args:
        rows: the runs that count for it.
    """
    if OPTIONS in data or BLOCKS in data:
        return Contract.of(data)
    if "slots_per_slab" in data:
        return Contract.of(_continuation(data))
    if all(group in data for group in _GROUPS):
        rows = list(rows)
        contract = Contract.of(_serving(data, rows))
        return contract.only(set().union(*(contract.terms_of(row) for row in rows)))
    return Contract.of(data)


def _serving(data: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    device, scheduler = dict(data["device"]), dict(data["scheduler"])
    words = {field: device.pop(field) for field in _FREE_TEXT if field in device}
    separate = scheduler.pop("separate", False)
    apart = (*_GROUPS, *_LAWS, "device", "scheduler", "separate", "exact", "serving")
    shared = {key: value for key, value in data.items() if key not in apart}
    blocks: dict[str, Any] = {}
    budgets = {}
    for row in rows:
        block = row["block"]
        if (config := _recorded_config(row)) is not None:
            budgets[row["axes"]["budget"]] = config["budget"]
        steps = {
            "separate": data.get("separate", {}).get(block, separate),
            "exact": data.get("exact", {}).get(block, False),
        }
        blocks[block] = blocks.get(block, steps) | _laws(data, row)
    return {
        **shared,
        **data.get("serving", {}),
        "device": device,
        "scheduler": scheduler,
        OPTIONS: {group: data[group] for group in _GROUPS} | {"budget": budgets},
        BLOCKS: blocks,
        WORDS: {"device": words},
    }


def _laws(data: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """The laws of a row, where they can be determined."""
    config = _recorded_config(row)
    laws = {}
    for group in _LAWS:
        if group == "arrivals" and row["axes"].get("rate_per_s") is None:
            continue  # a trace's own times
        if config is not None:
            laws[group] = {
                key: value for key, value in config[group].items() if key not in row["axes"]
            }
        elif len(data[group]) == 1:
            (laws[group],) = data[group].values()
    return laws


def _recorded_config(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The cell's whole configuration, which measured rows keep."""
    config: dict[str, Any] | None = (row["provenance"].get("engine_facts") or {}).get("config")
    return config


def _continuation(data: Mapping[str, Any]) -> dict[str, Any]:
    """Options are empty: organizations follow from the element's bytes and were not named."""
    kept = {key: value for key, value in data.items() if key not in ("slots_per_slab", "model")}
    model = {key: value for key, value in data["model"].items() if key != "dtype_bytes"}
    return {**kept, "model": model, OPTIONS: {}}
