"""The registration of a campaign: the tests, seeds and rules that it fixes before its first run.

The ledger keeps the registration of the first launch and refuses a different one
(`Ledger.register`). A registration holds what the campaign declares: a launch that narrows seeds or
adds others does not change it.
"""

from collections.abc import Mapping
from typing import Any

from hsexp.config.catalog import options, read_option, remembered
from hsexp.config.launch import Launch

_FAMILIES = "analysis/families"

_PRESENTATION = ("title", "source", "tables", "figures")
"""Fields of conf/analysis that do not affect a test, like the fields `published_*`."""


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
    """The composed analysis, else the one in conf/analysis under the campaign's name."""
    name = launch.serving.name
    if launch.analysis is not None or name not in options("analysis"):
        return launch.analysis or {}
    return read_option("analysis", name)


def _families_of(campaign: str) -> dict[str, Any]:
    """Families that use the campaign's runs, each with all its tests, because Holm counts them."""
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
