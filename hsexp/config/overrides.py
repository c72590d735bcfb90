"""Refuse overrides from which Hydra composes something else than the user typed."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches

from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hsexp.config.base import ConfigError
from hsexp.config.catalog import (
    CONF,
    groups,
    options,
    read_option,
    read_root,
    unknown_option,
)

_SEARCH_PATHS = ("config-dir", "cd", "hydra.searchpath")
_NAME = r"[\w-]+"
"""An option as it is typed; anything else is Hydra's grammar, such as a glob."""
_MAX_NEAREST = 3
_NEVER_TYPED = ("campaign.blocks.", "analysis.")
"""Fields below have the names of axes, and nobody means them."""


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


def refuse_unknown_fields(arguments: Iterable[str]) -> None:
    """Refuse a field that a launch does not have in one line, before Hydra does in many.

    A search path of the user's may have more fields: then it is left to Hydra.

    Raises:
        ConfigError: names the field and the nearest ones that there are.
    """
    given = [word for word in arguments if "=" in word]
    if any(word.lstrip("-+").startswith(_SEARCH_PATHS) for word in given):
        return
    typed = {word.partition("=")[0] for word in given}
    keys = sorted(key for key in typed if re.fullmatch(r"\w+(\.\w+)*", key))
    chosen = {
        key: value
        for key, _, value in (word.partition("=") for word in given)
        if value in options(key)
    }
    doubtful = [key for key in keys if not key.startswith("hydra.") and not _is_known(key, chosen)]
    if not doubtful:
        return
    try:
        with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
            composed = compose("config", [f"{group}={name}" for group, name in chosen.items()])
    except (HydraException, OmegaConfBaseException):
        return
    fields = list(_fields(OmegaConf.to_container(composed, throw_on_missing=False)))
    for key in doubtful:
        if key not in fields:
            raise ConfigError(f"{key} is not a field of this launch; {_hint(key, fields)}")


def _is_known(key: str, chosen: Mapping[str, str]) -> bool:
    """Whether a field is certainly there, by the files alone; False where Hydra must say it."""
    own, defaults = read_root("config")
    first, *rest = key.split(".")
    if not rest:
        return first in own or bool(options(first))
    option = chosen.get(first, defaults.get(first))
    data: object = read_option(first, option) if option in options(first) else None
    for name in rest:
        if not isinstance(data, Mapping) or name not in data:
            return False
        data = data[name]
    return True


def _fields(data: object, above: str = "") -> Iterator[str]:
    """Dotted names of all fields, and of the mappings that hold them."""
    if isinstance(data, Mapping):
        for name, value in data.items():
            yield f"{above}{name}"
            yield from _fields(value, f"{above}{name}.")


def _hint(key: str, fields: Sequence[str]) -> str:
    """Another option of the group that has the field, or the nearest fields."""
    group, _, field = key.partition(".")
    having = [name for name in options(group) if field and field in read_option(group, name)]
    if having:
        return f"it belongs to {', '.join(f'{group}={name}' for name in having[:_MAX_NEAREST])}"
    near = _nearest(key, [field for field in fields if not field.startswith(_NEVER_TYPED)])
    return f"nearest are {', '.join(near)}" if len(near) > 1 else f"nearest is {near[0]}"


def _nearest(key: str, fields: Sequence[str]) -> list[str]:
    """Fields of the same last name; without one, the most similar ones. At least one."""
    last = {field: field.rpartition(".")[2] for field in fields}
    same = [field for field in fields if last[field] == key.rpartition(".")[2]]
    similar = get_close_matches(key, fields, n=3) + [
        field
        for name in get_close_matches(key.rpartition(".")[2], last.values(), n=3)
        for field in fields
        if last[field] == name
    ]
    found = dict.fromkeys(same or similar or get_close_matches(key, fields, n=1, cutoff=0.0))
    return list(found)[:_MAX_NEAREST]


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
