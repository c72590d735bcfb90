"""A shell is told verbs, groups, options and fields, by the protocol that it uses itself."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import commands
import pytest

from hsexp.config.catalog import options
from hsexp.verbs import VERBS


def completed(line: str, shell: str, cwd: Path) -> list[str]:
    env = commands.environment(COMP_LINE=line, COMP_POINT=str(len(line)))
    done = commands.run("-sc", f"query={shell}", cwd=cwd, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines() if shell == "fish" else done.stdout.split()


def test_the_first_word_may_be_any_verb_group_or_field(tmp_path: Path) -> None:
    words = completed("hsexp ", "bash", tmp_path)
    assert set(VERBS) < set(words)
    assert {"campaign=", "organization=", "stage=", "admission."} < set(words)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize("program", ["hsexp", "python -m hsexp"])
def test_options_and_fields_of_options_are_completed_in_every_shell(
    program: str, shell: str, tmp_path: Path
) -> None:
    line = f"{program} campaign=q6 organization="
    assert completed(line, shell, tmp_path) == [
        f"organization={name}" for name in options("organization")
    ]
    assert completed(f"{program} campaign=q6 admission.c", shell, tmp_path) == ["admission.cap="]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("hsexp stage=", ["stage=plan", "stage=status", "stage=run", "stage=all"]),
        ("hsexp campaign=q6 record_steps=t", ["record_steps=true"]),
        ("hsexp pa", ["pack"]),
        ("hsexp pack ove", ["overwrite="]),
        ("hsexp pack campaign=q10", ["campaign=q10", "campaign=q10_tuning"]),
        ("hsexp analysis comp", ["compare="]),
        ("hsexp verify ./arch", ["./archive.tar"]),
        ("hsexp nonsense campaign=q", []),
        ("hsexp campaign=nothing organization=[", []),
    ],
)
def test_verbs_take_what_their_usage_names_and_nonsense_is_silent(
    line: str, words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "archive.tar").touch()
    assert completed(line, "bash", tmp_path) == words


@pytest.mark.parametrize("word", ["query=nushell", "install", "install=bash uninstall=bash"])
def test_another_shell_is_refused_by_name(word: str, tmp_path: Path) -> None:
    done = commands.run("-sc", *word.split(), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: -sc takes install=, uninstall= or query= with one of bash, fish, zsh\n"
    )


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_itself_completes_the_script_that_python_starts(tmp_path: Path) -> None:
    """`hsexp` is found on the path, as after an installation, and installs itself."""
    script = tmp_path / "bin" / "hsexp"
    script.parent.mkdir()
    script.write_text(
        f"#!{sys.executable}\nimport sys\nfrom hsexp.__main__ import script\nsys.exit(script())\n"
    )
    script.chmod(0o755)
    typed = "hsexp campaign=q6 admission.head"
    program = f"""
        eval "$(hsexp -sc install=bash)"
        complete -p hsexp
        COMP_LINE="{typed}" COMP_POINT={len(typed)} COMP_CWORD=2
        hydra_bash_completion
        echo "${{COMPREPLY[@]}}"
    """
    path = os.pathsep.join([str(script.parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", program],
        cwd=tmp_path,
        env=commands.environment(PATH=path),
        capture_output=True,
        text=True,
        check=True,
    )
    complete, reply = done.stdout.splitlines()
    assert "hydra_bash_completion hsexp" in complete
    assert reply == "admission.headroom="


def test_the_help_lists_every_verb_and_what_it_does(tmp_path: Path) -> None:
    done = commands.run("--help", cwd=tmp_path)
    assert done.returncode == 0
    for name, verb in VERBS.items():
        assert f"hsexp {name} " in done.stdout
        assert verb.about in done.stdout
