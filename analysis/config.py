"""Reads conf/analysis: one YAML file a campaign becomes one frozen `AnalysisConfig`."""

from typing import Any

import yaml

from analysis.errors import AnalysisError
from analysis.families import AnalysisConfig
from hsexp.config.base import ConfigError
from hsexp.config.catalog import CONF, options


def load(campaign: str) -> AnalysisConfig:
    """The analysis of a campaign.

    Raises:
        AnalysisError: there is none, or its file is refused (field and value are named).
    """
    if campaign not in campaigns():
        raise AnalysisError(
            f"campaign {campaign} has no analysis; there is {', '.join(campaigns())}"
        )
    try:
        blocks = _read("campaign", campaign)["campaign"]["blocks"]
        return parse(_read("analysis", campaign), blocks=blocks)
    except (ConfigError, yaml.YAMLError) as error:
        raise AnalysisError(f"conf/analysis/{campaign}.yaml: {error}") from None


def parse(data: dict[str, Any], *, blocks: dict[str, Any]) -> AnalysisConfig:
    """Build the value from plain data; `design` names one of the campaign's blocks.

    Raises:
        ConfigError: a field is refused; it is named with its value.
    """
    design = data.get("design")
    if design not in blocks:
        raise ConfigError(
            f"design must be a block of the campaign ({', '.join(blocks)}), got {design!r}"
        )
    return AnalysisConfig.parse(data | {"design": blocks[design]})


def campaigns() -> list[str]:
    """Campaigns that can be analysed."""
    return options("analysis")


def _read(group: str, name: str) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(
        (CONF / group / f"{name}.yaml").read_text(encoding="utf-8")
    )
    return data
