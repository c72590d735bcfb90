"""Every process that a test starts imports this checkout, whatever is installed; and no test finds
the search path of another."""

import logging
import os
from collections.abc import Iterator

import pytest
from commands import environment

from hsexp.config.catalog import CONF, follow

os.environ["PYTHONPATH"] = environment()["PYTHONPATH"]


@pytest.fixture(autouse=True)
def _search_path() -> Iterator[None]:
    yield
    follow([CONF])


@pytest.fixture
def loggers() -> Iterator[None]:
    """Hydra silences every logger that there is; afterwards they are as they were."""
    before = {
        logger: logger.disabled
        for logger in logging.root.manager.loggerDict.values()
        if isinstance(logger, logging.Logger)  # and no placeholder
    }
    yield
    for logger, disabled in before.items():
        logger.disabled = disabled
