"""The command `python -m hsexp`: Hydra composes, `runners.launch` carries out, errors are told."""

import sys

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console

from analysis.errors import AnalysisError
from hsexp.config.base import ConfigError
from hsexp.config.catalog import CONF
from hsexp.config.launch import parse_launch
from hsexp.ledger import LedgerError
from hsexp.workload import TraceError
from runners.launch import EXIT_INTERRUPTED, EXIT_REFUSED, complain, run_launch
from runners.pool import WorkerStartError

_PIPED_WIDTH = 140
"""Columns of output that no terminal shows, so that tables are whole."""

_exit_code = 0
"""Worst exit code of the jobs so far: one job, or all jobs of a sweep."""


def main() -> int:
    """Run the command line. Returns the exit code."""
    global _exit_code
    _exit_code = 0
    _run_job()
    return _exit_code


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def _run_job(composed: DictConfig) -> None:
    global _exit_code
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    try:
        code = run_launch(parse_launch(composed), list(HydraConfig.get().overrides.task), console)
    except (ConfigError, TraceError, LedgerError, AnalysisError, WorkerStartError) as error:
        complain(f"error: {error}")
        code = EXIT_REFUSED
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    _exit_code = max(_exit_code, code)
    if code == EXIT_INTERRUPTED:
        sys.exit(code)
