"""Refuses to run where Python imports something else under the name of one of our packages."""

import sys
from collections.abc import Collection
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from hsexp.config.base import ConfigError
from hsexp.ending import refused

ROOT = Path(__file__).parents[1].resolve()
"""Where our packages are installed, side by side."""

PACKAGES = ("analysis", "figures", "runners")
"""Those that have plain names, beside `hsexp` itself."""


def guard(*packages: str) -> None:
    """Refuse shadows at the head of a module that Python starts before `hsexp.__main__` can.

    Raises:
        ConfigError: a package is shadowed, and Python did not start the module with `-m`.
    """
    try:
        refuse_shadows(packages)
    except ConfigError as error:
        if _started() is None:
            raise
        sys.exit(refused(error))


def refuse_shadows(packages: Collection[str] = PACKAGES) -> None:
    """Check where each package would be imported from; imports none.

    Raises:
        ConfigError: names the folder or file that is in the way, and what to do.
    """
    for package in packages:
        found = _place(find_spec(package))
        if found is not None and found != ROOT / package:
            raise ConfigError(
                f"{found} is in the way: Python imports it in place of hsexp's own package "
                f"{package}. {_way_out(found)}"
            )


def _place(spec: ModuleSpec | None) -> Path | None:
    """Folder of a package, or file of a module; None where there is nothing to import."""
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return None if spec.origin is None else Path(spec.origin).resolve()


def _way_out(found: Path) -> str:
    module = _started()
    if found.parent == Path.cwd() and module is not None:
        script = "hsexp" if module == "hsexp" else f"hsexp {module.rpartition('.')[2]}"
        return f"Type `{script}` instead of `python -m {module}`, or change to another folder"
    return f"Take {found.parent} out of Python's search path (PYTHONPATH), or rename it"


def _started() -> str | None:
    """The module of ours that Python was started with: `python -m MODULE`."""
    spec = sys.modules["__main__"].__spec__
    if spec is not None:
        module = spec.name.removesuffix(".__main__")
    elif sys.argv[0] == "-m" and "-m" in sys.orig_argv:  # it is still looking for the module
        module = sys.orig_argv[sys.orig_argv.index("-m") + 1]
    else:
        return None
    return module if module.partition(".")[0] in ("hsexp", *PACKAGES) else None
