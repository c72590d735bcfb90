"""A campaign at another size: an option of `conf/scale` replaces values of the composed launch.

It may also have other laws of the workload, which its ledgers were measured under. Only values that
equal those in `conf/` are replaced. A value that the command line changed stays as it is:
`workload.num_requests=20` with a scale means 20.
"""

from collections.abc import Mapping
from typing import Any

from hsexp.config.base import Config, ConfigError
from hsexp.config.campaigns import LawGroup, ScaleConfig, ServingCampaign
from hsexp.config.catalog import changes, option_name, with_changes
from hsexp.config.launch import Launch

_PINNED = ("budget", "organization")
"""Groups of which a scale changes the options."""


def scaled(launch: Launch) -> Launch:
    """The launch with the blocks, the workload law and the pinned options of its scale.

    Raises:
        ConfigError: the scale has no design for the campaign.
    """
    scale, campaign = launch.scale, launch.campaign
    if scale is None or campaign is None or not campaign.uses("scale"):
        return launch.model_copy(update={"scale": None})
    pinned = {group: _pinned(scale, group, getattr(launch, group)) for group in _PINNED}
    if not isinstance(campaign, ServingCampaign):
        return launch.model_copy(update=pinned)
    if campaign.name not in scale.campaigns:
        raise ConfigError(
            f"scale {scale.name} has no design for campaign {campaign.name}; it has "
            f"{', '.join(scale.campaigns)} ('~scale' runs the campaign's own size)"
        )
    return launch.model_copy(
        update={
            "campaign": campaign.model_copy(update={"blocks": scale.campaigns[campaign.name]}),
            "workload": scaled_option(scale, "workload", _law(scale, "workload", launch.workload)),
            "arrivals": _law(scale, "arrivals", launch.arrivals),
            **pinned,
        }
    )


def scaled_option(
    scale: ScaleConfig | None, group: str, given: Mapping[str, Any]
) -> dict[str, Any]:
    """An option of a group at this size, as plain data."""
    scaled = {} if scale is None else _changes(scale, group, given)
    if not scaled:
        return dict(given)
    kept = changes(group, given)
    return {
        **given,
        **{key: value for key, value in scaled.items() if key in given and key not in kept},
    }


def _changes(scale: ScaleConfig, group: str, given: Mapping[str, Any]) -> dict[str, Any]:
    match group:
        case "budget":
            return {"bytes": round(given["bytes"] * scale.budget_factor)}
        case "organization":
            return scale.organization.get(given["name"], {})
        case "workload":
            return scale.workload
        case _:
            return {}


def _law(scale: ScaleConfig, group: LawGroup, given: Mapping[str, Any]) -> dict[str, Any]:
    """The law that the scale has in place of a campaign's, with what the command line changes."""
    other = scale.laws.get(group, {}).get(option_name(given) or "")
    return dict(given) if other is None else with_changes(group, other, given)


def _pinned(scale: ScaleConfig, group: str, option: Config | None) -> Config | None:
    if option is None:
        return None
    return type(option).parse(scaled_option(scale, group, option.model_dump()))
