"""Overrides that Hydra composes and that cannot mean what they say."""

from collections.abc import Iterable

from hydra.core.override_parser.overrides_parser import OverridesParser

from hsexp.config.base import ConfigError
from hsexp.config.catalog import CONF


def refuse_several_options(overrides: Iterable[str]) -> None:
    """A group has one option: of a list Hydra would merge all into one, under the last name.

    Raises:
        ConfigError: names the group and the list.
    """
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        group, value = override.key_or_group, override.value()
        if isinstance(value, list) and (CONF / group).is_dir():
            names = [str(name) for name in value]
            raise ConfigError(
                f"{group} takes one option, got [{','.join(names)}]; "
                f"a sweep takes several: -m {group}={','.join(names)}"
            )
