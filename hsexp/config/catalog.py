"""Reads the options of a Hydra group without Hydra: a campaign's axes name several of them."""

from pathlib import Path
from typing import Any

import yaml

from hsexp.config.base import ConfigError

CONF = Path(__file__).parents[2] / "conf"
"""Every number of the project lives below this folder."""


def options(group: str) -> list[str]:
    """Names that the group offers."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def read_option(group: str, name: str) -> dict[str, Any]:
    """One option as plain data, over the options of its group that its defaults list names.

    Raises:
        ConfigError: there is no such option; the message lists those there are.
    """
    if name not in options(group):
        raise ConfigError(f"{group} {name!r} does not exist; there is {', '.join(options(group))}")
    data: dict[str, Any] = yaml.safe_load(
        (CONF / group / f"{name}.yaml").read_text(encoding="utf-8")
    )
    merged: dict[str, Any] = {}
    for parent in data.pop("defaults", []):
        # A mapping chooses an option of another group.
        if isinstance(parent, str) and parent != "_self_":
            merged |= read_option(group, parent)
    return merged | data
