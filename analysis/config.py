"""Reads conf/analysis: one YAML file a campaign becomes one frozen `AnalysisConfig`."""

from pathlib import Path

import yaml

from analysis.errors import AnalysisError
from analysis.families import AnalysisConfig
from hsexp.config.base import ConfigError

FOLDER = Path(__file__).parents[1] / "conf" / "analysis"


def load(campaign: str) -> AnalysisConfig:
    """The analysis of a campaign.

    Raises:
        AnalysisError: there is none, or its file is refused (field and value are named).
    """
    if campaign not in campaigns():
        raise AnalysisError(
            f"campaign {campaign} has no analysis; there is {', '.join(campaigns())}"
        )
    path = FOLDER / f"{campaign}.yaml"
    try:
        return AnalysisConfig.parse(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (ConfigError, yaml.YAMLError) as error:
        raise AnalysisError(f"{path}: {error}") from None


def campaigns() -> list[str]:
    """Campaigns that can be analysed."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))
