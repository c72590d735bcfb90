"""Campaigns that only a real engine can answer: their design, and why they do not run."""

from typing import Literal

from rich.console import Console

from hsexp.config.base import ConfigError
from hsexp.config.campaigns import AboutTheEngine
from hsexp.config.device import DeviceConfig
from runners.engines import choose_engine


def print_design(campaign: AboutTheEngine, console: Console) -> None:
    """Print one line for the campaign and one for its published factors."""
    console.print(campaign.headline)
    console.print(f"{campaign.name}: {_design(campaign)}", markup=False)


def refusal(
    campaign: AboutTheEngine, asked: Literal["sim", "vllm", "auto"], device: DeviceConfig
) -> ConfigError:
    """Why the launch is refused at any stage: names the engine that it needs, and the reason.

    Raises:
        ConfigError: the engine was asked for by name and cannot run.
    """
    engine, why = choose_engine(asked, device)
    if engine == campaign.needs_engine:
        return ConfigError(
            f"campaign {campaign.name}: engine {engine} has no runner for its checks yet"
        )
    return ConfigError(
        f"engine must be {campaign.needs_engine} for campaign {campaign.name}, got {asked} "
        f"({why}): {campaign.why}"
    )


def _design(campaign: AboutTheEngine) -> str:
    factors = [
        f"{factor} {'not stated' if levels is None else ', '.join(map(str, levels))}"
        for factor, levels in campaign.design.items()
    ]
    runs = "not stated" if campaign.num_runs is None else campaign.num_runs
    return "; ".join([*factors, f"runs {runs}"])
