"""Which command lines `hsexp.describe` answers. It imports little, because every command asks."""

from collections.abc import Sequence

KEY = "trace"

_SWITCHES = {"true", "false", "null", "none", "yes", "no", "on", "off", "y", "n", "1", "0", "~", ""}
"""What `trace=` of a campaign may be."""


def names_trace(arguments: Sequence[str]) -> bool:
    """Whether a command line asks what is in a trace; a campaign has a switch of that name."""
    pairs = dict(argument.partition("=")[::2] for argument in arguments)
    return "campaign" not in pairs and pairs.get(KEY, "").lower() not in _SWITCHES
