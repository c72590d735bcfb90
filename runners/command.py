"""The command `python -m hsexp`: Hydra composes, `runners.launch` runs, errors are printed.

What a launch needs is imported when there is one: help and a mistyped word do not wait for it.
"""

import sys
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from hsexp.config.base import ConfigError
from hsexp.config.catalog import CONF
from hsexp.config.overrides import (
    quoted,
    refuse_several_options,
    refuse_unknown_fields,
    refuse_unknown_options,
)
from hsexp.config.searchpath import follow_hydra
from hsexp.console import make_console
from hsexp.ending import (
    EXIT_FAILED_CELLS,
    EXIT_REFUSED,
    file_fault,
    print_error,
    refused,
    stop_code,
)
from hsexp.models.option import names_path, with_options
from runners.sweep_folder import JobFailed, SweepFolder

if TYPE_CHECKING:
    from runners.launch import Result

_exit_code = 0
"""Exit code of a launch that is not a sweep; Hydra discards the return value of a task."""


def main() -> int:
    """Run the command line. Returns the exit code."""
    global _exit_code
    _exit_code, SweepFolder.path = 0, None
    refuse_unknown_options(word for word in sys.argv[1:] if not names_path(word))
    try:
        refuse_unknown_fields(sys.argv[1:])
    except ConfigError as error:
        return refused(error)
    sys.argv[1:] = quoted(with_options(sys.argv[1:]), "target")
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(run_task)()
    except SystemExit as end:
        if _is_refused_by_hydra(end):
            _exit_code = EXIT_REFUSED
        elif SweepFolder.path is None:
            raise
        else:
            _exit_code = end.code if isinstance(end.code, int) else EXIT_REFUSED
    except JobFailed:  # Hydra lets it through under HYDRA_FULL_ERROR=1
        _exit_code = EXIT_FAILED_CELLS
    except KeyboardInterrupt:
        if SweepFolder.path is None:
            raise
        # A launcher waits for jobs in other processes.
        print_error("stopped; rerun the same command to continue")
        _exit_code = stop_code()
    if SweepFolder.path is not None:
        _exit_code = max(_exit_code, _end_sweep())
    return _exit_code


def _is_refused_by_hydra(end: SystemExit) -> bool:
    """Whether Hydra could not compose what was typed. It ends with 1 then, as for any error."""
    error = end.__context__
    return isinstance(error, HydraException | OmegaConfBaseException) and not isinstance(
        error, JobFailed
    )


def run_task(composed: DictConfig) -> float | None:
    """Carry out a launch, or one job of a sweep. Hydra calls it, also in other processes.

    Returns the objective of the launch, which a sweeper that searches asks for.
    """
    global _exit_code
    from runners import sweep

    if not sweep.is_job():
        result, _ = _carry_out(composed)
        _exit_code = result.exit_code
        return result.objective
    sweep.configure_job()
    try:
        result, error = _carry_out(composed)
    except KeyboardInterrupt:
        sweep.write_job_report(exit_code=stop_code(), error="stopped", analyses=())
        sys.exit(stop_code())
    except Exception as fault:  # every job must leave a report
        sweep.write_job_report(
            exit_code=EXIT_REFUSED, error=f"{type(fault).__name__}: {fault}", analyses=()
        )
        raise
    sweep.write_job_report(
        exit_code=result.exit_code,
        error=error,
        analyses=result.analyses,
        objective=result.objective,
    )
    if result.exit_code != 0:
        sweep.fail_job(result.exit_code)
    return result.objective


def _carry_out(composed: DictConfig) -> "tuple[Result, str | None]":
    """The result, and the reason if the launch was refused."""
    from analysis.errors import AnalysisError
    from hsexp.config.launch import parse_launch
    from hsexp.ledger import LedgerError
    from runners import sweep
    from runners.launch import Result, run_launch
    from runners.pool import WorkerStartError
    from runners.vllm.faults import EngineRemains

    try:
        follow_hydra(HydraConfig.get().runtime)
        overrides = list(HydraConfig.get().overrides.task)
        refuse_several_options(overrides)
        launch = parse_launch(composed)
        if launch.workers is None and sweep.is_job() and sweep.shares_machine():
            launch = launch.model_copy(update={"workers": 1})
        return run_launch(launch, overrides, make_console(), analyse=not sweep.is_job()), None
    except (ConfigError, LedgerError, AnalysisError, WorkerStartError, EngineRemains) as error:
        # a user can correct these: they are printed without a traceback
        return Result(exit_code=refused(error)), str(error)
    except OSError as error:
        fault = file_fault(error)
        if fault is None:
            raise
        return Result(exit_code=refused(fault)), fault


def _end_sweep() -> int:
    from analysis.errors import AnalysisError
    from runners import sweep

    assert SweepFolder.path is not None
    try:
        return sweep.end_sweep(SweepFolder.path, make_console(), analyse=_exit_code != stop_code())
    except AnalysisError as error:
        return refused(error)
