"""Runs the command in this process, in an empty folder of its own."""

import sys
from pathlib import Path

import pytest
from launches import Command

from runners.command import main


@pytest.fixture
def command(
    loggers: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Command:
    """`python -m hsexp ARGUMENTS` with tmp_path as working directory."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["hsexp", *arguments])
        try:
            code = main()
        except SystemExit as end:
            assert isinstance(end.code, int)
            code = end.code
        return code, "".join(capfd.readouterr())

    return run


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    """A small trace: three requests."""
    path = tmp_path / "lengths.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0.0,900,4\n0.5,40,3\n0.9,2000,5\n")
    return path
