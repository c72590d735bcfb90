"""Tests that take `organization` run once for each of them; those that use `eviction` once for each
order of eviction."""

import pytest
import toy_memory
from toy_memory import EVICTIONS, ORGANIZATIONS


@pytest.fixture(params=ORGANIZATIONS)
def organization(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=EVICTIONS)
def eviction(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The order of every memory that names none."""
    name: str = request.param
    monkeypatch.setattr(toy_memory, "standing_eviction", name)
    return name
