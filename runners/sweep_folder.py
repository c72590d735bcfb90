"""The folder of a sweep, and the error that ends one. It imports little: every command needs it."""

import sys
from pathlib import Path
from typing import Any, ClassVar

from hydra.core.global_hydra import GlobalHydra
from hydra.errors import CompactHydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from hsexp.config.base import ConfigError
from hsexp.config.overrides import refuse_empty_sweeps
from hsexp.config.searchpath import follow_hydra
from hsexp.ending import EXIT_REFUSED, file_fault, refused


class JobFailed(CompactHydraException):
    """A job of a sweep did not accept all of its cells; it makes Hydra end with an error."""


class SweepFolder(Callback):
    """Called by Hydra at the start of a sweep: refuses a sweep without jobs, else keeps its folder,
    removes older reports from it, and looks options up where the jobs do."""

    path: ClassVar[Path | None] = None
    """Folder of the sweep that this process was called for; None without a sweep."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        params = config.hydra.sweeper.get("params") or {}
        given = [f"{key}={value}" for key, value in params.items()]
        try:
            refuse_empty_sweeps(
                [*given, *config.hydra.overrides.task], GlobalHydra.instance().config_loader()
            )
            follow_hydra(config.hydra.runtime)
        except ConfigError as error:
            sys.exit(refused(error))  # Hydra turns any other error in a callback into a warning
        folder = Path(config.hydra.sweep.dir)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob("job-*.json"):
                old.unlink()
        except OSError as error:
            refused(
                f"hydra.sweep.dir, the folder of the jobs' reports, cannot be written: "
                f"{file_fault(error) or error}"
            )
            sys.exit(EXIT_REFUSED)
        SweepFolder.path = folder
