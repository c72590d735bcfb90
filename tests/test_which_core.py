"""Which core runs: the compiled one as a whole where it fits the sources, and never a stale one."""

import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from commands import ROOT, environment

from hsexp.core import CORE, MODULES, Core, CoreError

PACKAGE = ROOT / "hsexp"


def core_of(folder: Path, *, choice: str = "auto") -> Core:
    """A core of two modules below a folder, compiled as far as the manifest tells."""
    package = folder / "hsexp"
    package.mkdir()
    for name in ("one", "two"):
        (package / f"{name}.py").write_text(f"NAME = {name!r}\n", encoding="utf-8")
    modules = ("hsexp.one", "hsexp.two")
    core = Core(package, choice=choice, modules=modules, library="none_like_it__mypyc")
    core.folder.mkdir(parents=True)
    core.manifest.write_text(json.dumps({"sources": core.digests()}), encoding="utf-8")
    return core


def run(*arguments: str, cwd: Path = ROOT, **changes: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment(**changes),
        capture_output=True,
        text=True,
        check=False,
    )


# -- does it fit? ----------------------------------------------------------------------------------


def test_a_core_fits_the_sources_that_it_was_compiled_from(tmp_path: Path) -> None:
    assert core_of(tmp_path).misfit() is None


def test_a_changed_source_runs_as_it_is_now(tmp_path: Path) -> None:
    core = core_of(tmp_path)
    core.source("hsexp.two").write_text("NAME = 'other'\n", encoding="utf-8")
    assert core.misfit() == "hsexp.two has changed since it was compiled"
    assert core.name == "pure"
    assert core.find_spec("hsexp.one") is None  # all of them or none


def test_a_core_of_other_modules_does_not_fit(tmp_path: Path) -> None:
    core = core_of(tmp_path)
    core.manifest.write_text('{"sources": {}}', encoding="utf-8")
    assert core.misfit() == "hsexp.one has changed since it was compiled"


def test_a_missing_source_or_an_unreadable_manifest_is_a_misfit(tmp_path: Path) -> None:
    core = core_of(tmp_path)
    core.source("hsexp.one").unlink()
    assert str(core.misfit()).endswith("one.py is missing")
    for text in ("", "{}", "{"):
        core.manifest.write_text(text, encoding="utf-8")
        assert core.misfit() == f"{core.manifest} cannot be read"
    core.manifest.unlink()
    assert str(core.misfit()).startswith("there is no compiled core for ")


def test_a_library_that_cannot_be_loaded_leaves_the_pure_core(tmp_path: Path) -> None:
    core = core_of(tmp_path)
    core.compiled("none_like_it__mypyc").write_bytes(b"no library")
    assert str(core.fault).startswith("the compiled core cannot be loaded: ")
    assert core.find_spec("hsexp.one") is None
    assert "none_like_it__mypyc" not in sys.modules


# -- the choice ------------------------------------------------------------------------------------


def test_pure_is_chosen_without_a_look_at_the_compiled_one(tmp_path: Path) -> None:
    core = core_of(tmp_path, choice="pure")
    assert (core.name, core.fault) == ("pure", "HSEXP_CORE=pure")


def test_compiled_is_an_error_where_it_does_not_fit(tmp_path: Path) -> None:
    core = core_of(tmp_path, choice="compiled")
    core.manifest.unlink()
    with pytest.raises(CoreError, match=r"^HSEXP_CORE=compiled: there is no .*; `make core`"):
        core.find_spec("hsexp.one")


def test_an_unknown_choice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CoreError, match="HSEXP_CORE must be auto, pure, compiled, got 'fast'"):
        _ = core_of(tmp_path, choice="fast").name


def test_the_line_of_the_version_names_the_core_and_why_it_is_the_pure_one() -> None:
    done = run("-m", "hsexp.version", HSEXP_CORE="pure")
    assert done.stdout.endswith(", core pure (HSEXP_CORE=pure)\n")
    assert done.returncode == 0


def test_a_command_without_the_core_that_is_asked_for_ends_in_one_line(tmp_path: Path) -> None:
    shutil.copytree(
        PACKAGE, tmp_path / "hsexp", ignore=shutil.ignore_patterns("_compiled", "__pycache__")
    )
    done = run("-m", "hsexp.version", cwd=tmp_path, HSEXP_CORE="compiled", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith("error: HSEXP_CORE=compiled: there is no compiled core for ")
    assert done.stderr.count("\n") == 1


def test_nothing_is_read_before_the_core_is_imported() -> None:
    program = "import hsexp, hsexp.core; print('fault' in vars(hsexp.core.CORE))"
    assert run("-c", program).stdout == "False\n"


# -- the core of this process ----------------------------------------------------------------------


def test_every_module_of_the_core_is_of_the_core_that_runs() -> None:
    files = {str(import_module(module).__file__) for module in MODULES}
    source = {file for file in files if file.endswith(".py")}
    assert source == (files if CORE.name == "pure" else set())


def test_a_module_of_the_core_hides_nothing_from_the_compiler() -> None:
    """mypyc believes the types. What mypy is told to ignore it compiles to something wrong."""
    assert [name for name in MODULES if "type: ignore" in CORE.source(name).read_text()] == []


@pytest.mark.skipif(not CORE.manifest.exists(), reason="no core is compiled: make core")
def test_the_compiled_core_is_that_of_the_sources() -> None:
    assert os.environ.get("HSEXP_CORE") == "pure" or CORE.fault is None
