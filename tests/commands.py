"""Our commands in processes of their own: those of this checkout, whatever is installed."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def environment(*folders: Path, **changes: str) -> dict[str, str]:
    """Variables under which Python imports from this checkout.

    Args:
        folders: more of them, looked into after the checkout.
        changes: further variables.
    """
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = dict.fromkeys([str(ROOT), *map(str, folders), *filter(None, inherited)])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), **changes}


def start(
    *arguments: str, cwd: Path, module: str = "hsexp", env: dict[str, str] | None = None, **how: Any
) -> "subprocess.Popen[str]":
    """`python -m MODULE ARGUMENTS` in a folder, with its output in pipes unless told otherwise."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env=environment() if env is None else env,
        text=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how},
    )


def run(
    *arguments: str, cwd: Path, module: str = "hsexp", env: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """The same, to its end."""
    process = start(*arguments, cwd=cwd, module=module, env=env)
    out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def wait_for_attempts(ledger: Path, count: int, *, within_s: float = 120.0) -> None:
    """Until the journal of a ledger that another process writes holds so many attempts."""
    journal, give_up = ledger / "journal.jsonl", time.monotonic() + within_s
    while not journal.exists() or journal.read_bytes().count(b'"kind":"attempt"') < count:
        assert time.monotonic() < give_up, f"{ledger} has no {count} attempts after {within_s:g} s"
        time.sleep(0.005)
