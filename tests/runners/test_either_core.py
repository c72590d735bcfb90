"""A ledger is continued with either core, and each row names its own."""

from pathlib import Path

import commands
import pytest

import hsexp
from hsexp.core import CORE

SMALL = (
    "campaign=q6",
    "budget=b63",
    "admission.headroom=0",
    "seeds=[7]",
    "workload.num_requests=4",
    "stage=run",
)


@pytest.mark.skipif(CORE.misfit() is not None, reason="no core is compiled: make core")
def test_runs_of_the_pure_core_are_accepted_beside_those_of_the_compiled_one(
    tmp_path: Path,
) -> None:
    launched(tmp_path, *SMALL, "organization=s2", core="pure")
    assert ", 1 already accepted, " in launched(tmp_path, *SMALL, core="compiled")
    runs = hsexp.load(tmp_path / "ledgers" / "q6" / "sim")
    assert runs.groupby("organization")["core_version"].first().to_dict() == {
        "d0": "compiled",
        "s2": "pure",
    }


def launched(folder: Path, *arguments: str, core: str) -> str:
    done = commands.run(*arguments, cwd=folder, env=commands.environment(HSEXP_CORE=core))
    assert done.returncode == 0, done.stderr
    assert f", core {core}" in done.stdout
    return done.stdout
