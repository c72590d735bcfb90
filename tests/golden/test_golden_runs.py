"""Every simulated run has the metrics, requests and steps that were frozen (`freeze.py`)."""

from pathlib import Path

from frozen_form import read, require_equal
from frozen_runs import FILE, frozen_runs

GOLDEN = read(FILE)


def test_simulated_runs_are_as_frozen(tmp_path: Path) -> None:
    require_equal("a simulated run", GOLDEN, frozen_runs(tmp_path))


def test_frozen_runs_preempt_and_differ_between_organizations() -> None:
    assert sum(run["preemptions"] > 0 for run in GOLDEN.values()) >= 10
    assert len({run["metrics"] for run in GOLDEN.values()}) > len(GOLDEN) / 2
