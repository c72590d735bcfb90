"""Tests that take `organization` run once for each of the four."""

import pytest
from toy_memory import ORGANIZATIONS


@pytest.fixture(params=ORGANIZATIONS)
def organization(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name
