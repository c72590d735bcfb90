"""Passes Hydra's search path to the look-ups without Hydra."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.conf import RuntimeConf

from hsexp.config.catalog import follow


def follow_hydra(runtime: RuntimeConf) -> None:
    """Make all look-ups use the search path in `hydra.runtime`.

    Raises:
        ConfigError: two of its folders have options of one name.
    """
    follow(_folders(runtime.config_sources, Path(runtime.cwd)))


def _folders(sources: Iterable[Any], cwd: Path) -> Iterator[Path]:
    """Folders of files and packages, in Hydra's order, without Hydra's own packages."""
    for source in sources:
        match source.schema:
            case "file":
                yield cwd / source.path
            case "pkg" if source.provider != "hydra":
                with suppress(ModuleNotFoundError):  # Hydra has warned of it
                    found = find_spec(source.path)
                    places = None if found is None else found.submodule_search_locations
                    yield from map(Path, places or ())
