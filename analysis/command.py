"""What `python -m analysis` and `python -m figures` share: arguments, campaigns, ledgers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from analysis import config as configs
from analysis.errors import AnalysisError, NoRunsError
from analysis.families import Adoption
from analysis.ledgers import Ledgers
from hsexp.config.base import ConfigError
from hsexp.config.catalog import follow_config_dir
from hsexp.ending import end_well
from hsexp.ledger import Ledger, LedgerError
from hsexp.runs import engines_below, is_ledger

LEDGERS = Path("ledgers")
"""Root of the ledgers, below the working directory: <campaign>/<engine>."""

FRESH = "fresh"
"""Folder below the root with ledgers of seeds that the paper does not name; they lead the page."""

Source = Literal["ledger", "paper"]
"""Where the numbers come from: runs, or the published values."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a command line asks for."""

    names: tuple[str, ...]
    """Tables or figures, in order; empty means all of them."""
    source: Source
    ledgers: Ledgers
    out: Path


def run(
    main: Callable[[Sequence[str]], None], arguments: Sequence[str], *refusals: type[Exception]
) -> int:
    """Exit code of a command: 0, or another one with the reason on standard error.

    Args:
        arguments: `config_dir=DIR` adds the options of a user's folder.
        refusals: further errors that a user can correct.
    """

    return end_well(
        lambda: main(follow_config_dir(arguments)),
        AnalysisError,
        ConfigError,
        LedgerError,
        *refusals,
    )


def parse(
    arguments: Sequence[str], *, kind: Literal["table", "figure"], known: Sequence[str]
) -> Request:
    """Read `key=value` arguments.

    Args:
        kind: "table" or "figure": the key that picks one, and the field of conf/analysis.
        known: existing names.

    Raises:
        AnalysisError: an argument is unknown, given twice or refused.
    """
    keys = ("campaign", kind, "source", "ledger", "ledgers", "adoption", "out", "seeds", "metric")
    given = parse_pairs(arguments, keys=keys)
    source: Source = _choice(given, "source", Source, default="ledger")
    adoption: Adoption = _choice(given, "adoption", Adoption, default="current")
    name = given.get(kind)
    if name is not None and name not in known:
        raise AnalysisError(f"{kind} {name} is unknown; choose from {', '.join(known)}")
    asked = given.get("campaign")
    if asked is None and name in (None, *configs.GENERIC):
        asked = _campaign_of_ledger(given)
    is_recorded = _is_recorded(given)
    owners = _owners(kind, name, asked, source, is_recorded=is_recorded)
    campaign = owners[0] if len(owners) == 1 else None
    names: tuple[str, ...] = ()
    if name is not None:
        names = (name,)
    elif campaign is not None:
        listed = configs.listing(campaign, is_recorded=is_recorded)
        names = getattr(listed, f"{kind}s")
    if "metric" in given and not set(names) & set(configs.GENERIC):
        raise AnalysisError(
            f"metric={given['metric']} is what {kind} {configs.GENERIC[0]} ranks by; "
            f"add {kind}={configs.GENERIC[0]}"
        )
    seeds = parse_seeds(given["seeds"]) if "seeds" in given else None
    ledgers = Ledgers(
        Path(given.get("ledgers", LEDGERS)),
        paths=_one_path(given, kind, owners),
        seeds=seeds,
        adoption=adoption,
        asked=asked,
        metric=given.get("metric"),
    )
    return Request(
        names=names,
        source=source,
        ledgers=ledgers,
        out=Path(given["out"]) if "out" in given else _default_out(ledgers, campaign, source),
    )


def parse_pairs(arguments: Sequence[str], *, keys: Sequence[str]) -> Mapping[str, str]:
    given: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or key not in keys:
            raise AnalysisError(f"argument {argument} is unknown; choose from {'=, '.join(keys)}=")
        if key in given:
            raise AnalysisError(f"{key} is given twice: {given[key]} and {value}")
        if not value:
            raise AnalysisError(f"{key} must have a value")
        given[key] = value
    return given


def _choice(given: Mapping[str, str], key: str, choices: Any, *, default: str) -> Any:
    value = given.get(key, default)
    if value not in get_args(choices):
        raise AnalysisError(f"{key} must be {' or '.join(get_args(choices))}, got {value}")
    return value


def _is_recorded(given: Mapping[str, str]) -> bool:
    """Whether there is a ledger where the command looks for one."""
    if "ledger" in given:
        return is_ledger(Path(given["ledger"]))
    if "campaign" not in given:
        return False
    return bool(engines_below(Path(given.get("ledgers", LEDGERS)) / given["campaign"]))


def _campaign_of_ledger(given: Mapping[str, str]) -> str | None:
    """The campaign whose runs are in the given ledger; None without one."""
    if "ledger" not in given or not _is_recorded(given):
        return None
    campaign = Ledger.read(given["ledger"]).contract.get("campaign")
    return None if campaign is None else str(campaign)


def _owners(
    kind: str, name: str | None, campaign: str | None, source: Source, *, is_recorded: bool
) -> tuple[str, ...]:
    """Campaigns that the requested table or figure draws on.

    Args:
        is_recorded: there is a ledger of the campaign.
    """
    if campaign is not None:
        listed = configs.listing(campaign, is_recorded=is_recorded)
        if name is not None and name not in (*getattr(listed, f"{kind}s"), *configs.GENERIC):
            raise AnalysisError(f"campaign {campaign} has no {kind} {name}")
        return (campaign,)
    if name is None and source == "ledger":
        raise AnalysisError(f"campaign is required; choose from {', '.join(configs.campaigns())}")
    every = [configs.listing(each) for each in configs.campaigns()]
    return tuple(each.campaign for each in every if name in getattr(each, f"{kind}s"))


def _one_path(
    given: Mapping[str, str], kind: str, owners: tuple[str, ...]
) -> dict[str, Path] | None:
    if "ledger" not in given:
        return None
    if len(owners) != 1:
        raise AnalysisError(
            f"ledger= needs campaign=, because {kind} {given[kind]} draws on "
            f"{', '.join(owners) or 'no campaign'}; ledgers= takes the root folder of all ledgers"
        )
    return {owners[0]: Path(given["ledger"])}


def _default_out(ledgers: Ledgers, campaign: str | None, source: Source) -> Path:
    """Next to the ledger if there is one campaign, else below the root."""
    if source == "paper":
        return ledgers.root / "analysis" / "paper"
    if campaign is not None:
        try:
            return ledgers.path(campaign) / "analysis"
        except NoRunsError:
            pass
    return ledgers.root / "analysis"


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse `76400-76411`, `0,1,2` or `[0,1,2]`."""
    first, dash, last = text.partition("-")
    try:
        if dash:
            seeds = list(range(int(first), int(last) + 1))
        else:
            loaded = yaml.safe_load(text if text.startswith("[") else f"[{text}]")
            seeds = loaded if all(type(seed) is int for seed in loaded) else []
    except (ValueError, TypeError, yaml.YAMLError):
        seeds = []
    if not seeds or len(set(seeds)) != len(seeds):
        raise AnalysisError(f"seeds must be FIRST-LAST or a list of different seeds, got {text}")
    return tuple(sorted(seeds))
