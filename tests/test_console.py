"""What a command prints into a pipe are whole lines, at any width."""

import ast
from pathlib import Path
from types import ModuleType

import pytest
from rich.table import Table

import analysis.__main__ as analysis_command
import figures.__main__ as figures_command
import hsexp.serve as serve_command
from hsexp.console import make_console

ROOT = Path(__file__).parents[1]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("colour", ["", "1"], ids=["plain", "forced colour"])
def test_a_pipe_gets_lines_and_tables_uncut(
    colour: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", colour)
    table = Table(box=None, show_header=False)
    for number in range(60):
        table.add_column(no_wrap=number % 2 == 0)
    table.add_row(*(f"cell-{number}" for number in range(60)))
    words = " ".join(f"word-{number}" for number in range(100))
    make_console().print(words, table, sep="\n")
    make_console(stderr=True).print(words)
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == err.rstrip("\n") == words
    assert [line.split() for line in out.splitlines()[1:]] == [
        [f"cell-{number}" for number in range(60)]
    ]


def test_every_command_takes_its_console_from_one_place() -> None:
    constructed = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("hsexp", "runners", "analysis", "figures", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "Console"
    ]
    assert [place.partition(":")[0] for place in constructed] == ["hsexp/console.py"], constructed


@pytest.mark.usefixtures("narrow")
def test_a_table_that_is_piped_has_its_caption_and_each_remark_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    analysis_command.main(["table=E-5", "source=paper", f"out={tmp_path}"])
    lines = capsys.readouterr().out.splitlines()
    written = (tmp_path / "E-5.md").read_text(encoding="utf-8").splitlines()
    assert lines[0].replace("E-5  ", "**E-5.** ") == written[0]
    remarks = [line.removeprefix("- ") for line in written if line.startswith("- ")]
    assert len(remarks[0]) > 40
    assert [line.strip() for line in lines if line.startswith("  ") and line.strip()] == [
        *remarks,
        f"written: {', '.join(str(tmp_path / f'E-5.{form}') for form in ('csv', 'tex', 'md'))}",
    ]


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("command", [analysis_command, figures_command, serve_command])
def test_the_help_is_piped_as_it_is_written(
    command: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    command.main([])
    assert command.__doc__ is not None
    assert capsys.readouterr().out == command.__doc__.strip() + "\n"
