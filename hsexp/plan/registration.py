"""What a campaign fixes before its first run: its tests, its seeds and its rules.

The ledger keeps it from the first launch on and refuses another one (`Ledger.register`). It is what
the campaign declares: a launch that narrows seeds or adds others changes nothing here.
"""

from collections.abc import Mapping
from typing import Any

from hsexp.config.catalog import options, read_option, remembered
from hsexp.config.launch import Launch

_FAMILIES = "analysis/families"

_PRESENTATION = ("title", "source", "tables", "figures")
"""Fields of conf/analysis that decide nothing, beside `published_*`."""


def registration_of(launch: Launch) -> dict[str, Any]:
    """The registered fields as plain data: primary, exclusions, seeds, analysis, families."""
    campaign = launch.serving
    registered = campaign.registered
    return {
        "primary": registered and registered.primary,
        "exclusions": registered and list(registered.exclusions),
        "seeds": {name: list(block.seeds) for name, block in campaign.blocks.items()},
        "analysis": _decisive(_analysis_of(launch)),
        "families": _families_of(campaign.name),
    }


def _analysis_of(launch: Launch) -> dict[str, Any]:
    """As it was composed, else as it stands in conf/analysis under the campaign's name."""
    name = launch.serving.name
    if launch.analysis is not None or name not in options("analysis"):
        return launch.analysis or {}
    return read_option("analysis", name)


def _families_of(campaign: str) -> dict[str, Any]:
    """Families of tests that draw on the campaign's runs: all tests, because Holm counts them."""
    return {
        name: _decisive(family)
        for name, family in _families().items()
        if any(contrast.get("campaign") == campaign for contrast in _contrasts(family))
    }


@remembered
def _families() -> dict[str, dict[str, Any]]:
    return {name: read_option(_FAMILIES, name) for name in options(_FAMILIES)}


def _contrasts(family: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [*family.get("contrasts", []), *family.get("components", [])]


def _decisive(data: Any) -> Any:
    """The data without presentation; a list of named items becomes a mapping by their names."""
    if isinstance(data, Mapping):
        return {
            key: _decisive(value)
            for key, value in data.items()
            if key not in _PRESENTATION and not key.startswith("published_")
        }
    if isinstance(data, list):
        if data and all(isinstance(item, Mapping) and "id" in item for item in data):
            return {item["id"]: _decisive(item) for item in data}
        return [_decisive(item) for item in data]
    return data
