"""Every table has the numbers and the text that were frozen (`freeze.py`)."""

from pathlib import Path
from typing import Any

import pytest
from frozen_form import read, require_equal
from frozen_project import TABLE_NAMES
from frozen_tables import (
    FILE,
    KEPT,
    NOT_FROZEN,
    Freezer,
    few_short_runs,
    kept_path,
    measured,
    paper,
    short_runs,
)

GOLDEN = read(FILE)


def require_frozen(freezer: Freezer, golden: dict[str, Any]) -> None:
    """Raise AssertionError unless the tables are the golden ones."""
    for name, csv in freezer.kept.items():  # first, since these can be read
        assert csv == kept_path(name).read_text(encoding="utf-8"), f"{name} differs"
    assert golden
    require_equal("a table", golden, freezer.entries)


def of_source(source: str) -> dict[str, Any]:
    """The golden tables of a source."""
    return {name: entry for name, entry in GOLDEN.items() if f" {source}" in name}


def test_tables_from_published_values_are_as_frozen() -> None:
    require_frozen(paper(), of_source("from paper"))


def test_tables_of_few_short_simulated_runs_are_as_frozen(tmp_path: Path) -> None:
    found = few_short_runs(tmp_path)
    assert len(found.entries) >= 30
    require_frozen(found, {name: GOLDEN[name] for name in found.entries})


@pytest.mark.slow
def test_tables_of_all_short_simulated_runs_are_as_frozen(tmp_path: Path) -> None:
    require_frozen(short_runs(tmp_path), of_source("from runs"))


def test_tables_of_measured_runs_are_as_frozen(tmp_path: Path) -> None:
    require_frozen(measured(tmp_path), of_source("of measured"))


@pytest.mark.parametrize("name", sorted(set(TABLE_NAMES) - NOT_FROZEN.keys()))
def test_a_table_is_frozen_from_some_source(name: str) -> None:
    assert any(frozen.startswith(f"{name} ") for frozen in GOLDEN)


def test_tables_that_are_kept_whole_are_the_frozen_ones() -> None:
    assert {kept_path(name) for name in KEPT} == set(kept_path(KEPT[0]).parent.iterdir())
    assert set(KEPT) <= set(GOLDEN)
