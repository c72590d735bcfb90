"""python tests/mutations/mutate.py [NAME ...]: does a test notice when the code is wrong?

Applies one mutation after the other to a copy of the checkout, runs the tests that should notice
it, and prints whether one of them failed:

    noticed     a test failed, or never came to its end
    SURVIVED    all of them passed: a test is missing
    STALE       the code or the tests have changed: the list needs an update
    skipped     its tests need vLLM, which is not installed

A name may have wildcards. The exit code is 1 if a mutation survived or is stale. The tests must
pass in the copy before anything is changed. `--list` names the mutations.
"""

import fnmatch
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from mutation_list import ROOT, Mutation, StaleMutationError, read_mutations

_LEFT_OUT = (".git", ".venv*", "build", "dist", "*.egg-info", ".*_cache", "__pycache__", "outputs")
_LONGEST_S = 600.0
"""A test that takes longer than this has no end."""

_PASSED, _FAILED = 0, 1
"""Exit codes of pytest; the others mean that the tests could not be run."""


def main(arguments: list[str]) -> int:
    chosen = _chosen(arguments, read_mutations())
    if "--list" in arguments:
        _print(*(mutation.name for mutation in chosen))
        return 0
    has_vllm = importlib.util.find_spec("vllm") is not None
    with tempfile.TemporaryDirectory(prefix="hsexp-mutations-") as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=True)
        possible = [mutation for mutation in chosen if has_vllm or not mutation.needs_vllm]
        tests = sorted({test for mutation in possible for test in mutation.tests})
        _print(f"{len(chosen)} mutations, {len(tests)} tests or files of tests")
        if tests and (code := _run(copy, tests, timeout_s=None)) != _PASSED:
            _print(f"the tests do not pass as they are (exit code {code} of pytest)")
            return 1
        verdicts: Counter[str] = Counter()
        for mutation in chosen:
            start = time.monotonic()
            verdict = _verdict(copy, mutation) if mutation in possible else "skipped"
            verdicts[verdict] += 1
            _print(f"{verdict:9}{time.monotonic() - start:6.1f} s  {mutation.name}")
    tried = verdicts.total() - verdicts["skipped"]
    _print(", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()))
    _print(f"{verdicts['noticed']} of {tried} noticed")
    return 0 if verdicts["noticed"] == tried else 1


def _chosen(arguments: Iterable[str], mutations: list[Mutation]) -> list[Mutation]:
    patterns = [argument for argument in arguments if not argument.startswith("--")] or ["*"]
    chosen = [
        mutation
        for mutation in mutations
        if any(fnmatch.fnmatch(mutation.name, pattern) for pattern in patterns)
    ]
    if not chosen:
        sys.exit(f"no mutation is called {' or '.join(patterns)}")
    return chosen


def _verdict(copy: Path, mutation: Mutation) -> str:
    path = copy / mutation.file
    try:
        source = path.read_text(encoding="utf-8")
        changed = mutation.applied(source)
    except (FileNotFoundError, StaleMutationError):
        return "STALE"
    _replace(path, changed)
    try:
        code = _run(copy, mutation.tests, timeout_s=_LONGEST_S)
    finally:
        _replace(path, source)
    return {_PASSED: "SURVIVED", _FAILED: "noticed", None: "noticed"}.get(code, "STALE")


def _replace(path: Path, source: str) -> None:
    """Write a module, and forget its bytecode: a change within a second may go unseen."""
    path.write_text(source, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def _run(copy: Path, tests: Iterable[str], *, timeout_s: float | None) -> int | None:
    """The exit code of pytest; None if it took longer."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    process = subprocess.Popen(
        [*command, "-m", "not slow and not gpu", *tests],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.wait()


def _print(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
