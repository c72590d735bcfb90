"""Wheels are pure; with HSEXP_WHEEL=compiled they hold the compiled core too (`make wheel`)."""

import os
import shutil
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

CORE = Path("hsexp", "_compiled", EXTENSION_SUFFIXES[0].split(".")[1])
"""As in `hsexp.core`, which a build cannot import."""


class BuildWithCore(build_py):
    """Adds the compiled core to the packages."""

    def run(self) -> None:
        super().run()
        if not (CORE / "manifest.json").is_file():
            sys.exit(f"{CORE} holds no compiled core: make core")
        shutil.copytree(CORE, Path(self.build_lib, CORE), dirs_exist_ok=True)


class ForOnePython(Distribution):
    """Distribution whose wheel names its Python and its platform."""

    def has_ext_modules(self) -> bool:
        return True


if os.environ.get("HSEXP_WHEEL") == "compiled":
    setup(cmdclass={"build_py": BuildWithCore}, distclass=ForOnePython)
else:
    setup()
