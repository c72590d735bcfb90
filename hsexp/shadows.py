"""Refuses to run where Python imports something else under the name of one of our packages."""

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from hsexp.config.base import ConfigError

ROOT = Path(__file__).parents[1].resolve()
"""Where our packages are installed, side by side."""

PACKAGES = ("analysis", "figures", "runners")
"""Those that have plain names, beside `hsexp` itself."""


def refuse_shadows() -> None:
    """Check where each package would be imported from; imports none.

    Raises:
        ConfigError: names the folder or file that is in the way, and what to do.
    """
    for package in PACKAGES:
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
    if found.parent == Path.cwd() and sys.argv[0].endswith("__main__.py"):
        return "Type `hsexp` instead of `python -m hsexp`, or change to another folder"
    return f"Take {found.parent} out of Python's search path (PYTHONPATH), or rename it"
