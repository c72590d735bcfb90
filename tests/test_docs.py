"""The README's commands exist: make targets, campaigns, options and files."""

import re
import subprocess
from pathlib import Path

import pytest

from analysis.config import campaigns as analysed
from hsexp.config.catalog import CONF, options
from hsexp.trace.schema import COLUMNS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CODE = re.findall(r"`([^`\n]+)`", README) + re.findall(r"^    (\S.*)$", README, flags=re.M)
"""Inline code, and indented blocks."""

MAKE = sorted({target for code in CODE for target in re.findall(r"^make ([a-z-]+)", code)})
CHOICES = sorted(
    {
        (group, name)
        for code in CODE
        if code.startswith("python -m hsexp")
        for group, name in re.findall(r"(?<=\s)(\w+)=(\w+)", code)
        if (CONF / group).is_dir() and name not in ("NAME", "DIR")
    }
)
PATHS = sorted(
    {
        code
        for code in CODE
        if re.fullmatch(r"[\w./-]+/[\w./-]*", code) and not code.startswith(".venv/")
    }
)


def test_the_readme_names_commands_to_check() -> None:
    assert {"demo", "test"} <= set(MAKE)
    assert {("campaign", "q6"), ("campaign", "capacity"), ("budget", "b63")} <= set(CHOICES)
    assert "conf/device/a100_40gb.yaml" in PATHS


@pytest.mark.parametrize("target", MAKE)
def test_make_knows_a_target_of_the_readme(target: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("group", "name"), CHOICES)
def test_an_option_of_the_readme_exists(group: str, name: str) -> None:
    assert name in options(group)


def test_campaigns_that_the_readme_analyses_can_be_analysed() -> None:
    named = {
        name
        for code in CODE
        for name in re.findall(r"^python -m (?:analysis|figures) campaign=(\w+)", code)
    }
    assert named
    assert named <= set(analysed())


@pytest.mark.parametrize("path", [path for path in PATHS if "NAME" not in path])
def test_a_path_of_the_readme_exists(path: str) -> None:
    assert (ROOT / path).exists()


INSTALL = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("package", ["vllm", "torch", "llguidance"])
def test_the_install_page_names_the_version_that_the_lock_has(package: str) -> None:
    lock = (ROOT / "requirements" / "gpu.lock").read_text(encoding="utf-8")
    (version,) = re.findall(rf"^{package}==(\S+)$", lock, flags=re.M)
    named = re.findall(rf"\b{package}`? (\d+\.\d+\.\d+)", INSTALL, flags=re.I)
    assert set(named) == {version}


def test_every_lock_has_a_make_target_that_installs_it() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for lock in (ROOT / "requirements").glob("*.lock"):
        assert f"install --quiet -r {lock.relative_to(ROOT)}" in makefile or (
            f"install --quiet --no-deps -r {lock.relative_to(ROOT)}" in makefile
        )
        assert f"-o {lock.relative_to(ROOT)}" in makefile


FAULTS = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
NAMED_TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", FAULTS)))


def test_every_fault_names_a_test() -> None:
    kinds = [line for line in FAULTS.splitlines() if "#" in line and line.startswith("|")]
    assert len(kinds) > 30
    assert not [line for line in kinds if "::test_" not in line]


@pytest.mark.parametrize(("path", "name"), NAMED_TESTS)
def test_a_test_that_keeps_a_fault_out_exists(path: str, name: str) -> None:
    assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


TRACES = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8")


def test_docs_traces_has_every_kind_of_event_with_its_columns() -> None:
    found: dict[str, set[str]] = {}
    events = TRACES.partition("## Events")[2].partition("## ")[0]
    for line in re.findall(r"^\| (`\w+`.*) \|$", events, flags=re.M):
        kinds, _, columns = (re.findall(r"`([^`]*)`", cell) for cell in line.split(" | "))
        for kind in kinds:
            # In brackets: a kind of the row, and the columns that only this one has.
            own = columns[2:] if kind in columns[1:2] else []
            found[kind] = {*columns[0].split(), *own}
    assert found == {kind: set(columns) for kind, columns in COLUMNS.items()}
