"""A sweep, `python -m hsexp -m ...`: its jobs leave accounts, and its end reads them.

Where a job runs is the launcher's business. All jobs write into ledgers, which are keyed by content
and shared by any processes. In the sweep's folder a job leaves its account, `job-<number>.json`;
the process that was called reads the accounts when the jobs have ended, says how each went, and
makes tables and figures, once a ledger.
"""

import multiprocessing
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hsexp.config.base import Config, ConfigError
from hsexp.config.overrides import refuse_empty_sweeps
from hsexp.config.searchpath import follow_hydra
from runners.launch import EXIT_REFUSED, Analysis, complain

_SIDE_BY_SIDE = ("joblib", "ray", "submitit_local")
"""Launchers whose jobs share a machine and fill its cores by themselves."""


class JobFailed(CompactHydraException):
    """A job of a sweep has not accepted all of its cells; Hydra then ends with an error."""


class SweepFolder(Callback):
    """Hydra's call at the start of a sweep: refuses one without jobs, else remembers the folder,
    clears it of older accounts, and looks options up where the jobs do."""

    path: ClassVar[Path | None] = None
    """Of the sweep that this process was called for; None without one."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        params = config.hydra.sweeper.get("params") or {}
        given = [f"{key}={value}" for key, value in params.items()]
        try:
            refuse_empty_sweeps(
                [*given, *config.hydra.overrides.task], GlobalHydra.instance().config_loader()
            )
        except ConfigError as error:
            complain(f"error: {error}")
            sys.exit(EXIT_REFUSED)  # Hydra makes a warning of any other error in a callback
        follow_hydra(config.hydra.runtime)
        SweepFolder.path = Path(config.hydra.sweep.dir)
        for old in SweepFolder.path.glob("job-*.json"):
            old.unlink()


class Account(Config):
    """How a job went."""

    job: int
    overrides: tuple[str, ...]
    exit_code: int
    error: str | None
    """Why the job was refused; failed cells have their reasons in the ledger."""
    analyses: tuple[Analysis, ...] = ()
    """What the job leaves to the end of the sweep."""


def is_job() -> bool:
    """Whether the task that runs now is one job of a sweep."""
    return bool(HydraConfig.get().mode == RunMode.MULTIRUN)


def has_company() -> bool:
    """Whether other jobs of the sweep run on this machine at the same time."""
    return HydraConfig.get().runtime.choices["hydra/launcher"] in _SIDE_BY_SIDE


def settle_in() -> None:
    """Make the process that a launcher chose like the one that was called."""
    os.chdir(HydraConfig.get().runtime.cwd)  # so that relative paths mean the same
    if multiprocessing.get_start_method() not in multiprocessing.get_all_start_methods():
        # joblib's processes start others by a method of their own, which those do not know.
        multiprocessing.set_start_method("spawn", force=True)


def leave_account(*, exit_code: int, error: str | None, analyses: tuple[Analysis, ...]) -> None:
    """Write the account of the job that runs now."""
    hydra = HydraConfig.get()
    account = Account(
        job=hydra.job.num,
        overrides=tuple(hydra.overrides.task),
        exit_code=exit_code,
        error=error,
        analyses=analyses,
    )
    path = Path(hydra.sweep.dir) / f"job-{account.job}.json"
    half = path.with_suffix(".tmp")
    half.write_text(account.model_dump_json(indent=1), encoding="utf-8")
    half.replace(path)


def fail_job(exit_code: int) -> None:
    """Tell Hydra, whose error outlives any process. A sweep cut into batches goes on instead: its
    first failed batch would be its last, and the accounts hold the exit code."""
    if HydraConfig.get().sweeper.get("max_batch_size") is None:
        raise JobFailed(f"job {HydraConfig.get().job.num} of the sweep ended with {exit_code}")


def end_sweep(folder: Path, console: Console, *, analyse: bool) -> int:
    """Say how the jobs went and make what they left to do. Returns the worst exit code of them.

    Raises:
        AnalysisError: tables or figures cannot be made.
    """
    accounts = sorted(
        (
            Account.model_validate_json(path.read_text(encoding="utf-8"))
            for path in folder.glob("job-*.json")
        ),
        key=lambda account: account.job,
    )
    if not accounts:
        return 0
    console.print(_table(accounts))
    console.print(f"sweep: {folder}")
    if analyse:
        for analysis in merged(analysis for account in accounts for analysis in account.analyses):
            analysis.make(console)
    return max(account.exit_code for account in accounts)


def merged(analyses: Iterable[Analysis]) -> list[Analysis]:
    """One for each ledger; over the seeds of all jobs, if each job had its own."""
    by_ledger: dict[tuple[str, Path], Analysis] = {}
    for analysis in analyses:
        key = (analysis.campaign, analysis.ledger)
        before = by_ledger.get(key, analysis)
        seeds = None
        if before.seeds is not None and analysis.seeds is not None:
            seeds = tuple(sorted({*before.seeds, *analysis.seeds}))
        by_ledger[key] = analysis.model_copy(update={"seeds": seeds})
    return list(by_ledger.values())


def _table(accounts: list[Account]) -> Table:
    """One line a job: what tells it from the others, and how it went."""
    shared = set.intersection(*(set(account.overrides) for account in accounts))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("job", "overrides", "outcome"):
        table.add_column(heading)
    for account in accounts:
        own = [item for item in account.overrides if len(accounts) == 1 or item not in shared]
        table.add_row(str(account.job), Text(" ".join(own)), Text(_outcome(account)))
    return table


def _outcome(account: Account) -> str:
    if account.error is not None:
        return f"error: {account.error}"
    return "complete" if account.exit_code == 0 else "has failed cells"
