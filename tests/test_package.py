"""A wheel is the whole project: in an empty folder it gives the tables of the checkout."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import commands
import pytest
from commands import ROOT

PACKAGES = ("hsexp", "runners", "analysis", "figures", "conf")

MADE_HERE = ("__pycache__", "_compiled")
"""Folders that a checkout gets when it is used; no source."""

SMALL = ("campaign=q6", "seeds=[76400,76401]", "workload.num_requests=20")

GUARD = """
import sys

def refuse(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith({folders}):
        raise RuntimeError(f"{{arguments[0]}} is read, which is part of the checkout")

sys.addaudithook(refuse)
"""
"""A `sitecustomize`: whatever is read of the checkout ends the process that reads it."""


def pip(*arguments: str) -> None:
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", arguments[0], *quiet, *arguments[1:]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the wheel holds, and `bin/hsexp`."""
    folder = tmp_path_factory.mktemp("wheel")
    source, target = folder / "source", folder / "installed"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns(*MADE_HERE))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip("wheel", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    (wheel,) = folder.glob("*.whl")
    pip("install", "--target", str(target), str(wheel))
    return target


def run_installed(installed: Path, *arguments: str, cwd: Path) -> str:
    """The installed script, kept from the checkout. Returns what it printed."""
    guard = installed.with_name("guard")
    guard.mkdir(exist_ok=True)
    folders = tuple(f"{ROOT / name}{os.sep}" for name in PACKAGES)
    (guard / "sitecustomize.py").write_text(GUARD.format(folders=folders), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(installed / "bin" / "hsexp"), *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(guard), str(installed)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout[-2000:]
    return done.stdout


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*")}


def test_the_wheel_has_every_file_of_the_packages(installed: Path) -> None:
    lacking = [
        str(path.relative_to(ROOT))
        for name in PACKAGES
        for path in (ROOT / name).rglob("*")
        if path.is_file() and path.name != ".DS_Store" and not {*path.parts} & {*MADE_HERE}
        if not (installed / path.relative_to(ROOT)).is_file()
    ]
    assert not lacking


def test_an_installed_wheel_gives_the_tables_and_the_figure_of_the_checkout(
    installed: Path, tmp_path: Path
) -> None:
    theirs, ours = tmp_path / "installed", tmp_path / "checkout"
    theirs.mkdir()
    ours.mkdir()
    for name in PACKAGES:  # a user's own, which the command must not take for its own
        (theirs / name).mkdir()
        (theirs / name / "__init__.py").write_text("raise ImportError('the user\\'s')\n")
    printed = run_installed(installed, *SMALL, cwd=theirs)
    done = commands.run(*SMALL, cwd=ours)
    assert done.returncode == 0, done.stderr
    assert "60 run in" in printed
    analysis = Path("ledgers", "q6", "sim", "analysis")
    made = contents(theirs / analysis)
    assert {"B-7.csv", "B-8.tex", "q6-summary.md", "figure-6.svg"} <= made.keys()
    assert made == contents(ours / analysis)


def test_an_installed_wheel_derives_every_table_that_the_paper_allows(
    installed: Path, tmp_path: Path
) -> None:
    run_installed(installed, "analysis", "source=paper", f"out={tmp_path / 'a'}", cwd=tmp_path)
    out = f"out={tmp_path / 'b'}"
    done = commands.run("source=paper", out, cwd=tmp_path, module="analysis")
    assert done.returncode == 0, done.stderr
    made = contents(tmp_path / "a")
    assert len(made) > 60
    assert made == contents(tmp_path / "b")
