"""The history of speeds: a commit that is slower shows, and only beside its equals."""

import sys
from typing import Any

import pytest
from commands import ROOT

sys.path.append(str(ROOT / "benchmarks"))

from history import previous, read, slower, yardstick


def row(**changes: Any) -> dict[str, Any]:
    plain = {
        "core": "pure",
        "cpu": "EPYC",
        "versions": {"python": "3.11.7"},
        "ratios": {"run s2": 2.0, "core s2": 1.0},
    }
    return plain | changes


def test_what_grew_beyond_the_limit_is_named_with_its_growth() -> None:
    now = row(ratios={"run s2": 2.5, "core s2": 1.04})
    assert slower(row(), now, percent=5.0) == ["run s2 +25 %"]
    assert slower(now, row(), percent=5.0) == []


def test_a_figure_that_the_earlier_row_lacks_is_not_compared() -> None:
    assert slower(row(ratios={}), row(), percent=5.0) == []


@pytest.mark.parametrize(
    "other", [{"core": "compiled"}, {"cpu": "Xeon"}, {"versions": {"python": "3.12.1"}}]
)
def test_rows_of_another_core_processor_or_python_are_no_measure(other: dict[str, Any]) -> None:
    history = [row(at=1), row(**other), row(at=2)]
    assert previous(history, 2) == row(at=1)
    assert previous(history, 1) is None


def test_the_yardstick_is_the_work_that_it_always_was() -> None:
    assert yardstick() == 66_591_177


def test_every_row_of_the_history_can_be_shown() -> None:
    rows = read()
    for place, each in enumerate(rows):
        assert each["ratios"] and each["runs_a_minute"] and each["yardstick_ms"] > 0
        previous(rows, place)
