"""What `python -m analysis` and `python -m figures` share: arguments, campaign, ledger, runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from rich.console import Console

from analysis import config as configs
from analysis.errors import AnalysisError
from analysis.families import AnalysisConfig
from analysis.runs import Runs
from hsexp.ledger import Ledger, LedgerError

LEDGERS = Path("ledgers")
"""Where campaigns keep their runs, below the working directory: <campaign>/<engine>."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a command line asks for."""

    config: AnalysisConfig
    names: tuple[str, ...]
    """Tables or figures, in order."""
    ledger: Path
    out: Path
    seeds: tuple[int, ...] | None

    def read_runs(self) -> Runs:
        """The ledger's runs.

        Raises:
            AnalysisError: the ledger is missing, damaged, or holds nothing for this campaign.
        """
        try:
            attempts = Ledger.read(self.ledger).attempts()
        except LedgerError as error:
            raise AnalysisError(str(error)) from None
        return Runs.select(
            attempts, campaign=self.config.campaign, design=self.config.design, seeds=self.seeds
        )


def run(main: Callable[[Sequence[str]], None], arguments: Sequence[str]) -> int:
    """Exit code of a command: 0, or 2 with the reason on standard error."""
    try:
        main(arguments)
    except AnalysisError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"error: {error}", markup=False)
        return 2
    return 0


def parse(arguments: Sequence[str], *, kind: str, known: Sequence[str]) -> Request:
    """Read `key=value` arguments.

    Args:
        kind: "table" or "figure": the key that picks one, and the field of the configuration.
        known: names that exist.

    Raises:
        AnalysisError: an argument is unknown, given twice or refused.
    """
    given = _pairs(arguments, keys=("campaign", kind, "ledger", "out", "seeds"))
    name = given.get(kind)
    if name is not None and name not in known:
        raise AnalysisError(f"{kind} {name} is unknown; there is {', '.join(known)}")
    config = configs.load(given["campaign"]) if "campaign" in given else _with(kind, name)
    declared = getattr(config, f"{kind}s")
    if name is not None and name not in declared:
        raise AnalysisError(f"campaign {config.campaign} has no {kind} {name}")
    ledger = Path(given["ledger"]) if "ledger" in given else _default_ledger(config.campaign)
    return Request(
        config=config,
        names=declared if name is None else (name,),
        ledger=ledger,
        out=Path(given["out"]) if "out" in given else ledger / "analysis",
        seeds=_seeds(given["seeds"]) if "seeds" in given else None,
    )


def _pairs(arguments: Sequence[str], *, keys: Sequence[str]) -> Mapping[str, str]:
    given: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or key not in keys:
            raise AnalysisError(f"unknown argument {argument}; there is {'=, '.join(keys)}=")
        if key in given:
            raise AnalysisError(f"{key} is given twice: {given[key]} and {value}")
        if not value:
            raise AnalysisError(f"{key} must have a value")
        given[key] = value
    return given


def _with(kind: str, name: str | None) -> AnalysisConfig:
    """The campaign that a table or figure belongs to."""
    if name is None:
        raise AnalysisError(f"campaign is required; there is {', '.join(configs.campaigns())}")
    every = [configs.load(campaign) for campaign in configs.campaigns()]
    found = [config for config in every if name in getattr(config, f"{kind}s")]
    if len(found) != 1:
        owners = ", ".join(config.campaign for config in found) or "none"
        raise AnalysisError(f"name the campaign of {kind} {name}; it belongs to {owners}")
    return found[0]


def _default_ledger(campaign: str) -> Path:
    folder = LEDGERS / campaign
    engines = sorted(path for path in folder.glob("*") if (path / "journal.jsonl").is_file())
    if not engines:
        raise AnalysisError(
            f"{folder}: there is no ledger; run `python -m hsexp campaign={campaign}` first, or "
            "name one with ledger="
        )
    if len(engines) > 1:
        raise AnalysisError(
            f"{folder} has ledgers of {len(engines)} engines, which are never mixed; name one: "
            + ", ".join(f"ledger={path}" for path in engines)
        )
    return engines[0]


def _seeds(text: str) -> tuple[int, ...]:
    """`76400-76411`, `0,1,2` or `[0,1,2]`."""
    first, dash, last = text.partition("-")
    try:
        if dash:
            seeds = list(range(int(first), int(last) + 1))
        else:
            loaded = yaml.safe_load(text if text.startswith("[") else f"[{text}]")
            seeds = [int(seed) for seed in loaded]
    except (ValueError, TypeError, yaml.YAMLError):
        seeds = []
    if not seeds or len(set(seeds)) != len(seeds):
        raise AnalysisError(f"seeds must be FIRST-LAST or a list of different seeds, got {text}")
    return tuple(sorted(seeds))
