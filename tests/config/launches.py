"""Launches as the command line composes them, without a process of their own."""

from collections.abc import Callable
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from hsexp.config.catalog import CONF
from hsexp.config.launch import Launch, parse_launch
from hsexp.plan.cells import Plan
from hsexp.plan.planner import make_plan

Command = Callable[..., tuple[int, str]]
"""The command in this process: arguments -> exit code, everything that was printed."""


def composed(*overrides: str) -> Launch:
    """What `python -m hsexp OVERRIDES` would carry out."""
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        return parse_launch(compose("config", list(overrides)))


def composed_data(*overrides: str) -> dict[str, Any]:
    """The same as plain data, to be changed in ways that no override can."""
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        data = OmegaConf.to_container(compose("config", list(overrides)), resolve=True)
    assert isinstance(data, dict)
    return {str(key): value for key, value in data.items()}


def planned(*overrides: str) -> Plan:
    return make_plan(composed(*overrides), engine="sim")


def planned_blocks(blocks: dict[str, dict[str, Any]], *overrides: str) -> Plan:
    """Q6's plan with other blocks: each is Q6's own one with some axes replaced."""
    data = composed_data("campaign=q6", *overrides)
    (block,) = data["campaign"]["blocks"].values()
    data["campaign"]["blocks"] = {name: block | axes for name, axes in blocks.items()}
    return make_plan(parse_launch(data), engine="sim")
