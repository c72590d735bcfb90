"""A ledger is continued with either core: rows name theirs, and nothing else differs."""

from pathlib import Path

import commands
import pytest

import hsexp
from hsexp.core import CORE

SMALL = ("campaign=q6", "budget=b63", "seeds=[7]", "workload.num_requests=20", "stage=run")


@pytest.mark.skipif(CORE.misfit() is not None, reason="no core is compiled: make core")
def test_runs_of_the_pure_core_are_accepted_beside_those_of_the_compiled_one(
    tmp_path: Path,
) -> None:
    for core in ("pure", "compiled"):
        printed = launched(tmp_path, *SMALL, "organization=s2", core=core)
        assert f", core {core}" in printed
    assert "already accepted, 0 to run" in printed
    launched(tmp_path, *SMALL, core="compiled")
    launched(tmp_path, *SMALL, "ledger=pure", core="pure")
    mixed = hsexp.load(tmp_path / "ledgers" / "q6" / "sim").set_index("cell_id").sort_index()
    pure = hsexp.load(tmp_path / "pure").set_index("cell_id").sort_index()
    assert mixed["core_version"].value_counts().index.to_list() == ["compiled", "pure"]
    assert set(pure["core_version"]) == {"pure"}
    ours = ["attempt_id", "core_version", "wall_s", "started_at", "launch_id"]
    left, right = (each.drop(columns=ours, errors="ignore") for each in (mixed, pure))
    assert left.equals(right[left.columns])


def launched(folder: Path, *arguments: str, core: str) -> str:
    env = commands.environment(HSEXP_CORE=core)
    done = commands.run(*arguments, cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout
