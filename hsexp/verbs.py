"""The first words of a command line that name a program of their own. Everything else is a launch.

The one list of them: the command, its help, shell completion and `hsexp.starting` use it. It says
modules by name, because each imports what it needs.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Verb:
    """A program: `hsexp NAME ...` is `python -m MODULE ...`."""

    module: str
    about: str


VERBS = {
    "analysis": Verb(module="analysis", about="tables from ledgers alone, and views of a run"),
    "figures": Verb(module="figures", about="figures from ledgers alone"),
    "report": Verb(module="figures.report", about="one page about a campaign, from its ledger"),
    "pack": Verb(module="runners.pack", about="an archive of a campaign's ledger and results"),
    "verify": Verb(module="runners.verify", about="check an archive, and make its tables again"),
    "serve": Verb(module="hsexp.serve", about="a server of vLLM with one of our memories"),
    "probe": Verb(module="runners.probe", about="time steps of a real engine for a device file"),
    "replay": Verb(module="runners.replay", about="repeat the memory decisions of a traced run"),
    "interop": Verb(module="runners.interop", about="exchange requests with other simulators"),
}


def listed() -> str:
    """The verbs for a help page, one a line."""
    width = max(map(len, VERBS)) + 2
    return "\n".join(f"  hsexp {name:<{width}}{verb.about}" for name, verb in VERBS.items())
