"""Reads the options of a Hydra group without Hydra: a campaign's axes name several of them.

Options are files in the folders of a search path: `conf`, and those that the command line adds
(`--config-dir`, `hydra.searchpath`). A name lies in one of them: Hydra would ignore a second one.
The command sets the path once (`follow`) in an environment variable, so that the processes that it
starts use the same folders.
"""

import json
import os
from collections.abc import Callable, Hashable, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import yaml

from hsexp.config.base import ConfigError

CONF = Path(__file__).parents[2] / "conf"
"""Folder with every number of the project."""

_SEARCH_PATH = "HSEXP_SEARCH_PATH"

P = ParamSpec("P")
R = TypeVar("R")


def folders() -> tuple[Path, ...]:
    """The search path."""
    given = os.environ.get(_SEARCH_PATH)
    return tuple(map(Path, json.loads(given))) if given else (CONF,)


def follow(search_path: Iterable[Path]) -> None:
    """Set the search path of this process, and of those that it starts from now on.

    Raises:
        ConfigError: two folders have options of one name; names the files.
    """
    searched = [folder.absolute() for folder in search_path]
    os.environ.pop(_SEARCH_PATH, None)
    _refuse_one_name(searched)
    told = [str(folder) for folder in searched]
    if told != [str(CONF)]:
        os.environ[_SEARCH_PATH] = json.dumps(told)


def _refuse_one_name(searched: Iterable[Path]) -> None:
    groups = {path.parent.relative_to(CONF) for path in CONF.glob("*/**/*.yaml")}
    first: dict[Path, Path] = {}
    refusals = []
    for folder in searched:
        for path in sorted(path for group in groups for path in (folder / group).glob("*.yaml")):
            other = first.setdefault(path.relative_to(folder), path)
            if not other.samefile(path):
                refusals.append(f"{_typed(other)} and {_typed(path)} have one name; rename yours")
    if refusals:
        raise ConfigError("\n".join(refusals))


def follow_config_dir(arguments: Iterable[str]) -> list[str]:
    """Append a user's folder to the search path if `config_dir=DIR` is among the arguments.

    Returns the other arguments.

    Raises:
        ConfigError: DIR is not a folder, or has an option of a name that `conf` has.
    """
    others = []
    for argument in arguments:
        key, _, folder = argument.partition("=")
        if key != "config_dir":
            others.append(argument)
        elif Path(folder).is_dir() and folder:
            follow([CONF, Path(folder)])
        else:
            raise ConfigError(f"config_dir must be a folder, got {folder!r}")
    return others


def as_override() -> list[str]:
    """The search path as an override for Hydra; empty where it is `conf` alone."""
    own = [f"file://{folder}".replace("'", r"\'") for folder in folders() if folder != CONF]
    quoted = ",".join(f"'{source}'" for source in own)
    return [f"hydra.searchpath=[{quoted}]"] if own else []


def remembered(read: Callable[P, R]) -> Callable[P, R]:
    """Cache a function of options by its arguments and the search path."""

    found: dict[Hashable, R] = {}

    @wraps(read)
    def recall(*args: P.args, **kwargs: P.kwargs) -> R:
        key = (folders(), args, tuple(kwargs.items()))
        if key not in found:
            found[key] = read(*args, **kwargs)
        return found[key]

    return recall


def options(group: str) -> list[str]:
    """Names of the group's options."""
    return sorted({path.stem for folder in folders() for path in (folder / group).glob("*.yaml")})


def standing_options(group: str) -> list[str]:
    """Names of the group's options in `conf`, which do not depend on the search path."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def groups() -> list[str]:
    """Names of the groups in `conf`."""
    return sorted(path.name for path in CONF.iterdir() if path.is_dir())


def unknown_option(group: str, name: str) -> ConfigError:
    """The refusal of an option that does not exist: lists those there are, nearest ones last."""
    known = options(group)
    near = get_close_matches(name.lower(), known, cutoff=0.0)
    return ConfigError(
        f"{group} {name!r} does not exist; choose from {', '.join(known)}; "
        f"the nearest are {', '.join(near)}"
    )


def path_of(group: str, name: str) -> Path:
    """File of an option.

    Raises:
        ConfigError: there is no such option; names the nearest ones.
    """
    if name not in options(group):
        raise unknown_option(group, name)
    paths = (folder / group / f"{name}.yaml" for folder in folders())
    return next(path for path in paths if path.is_file())


def shown(group: str, name: str) -> str:
    """Path of an option's file, for messages: `conf/budget/b63.yaml`, or the user's path."""
    return _typed(path_of(group, name))


def _typed(path: Path) -> str:
    """A path as short as a user would type it."""
    if path.is_relative_to(CONF):
        return str(path.relative_to(CONF.parent))
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def read_file(group: str, name: str) -> dict[str, Any]:
    """One option as it is in its file.

    Raises:
        ConfigError: there is no such option, or its file holds no YAML mapping.
    """
    try:
        data = yaml.safe_load(path_of(group, name).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{shown(group, name)}: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{shown(group, name)} must be a mapping, got {data!r}")
    return data


def read_root(name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A root of the configuration in `conf`: its own values, and the option it chooses by group."""
    own: dict[str, Any] = yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8"))
    chosen: dict[str, str] = {}
    for default in own.pop("defaults"):
        if isinstance(default, dict):
            chosen |= {
                group: option
                for group, option in default.items()
                if option is not None and (CONF / group).is_dir()
            }
    return own, chosen


def changes(group: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a composed option that differ from the option in `conf/`."""
    name = option_name(given)
    standing = read_option(group, name) if name in options(group) else {}
    return {key: value for key, value in given.items() if value != standing.get(key)}


def with_changes(group: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Another option of a group, with what the command line changed in the composed one."""
    return read_option(group, name) | changes(group, given)


def option_name(given: Mapping[str, Any]) -> str | None:
    """The name of a composed option; arrivals have their kind. What is no text is no name."""
    name = given.get("name", given.get("kind"))
    return name if isinstance(name, str) else None


def read_option(group: str, name: str) -> dict[str, Any]:
    """One option as plain data, merged over the options of its group in its defaults list.

    Raises:
        ConfigError: there is no such option, or its file holds no YAML mapping.
    """
    data = read_file(group, name)
    merged: dict[str, Any] = {}
    for parent in data.pop("defaults", []):
        # A mapping chooses an option of another group.
        if isinstance(parent, str) and parent != "_self_":
            merged |= read_option(group, parent)
    return merged | data
