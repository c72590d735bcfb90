"""What the golden tests use of the project. Every import of it stands here and nowhere else."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from rich.console import Console

from analysis.calibration.command import calibrate
from analysis.compare.command import compare
from analysis.config import listing
from analysis.errors import NoInputsError
from analysis.families import Adoption
from analysis.ledgers import Ledgers
from analysis.side_by_side import compare_ledgers
from analysis.tables import TABLES, derive, make
from analysis.tables.table import Table, to_csv, to_markdown
from hsexp.config.base import ConfigError
from hsexp.config.catalog import CONF, options
from hsexp.config.launch import parse_launch
from hsexp.ledger import Ledger, Provenance
from hsexp.plan.cells import Cell, Plan
from hsexp.plan.planner import make_plan
from runners.continuation.plan import make_plan as make_continuation_plan
from runners.launch import run_launch
from runners.sim import execute
from runners.trial import Outcome, try_cell

__all__ = [
    "BY_ADOPTION",
    "TABLE_NAMES",
    "Adoption",
    "Cell",
    "ConfigError",
    "Engine",
    "Ledger",
    "Ledgers",
    "NoInputsError",
    "Outcome",
    "Plan",
    "Provenance",
    "Table",
    "calibrate",
    "campaigns",
    "compare",
    "compare_ledgers",
    "composed_data",
    "derive",
    "execute",
    "listing",
    "make",
    "planned",
    "printed_plan",
    "to_csv",
    "to_markdown",
    "try_cell",
]

Engine = Literal["sim", "vllm"]

TABLE_NAMES = tuple(TABLES)
"""Every table that can be made from ledgers."""

BY_ADOPTION = frozenset(name for name, entry in TABLES.items() if entry.by_adoption)
"""Those that the adoption of runs in doubt changes."""

_PIPED_WIDTH = 140
"""Columns of the text that no terminal shows."""


def campaigns() -> list[str]:
    """Every campaign of conf/campaign."""
    return options("campaign")


def composed_data(*overrides: str) -> dict[str, Any]:
    """What `python -m hsexp OVERRIDES` composes, as plain data."""
    with _configuration():
        data = OmegaConf.to_container(compose("config", list(overrides)), resolve=True)
    assert isinstance(data, dict)
    return {str(key): value for key, value in data.items()}


def planned(data: dict[str, Any], engine: Engine) -> Plan:
    """The plan of a campaign that has cells.

    Raises:
        ConfigError: the launch or one of its cells is refused.
    """
    launch = parse_launch(data)
    if data["campaign"]["kind"] == "continuation":
        return make_continuation_plan(launch, launch.campaign)  # type: ignore[arg-type]
    return make_plan(launch, engine=engine)


def printed_plan(*overrides: str) -> tuple[int, str]:
    """Exit code and text of `python -m hsexp OVERRIDES stage=plan`.

    Raises:
        ConfigError: the launch is refused.
    """
    console = Console(file=io.StringIO(), width=_PIPED_WIDTH, highlight=False, soft_wrap=True)
    arguments = [*overrides, "stage=plan"]
    with _configuration():
        launch = parse_launch(compose("config", arguments))
        result = run_launch(launch, arguments, console, analyse=False)
    assert isinstance(console.file, io.StringIO)
    return result.exit_code, console.file.getvalue()


@contextmanager
def _configuration() -> Iterator[None]:
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        yield
