"""A sweep, `python -m hsexp -m ...`: every job writes a report, and the sweep ends by reading them.

The launcher decides where a job runs. All jobs write into ledgers, which are keyed by content and
can be shared by any processes. A job writes its report, `job-<number>.json`, into the sweep's
folder. When all jobs have ended, the process that was called reads the reports, prints a table of
them, and makes tables and figures once per ledger.
"""

import multiprocessing
import os
from collections.abc import Iterable
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hsexp.config.base import Config
from runners.launch import Analysis
from runners.sweep_folder import JobFailed

_SIDE_BY_SIDE = ("joblib", "ray", "submitit_local")
"""Launchers that fill the cores of one machine with jobs."""


class JobReport(Config):
    """Result of one job."""

    job: int
    overrides: tuple[str, ...]
    exit_code: int
    error: str | None
    """Why the job was refused; failed cells have their reasons in the ledger."""
    analyses: tuple[Analysis, ...] = ()
    """Tables and figures to make at the end of the sweep."""
    objective: float | None = None
    """What the job returned to the sweeper."""


def is_job() -> bool:
    """Whether the current task is a job of a sweep."""
    return bool(HydraConfig.get().mode == RunMode.MULTIRUN)


def shares_machine() -> bool:
    """Whether other jobs of the sweep run on this machine at the same time."""
    return HydraConfig.get().runtime.choices["hydra/launcher"] in _SIDE_BY_SIDE


def configure_job() -> None:
    """Give the process of a job the folder and the start method of the process that was called."""
    os.chdir(HydraConfig.get().runtime.cwd)  # so that relative paths mean the same
    if multiprocessing.get_start_method() not in multiprocessing.get_all_start_methods():
        # joblib's processes have a start method of their own that the standard library lacks.
        multiprocessing.set_start_method("spawn", force=True)


def write_job_report(
    *,
    exit_code: int,
    error: str | None,
    analyses: tuple[Analysis, ...],
    objective: float | None = None,
) -> None:
    """Write the report of the current job."""
    hydra = HydraConfig.get()
    report = JobReport(
        job=hydra.job.num,
        overrides=tuple(hydra.overrides.task),
        exit_code=exit_code,
        error=error,
        analyses=analyses,
        objective=objective,
    )
    path = Path(hydra.sweep.dir) / f"job-{report.job}.json"
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(report.model_dump_json(indent=1), encoding="utf-8")
    unfinished.replace(path)


def fail_job(exit_code: int) -> None:
    """Raise an error that Hydra carries out of the job's process. A sweep in batches continues
    instead: Hydra would stop it after the first failed batch, and the reports have the exit code.
    """
    if HydraConfig.get().sweeper.get("max_batch_size") is None:
        raise JobFailed(f"job {HydraConfig.get().job.num} of the sweep ended with {exit_code}")


def end_sweep(folder: Path, console: Console, *, analyse: bool) -> int:
    """Print the jobs' results, make their tables and figures, and return the worst exit code.

    Raises:
        AnalysisError: tables or figures cannot be made.
    """
    reports = sorted(
        (
            JobReport.model_validate_json(path.read_text(encoding="utf-8"))
            for path in folder.glob("job-*.json")
        ),
        key=lambda report: report.job,
    )
    if not reports:
        return 0
    console.print(_table(reports))
    console.print(f"sweep: {folder}")
    if analyse:
        for analysis in merged(analysis for report in reports for analysis in report.analyses):
            analysis.make(console)
    return max(report.exit_code for report in reports)


def merged(analyses: Iterable[Analysis]) -> list[Analysis]:
    """One analysis per ledger: the cells of all jobs, and their seeds if every job names them."""
    by_ledger: dict[tuple[str, Path], Analysis] = {}
    for analysis in analyses:
        key = (analysis.campaign, analysis.ledger)
        before = by_ledger.get(key, analysis)
        seeds = None
        if before.seeds is not None and analysis.seeds is not None:
            seeds = tuple(sorted({*before.seeds, *analysis.seeds}))
        cells = before.cells | analysis.cells
        by_ledger[key] = analysis.model_copy(update={"seeds": seeds, "cells": cells})
    return list(by_ledger.values())


def _table(reports: list[JobReport]) -> Table:
    """One line per job: the overrides in which it differs from the others, and its outcome."""
    shared = set.intersection(*(set(report.overrides) for report in reports))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    searches = any(report.objective is not None for report in reports)
    for heading in ("job", "overrides", "outcome", *["objective"] * searches):
        table.add_column(heading)
    for report in reports:
        own = [item for item in report.overrides if len(reports) == 1 or item not in shared]
        found = "" if report.objective is None else f"{report.objective:,.6g}"
        cells: list[str | Text] = [str(report.job), Text(" ".join(own)), Text(_outcome(report))]
        table.add_row(*cells, *[found] * searches)
    return table


def _outcome(report: JobReport) -> str:
    if report.error is not None:
        return f"error: {report.error}"
    return "complete" if report.exit_code == 0 else "has failed cells"
