"""Every process that a test starts imports this checkout, whatever is installed; and no test finds
the search path of another."""

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
