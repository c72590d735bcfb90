"""Refuse overrides from which Hydra composes something else than the user typed."""

import re
from collections.abc import Iterable

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob

from hsexp.config.base import ConfigError
from hsexp.config.catalog import groups, options, unknown_option

_SEARCH_PATHS = ("config-dir", "cd", "hydra.searchpath")
_NAME = r"[\w-]+"
"""An option as it is typed; anything else is Hydra's grammar, such as a glob."""


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


def refuse_unknown_options(arguments: Iterable[str]) -> None:
    """Refuse an option that no file describes in one line, before Hydra does in many.

    A search path of the user's may have more options: then it is left to Hydra.

    Raises:
        ConfigError: names the group, the option, and the nearest ones that there are.
    """
    given, known = list(arguments), set(groups())
    if any(word.lstrip("-+").startswith(_SEARCH_PATHS) for word in given):
        return
    for word in given:
        group, _, value = word.partition("=")
        if group not in known:
            continue
        for name in value.split(","):  # a sweep has several
            if re.fullmatch(_NAME, name) and name != "null" and name not in options(group):
                raise unknown_option(group, name)


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
