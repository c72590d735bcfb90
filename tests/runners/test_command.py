"""The command as a shell sees it."""

import os
import re
from pathlib import Path

import commands
import pytest

from hsexp.shadows import PACKAGES
from hsexp.verbs import VERBS


def test_a_reader_who_leaves_early_sees_no_traceback(tmp_path: Path) -> None:
    unbuffered = commands.environment(PYTHONUNBUFFERED="1")
    command = commands.start("--help", cwd=tmp_path, env=unbuffered)
    assert command.stdout is not None and command.stderr is not None
    command.stdout.close()  # before a single line
    assert command.stderr.read() == ""
    assert command.wait() == 1


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_of_the_users_in_the_working_directory_is_refused_by_name(
    package: str, tmp_path: Path
) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    done = commands.run("campaign=q6", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: {tmp_path / package} is in the way: Python imports it in place of hsexp's own "
        f"package {package}. Type `hsexp` instead of `python -m hsexp`, or change to another "
        "folder\n"
    )


@pytest.mark.parametrize(
    ("module", "script"), [("figures", "hsexp figures"), ("runners.replay", "hsexp replay")]
)
def test_a_package_that_another_entry_point_imports_is_refused_by_name_too(
    module: str, script: str, tmp_path: Path
) -> None:
    (tmp_path / "analysis").mkdir()
    (tmp_path / "analysis" / "__init__.py").touch()
    done = commands.run("--help", cwd=tmp_path, module=module)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: {tmp_path / 'analysis'} is in the way: Python imports it in place of hsexp's own "
        f"package analysis. Type `{script}` instead of `python -m {module}`, or change to another "
        "folder\n"
    )


def test_a_module_of_the_users_elsewhere_on_the_path_is_refused_with_another_way_out(
    tmp_path: Path,
) -> None:
    (tmp_path / "analysis.py").touch()
    env = commands.environment()
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), env["PYTHONPATH"]])
    done = commands.run("campaign=q6", cwd=commands.ROOT / "docs", env=env)
    assert done.returncode == 2
    assert f"{tmp_path / 'analysis.py'} is in the way" in done.stderr
    assert f"Take {tmp_path} out of Python's search path" in done.stderr


def test_folders_of_the_users_that_are_no_packages_are_in_nobodys_way(tmp_path: Path) -> None:
    for name in ("analysis", "figures", "runners", "conf"):
        (tmp_path / name).mkdir()
    done = commands.run("campaign=q6", "stage=plan", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("word", VERBS)
def test_a_first_word_stands_for_the_module_that_python_runs(word: str, tmp_path: Path) -> None:
    module, arguments = VERBS[word].module, ("--help", "nonsense")
    done = commands.run(word, *arguments, cwd=tmp_path)
    asked = commands.run(*arguments, cwd=tmp_path, module=module)
    assert (done.returncode, done.stdout, done.stderr) == (
        asked.returncode,
        asked.stdout,
        asked.stderr,
    )


def test_tests_start_the_command_of_this_checkout_only() -> None:
    started = re.compile(r"""["']-m["'],\s*["'](hsexp|analysis|figures|runners)["']""")
    elsewhere = [
        str(path.relative_to(commands.ROOT))
        for path in (commands.ROOT / "tests").rglob("*.py")
        if path.parent.name != "gpu"  # programs, which a bundle holds without `commands`
        and started.search(path.read_text(encoding="utf-8"))
    ]
    assert not elsewhere
