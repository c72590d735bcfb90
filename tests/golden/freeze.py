"""python tests/golden/freeze.py [plans] [tables] [runs]: writes the golden values anew.

They are what the code gives now: plans.json, tables.json, runs.json and tables/*.csv, or those that
are named. Each value that differs from the one before is printed. Plans, tables and simulated runs
must not change by accident; freeze them anew only when a change is meant, and say so in its commit.
The contracts of plans (`contract`, `contract_fields`, `plan`) stand apart from their cells.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import frozen_plans
import frozen_runs
import frozen_tables
from frozen_form import FOLDER, as_stored, differences, read, write


def freeze_plans() -> None:
    entries = {
        name: frozen_plans.frozen_plans(overrides)
        for name, overrides in frozen_plans.launches().items()
    }
    _replace(frozen_plans.FILE, entries)


def freeze_tables() -> None:
    entries: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for freezer in (
            frozen_tables.paper(),
            frozen_tables.short_runs(Path(folder) / "short"),
            frozen_tables.measured(Path(folder) / "beside"),
        ):
            entries |= freezer.entries
            for name, csv in freezer.kept.items():
                path = frozen_tables.kept_path(name)
                path.parent.mkdir(exist_ok=True)
                path.write_text(csv, encoding="utf-8")
    _replace(frozen_tables.FILE, entries)


def freeze_runs() -> None:
    with tempfile.TemporaryDirectory() as folder:
        _replace(frozen_runs.FILE, frozen_runs.frozen_runs(Path(folder)))


def _replace(name: str, entries: dict[str, Any]) -> None:
    if (FOLDER / name).exists():
        for line in differences(read(name), as_stored(entries)):
            print(f"{name}: {line}")  # noqa: T201 - its output is its result
    write(name, entries)


FREEZE: dict[str, Callable[[], None]] = {
    "plans": freeze_plans,
    "tables": freeze_tables,
    "runs": freeze_runs,
}


if __name__ == "__main__":
    unknown = sorted(set(sys.argv[1:]) - FREEZE.keys())
    if unknown:
        sys.exit(f"error: {', '.join(unknown)} is unknown; choose from {', '.join(FREEZE)}")
    for name in sys.argv[1:] or FREEZE:
        FREEZE[name]()
