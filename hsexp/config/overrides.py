"""Refuse overrides from which Hydra composes something else than the user typed."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob

from hsexp.config.base import ConfigError
from hsexp.config.catalog import options, standing_options

_SEARCH_PATHS = ("config-dir", "cd", "hydra.searchpath")


def refuse_several_options(overrides: Iterable[str]) -> None:
    """Refuse a list of options for a group: Hydra would merge them into one, under the last name.

    Raises:
        ConfigError: names the group and the list.
    """
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        group, value = override.key_or_group, override.value()
        if isinstance(value, list) and options(group):
            names = [str(name) for name in value]
            raise ConfigError(
                f"{group} takes one option, got [{','.join(names)}]; "
                f"a sweep takes several: -m {group}={','.join(names)}"
            )


def refuse_unknown_device(arguments: Iterable[str]) -> None:
    """Refuse a device that no file describes in one line, before Hydra does in many.

    A search path of the user's may have more devices: then it is left to Hydra.

    Raises:
        ConfigError: names the device and the nearest ones that there are.
    """
    given, known = list(arguments), standing_options("device")
    if any(word.lstrip("-+").startswith(_SEARCH_PATHS) for word in given):
        return
    asked = [word.partition("=")[2] for word in given if word.startswith("device=")]
    for name in (name for value in asked for name in value.split(",")):
        if re.fullmatch(r"\w+", name) and name not in known:
            near = get_close_matches(name.lower(), known, n=3, cutoff=0.4)
            nearest = f"nearest are {', '.join(near)}; " if near else ""
            raise ConfigError(
                f"device {name!r} does not exist, neither fitted nor by a data sheet; {nearest}"
                f"choose from {', '.join(known)}"
            )


def given_settings(overrides: Iterable[str]) -> dict[str, str]:
    """Settings on the command line: dotted name or group -> value as typed."""
    return {
        override.key_or_group.replace("/", "."): str(override.input_line).partition("=")[2]
        for override in OverridesParser.create().parse_overrides(list(overrides))
    }


def refuse_empty_sweeps(overrides: Iterable[str], config_loader: ConfigLoader) -> None:
    """Refuse a glob that matches nothing and an empty range: the sweep would have no jobs.

    Raises:
        ConfigError: names the override.
    """
    parser = OverridesParser.create(config_loader=config_loader)
    for override in parser.parse_overrides(list(overrides)):
        if not override.is_discrete_sweep() or any(True for _ in override.sweep_iterator()):
            continue
        why = "is empty"
        if isinstance(override.value(), Glob):
            known = config_loader.get_group_options(override.key_or_group)
            why = f"matches nothing; choose from {', '.join(known)}" if known else "names no group"
        raise ConfigError(f"the sweep has no jobs: {override.input_line} {why}")


def quoted(arguments: Iterable[str], setting: str) -> list[str]:
    """The arguments with quotes around a setting's value, which may then hold < and >.

    Hydra's grammar has neither, and a shell has taken the user's own quotes away.
    """

    def one(word: str) -> str:
        key, equals, value = word.partition("=")
        if key != setting or not equals or value.startswith(("'", '"')) or value == "null":
            return word
        return f"{key}='{value}'"

    return [one(word) for word in arguments]
