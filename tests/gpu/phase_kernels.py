"""python tests/gpu/phase_kernels.py [--tiny] FACTS.json

Phase 1: the checks of the kernels, as pytest runs them. `--tiny` takes those of large pools alone:
tests/engine/test_kernels.py has the others in Triton's interpreter.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import said

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CHECKS = ("test_kernel_checks.py", "test_large_pools.py")


class Counted:
    """A pytest plugin: what came of each check."""

    def __init__(self) -> None:
        self.passed = 0
        self.skipped: dict[str, str] = {}
        self.failed: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed[report.nodeid] = str(report.longrepr)[-1500:]
        elif report.skipped:
            self.skipped[report.nodeid] = str(report.longrepr[2])
        elif report.when == "call":
            self.passed += 1

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed[report.nodeid] = str(report.longrepr)[-1500:]


def main(arguments: Sequence[str]) -> int:
    given = said.arguments(__doc__, arguments)
    try:
        import pytest
    except ImportError:
        return said.skip(given.facts, "pytest is not installed")
    counted = Counted()
    checks = CHECKS[1:] if given.tiny else CHECKS
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(ROOT)]
    files = [str(HERE / name) for name in checks]
    code = pytest.main([*options, "-c", str(ROOT / "pyproject.toml"), *files], plugins=[counted])
    facts = {
        "passed": counted.passed,
        "skipped": counted.skipped,
        "failed": counted.failed,
        "pytest": int(code),
    }
    if counted.failed or code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        first = next(iter(counted.failed), f"pytest ended with {code!r}")
        return said.end(given.facts, facts, faults=[f"{len(counted.failed)} failed, first {first}"])
    if counted.passed == 0:
        reason = next(iter(counted.skipped.values()), "no check was found: vLLM is not installed")
        return said.skip(given.facts, reason, facts)
    return said.end(given.facts, facts, faults=[])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
