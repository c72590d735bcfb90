"""python -m hsexp.compiling [--again] [--require]

Compiles the core (`hsexp.core`) with mypyc, in a minute: `make core`. Where the compiled core
fits the sources there is nothing to do. Where it cannot be made, a line says why, and the pure core
runs; with --require that is an error.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from hsexp.console import make_console
from hsexp.core import CORE, LIBRARY, MODULES, Core
from hsexp.ending import end_well

EXIT_NOT_COMPILED = 1

_SETUP = """\
from mypyc.build import mypycify
from setuptools import setup

setup(
    name="core",
    packages=[],
    ext_modules=mypycify({arguments!r}, opt_level="3", debug_level="0", group_name={group!r}),
)
"""

_MYPY = """\
[mypy]
follow_imports = silent
ignore_missing_imports = True
"""

_LAST_LINES = 15
"""Of a compiler that fails."""


class CannotCompileError(RuntimeError):
    """This machine cannot compile the core."""


def main() -> int:
    """Run the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true", help="also where it fits the sources")
    parser.add_argument("--require", action="store_true", help="end with 1 if it is left out")
    arguments = parser.parse_args()
    console = make_console()
    if not arguments.again and CORE.misfit() is None:
        console.print("core: compiled already")
        return 0
    start = time.monotonic()
    try:
        compile_core(CORE)
    except CannotCompileError as error:
        console.print(f"core: not compiled, the pure one runs: {error}", markup=False)
        return EXIT_NOT_COMPILED if arguments.require else 0
    console.print(f"core: compiled in {time.monotonic() - start:.0f} s")
    return 0


def compile_core(core: Core) -> None:
    """Compile the sources into the core's folder; a process that runs keeps what it has loaded.

    Raises:
        CannotCompileError: something is missing, or a compiler fails.
    """
    _require_tools()
    with TemporaryDirectory(prefix="hsexp-core-") as folder:
        work = Path(folder)
        copy = _copied(core, work)
        digests = copy.digests()  # of what is compiled, whatever happens to the sources meanwhile
        _compile(work)
        manifest = {
            "python": platform.python_version(),
            "mypy": version("mypy"),
            "sources": digests,
        }
        made = work / "made"
        (made / core.manifest.name).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        _put_in_place(made, core.folder)


def _require_tools() -> None:
    for package in ("mypyc", "setuptools"):
        if find_spec(package) is None:
            raise CannotCompileError(f"{package} is not installed (make setup)")
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    if shutil.which(compiler.split()[0]) is None:
        raise CannotCompileError(f"there is no C compiler ({compiler.split()[0]})")
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if not header.is_file():
        raise CannotCompileError(f"{header} is missing: Python's headers are not installed")


def _copied(core: Core, work: Path) -> Core:
    """Copy the sources, so that no compiler leaves anything in the checkout."""
    package = work / "hsexp"
    only_sources = shutil.ignore_patterns("_compiled", "__pycache__")
    shutil.copytree(core.root / "hsexp", package, ignore=only_sources)
    # It imports what the core does not need, and mypy would read all of it.
    (package / "__init__.py").write_text("", encoding="utf-8")
    return Core(package, modules=core.modules)


def _compile(work: Path) -> None:
    files = [str(Path(*module.split(".")).with_suffix(".py")) for module in MODULES]
    (work / "mypy.ini").write_text(_MYPY, encoding="utf-8")
    setup = _SETUP.format(
        arguments=["--config-file=mypy.ini", *files], group=LIBRARY.removesuffix("__mypyc")
    )
    (work / "setup.py").write_text(setup, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--build-lib", "made", "--build-temp", "objects"],
        cwd=work,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = "\n".join(done.stdout.splitlines()[-_LAST_LINES:])
        raise CannotCompileError(f"mypyc or the C compiler failed:\n{last}")


def _put_in_place(made: Path, folder: Path) -> None:
    """Replace a folder as a whole."""
    fresh = folder.with_name(f"{folder.name}-{os.getpid()}-new")
    old = folder.with_name(f"{folder.name}-{os.getpid()}-old")
    shutil.copytree(made, fresh)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(end_well(main))
