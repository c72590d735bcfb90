"""python -m hsexp pack campaign=q6 [engine=sim] [ledger=DIR] [ledgers=ROOT] [out=FILE.tar]
                  [overwrite=true] [config_dir=DIR]

Packs what a campaign recorded into one tar file: its ledger, the tables and figures that follow
from it, the requests of every run, and the composed configuration, with a manifest of sizes and
SHA-256 (Section F.4). Equal ledgers give equal bytes. `python -m hsexp verify FILE.tar` checks it.

  campaign=paper    a collection packs every member that has a ledger
  ledger=DIR        another ledger of the campaign; the default is <root>/<campaign>/<engine>
  ledgers=ROOT      that root; the default is ledgers/
  out=FILE.tar      the default is <campaign>.tar
"""

import hsexp.starting  # noqa: F401, I001

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from hsexp.shadows import guard

guard("analysis", "figures")

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from analysis.command import LEDGERS, parse_pairs
from analysis.command import run as run_command
from analysis.config import campaigns as analysed_campaigns
from analysis.errors import AnalysisError
from hsexp.config.base import ConfigError
from hsexp.config.campaigns import CollectionCampaign
from hsexp.config.catalog import CONF, as_override, read_file
from hsexp.config.launch import Launch, parse_launch
from hsexp.console import make_console
from hsexp.ledger import Ledger, LedgerError, Provenance, encode_arrow
from hsexp.ledger.provenance import package_versions
from hsexp.plan.cells import Cell
from hsexp.plan.run import parse_run
from hsexp.runs import engines_below
from hsexp.workload import TraceError
from hsexp.workload.frozen import frozen
from runners.archive import ArchiveError, write_manifest, write_tar
from runners.derived import make_figures, make_tables
from runners.launch import member_of, own_seeds
from runners.recorded import as_recorded
from runners.sim import workload_of

_KEYS = ("campaign", "engine", "ledger", "ledgers", "out", "overwrite")


@dataclass(kw_only=True)
class Packing:
    """What is said of an archive while it is made."""

    ledgers: list[dict[str, Any]] = field(default_factory=list)
    workloads: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What the archive lacks, and why."""
    num_tables: int = 0


def main(arguments: Sequence[str]) -> None:
    """
    Raises:
        AnalysisError, ArchiveError, ConfigError, LedgerError: nothing is written.
    """
    console = make_console()
    if not arguments or "--help" in arguments:
        console.print((__doc__ or "").strip(), markup=False)
        return
    given = parse_pairs(arguments, keys=_KEYS)
    if "campaign" not in given:
        raise AnalysisError("pack needs campaign=, whose ledger it packs")
    campaign = given["campaign"]
    out = Path(given.get("out", f"{campaign}.tar"))
    if out.exists() and given.get("overwrite") != "true":
        raise ArchiveError(f"{out} exists; overwrite=true replaces it, out= names another file")
    found = list(_ledgers(campaign, given))
    with tempfile.TemporaryDirectory(prefix="hsexp-") as scratch:
        packing = pack(found, Path(scratch))
        write_tar(Path(scratch), out)
        num_files = sum(path.is_file() for path in Path(scratch).rglob("*"))
    for note in packing.notes:
        console.print(note, markup=False)
    num_runs = sum(each["num_accepted"] for each in packing.ledgers)
    console.print(
        f"packed: {out}, {num_files} files, {out.stat().st_size / 1e6:.1f} MB: {num_runs} runs, "
        f"{len(packing.workloads)} workloads, {packing.num_tables} tables",
        markup=False,
    )


def _ledgers(campaign: str, given: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Campaigns, and the folders of their ledgers.

    Raises:
        AnalysisError: there is none, or there are those of several engines.
        ConfigError: there is no such campaign.
    """
    root = Path(given.get("ledgers", LEDGERS))
    settings = read_file("campaign", campaign).get("campaign", {})
    members = settings["campaigns"] if settings.get("kind") == "collection" else [campaign]
    if "ledger" in given:
        if members != [campaign]:
            raise AnalysisError(f"campaign {campaign} has several ledgers; use ledgers=ROOT")
        yield campaign, Path(given["ledger"])
        return
    num_found = 0
    for name in members:
        paths = engines_below(root / name)
        if "engine" in given:
            paths = [path for path in paths if path.name == given["engine"]]
        if len(paths) > 1:
            raise AnalysisError(
                f"{root / name} has ledgers of {len(paths)} engines; name one: "
                + ", ".join(f"engine={path.name}" for path in paths)
            )
        num_found += len(paths)
        yield from ((name, path) for path in paths)
    if not num_found:
        wanted = f" of engine {given['engine']}" if "engine" in given else ""
        raise AnalysisError(f"{root / campaign}: there is no ledger{wanted} to pack")


def pack(ledgers: Iterable[tuple[str, Path]], folder: Path) -> Packing:
    """Fill an empty folder with the files of an archive.

    Raises:
        AnalysisError, LedgerError, ArchiveError: a ledger is damaged, or has no accepted run.
    """
    packing, places = Packing(), dict[str, Path]()
    for campaign, path in ledgers:
        engine = str(Ledger.read(path).contract["engine"])
        ledger = _copy(path, f"ledgers/{campaign}/{engine}", folder, places)
        if ledger is None:
            raise ArchiveError(f"{path}: there is another ledger at its place in the archive")
        if not ledger.accepted():
            raise LedgerError(f"{path}: the ledger has no accepted run to pack")
        launches = list(_launches(ledger, campaign, packing))
        _freeze_inputs(ledger, launches, folder, packing)
        seeds = _seeds(launches, campaign)
        place = f"{campaign}/{engine}"
        if launches:
            _write_config(launches[-1].composed, folder / "config" / f"{place}.yaml")
        packing.num_tables += make_tables(
            folder, campaign, engine, seeds=seeds, out=folder / "tables" / place
        )
        packing.notes += make_figures(
            folder, campaign, engine, seeds=seeds, out=folder / "figures" / place
        )
        packing.ledgers.append(
            {
                "campaign": campaign,
                "engine": engine,
                "ledger": f"ledgers/{place}",
                "digest": ledger.digest,
                "num_accepted": len(ledger.accepted()),
                "seeds": seeds,
            }
        )
    said = {
        "code_version": Provenance.collect().code_version,
        "versions": package_versions(),
        "ledgers": packing.ledgers,
        "workloads": dict(sorted(packing.workloads.items())),
        "notes": packing.notes,
    }
    write_manifest(folder, said)
    return packing


def _copy(source: Path, place: str, folder: Path, places: dict[str, Path]) -> Ledger | None:
    """Copy a ledger and those that hold runs of it; None where its place is taken by another."""
    known = places.setdefault(place, source.resolve())
    if known != source.resolve():
        return None
    if (folder / place).exists():
        return Ledger.read(folder / place)
    ledger = Ledger.copy(source, folder / place)
    for other in ledger.sources:
        its_place = os.path.normpath(PurePosixPath(place) / other)
        if not its_place.startswith("ledgers/") or (
            _copy(source / other, its_place, folder, places) is None
        ):
            raise ArchiveError(
                f"{source}: runs of {source / other} are reused, which has no place in the archive"
            )
    return ledger


# -- what the launches were ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Launched:
    """A launch of the ledger, composed again."""

    launch: Launch
    composed: DictConfig
    cells: tuple[Cell, ...]


def _launches(ledger: Ledger, campaign: str, packing: Packing) -> Iterator[_Launched]:
    """Every different launch of a ledger that can still be composed and planned."""
    given = [tuple(each) for each in ledger.launches().get("overrides", [])]
    for overrides in reversed(dict.fromkeys(reversed(given))):
        try:
            with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
                for launch, composed in _composed(list(overrides), campaign):
                    recorded = as_recorded(launch, ledger)
                    yield _Launched(launch=launch, composed=composed, cells=recorded.plan.cells)
        except (ConfigError, LedgerError, HydraException, OmegaConfBaseException) as error:
            first = str(error).partition("\n")[0]
            packing.notes.append(
                f"{campaign}: the launch {' '.join(overrides)} cannot be composed again: {first}"
            )


def _composed(overrides: list[str], campaign: str) -> Iterator[tuple[Launch, DictConfig]]:
    """What a launch did for a campaign: as itself, or as a member of a collection, which may also
    have run it on fresh seeds."""
    composed = compose("config", overrides=[*overrides, *as_override()])
    launch = parse_launch(composed)
    collection = launch.campaign
    if not isinstance(collection, CollectionCampaign):
        yield launch, composed
        return
    passed_on = [
        item for item in overrides if not item.startswith(("ledger=", "campaign=", "campaign."))
    ]
    fresh = [f"seeds={list(collection.fresh_seeds)}"] if collection.fresh_seeds else []
    for further in ([], fresh) if launch.seeds is None and fresh else ([],):
        member = member_of(campaign, collection, [*passed_on, *further])
        yield (
            member.launch,
            compose("config", [f"campaign={campaign}", *member.overrides, *as_override()]),
        )


def _seeds(launches: Sequence[_Launched], campaign: str) -> list[int] | None:
    """Seeds that the launches narrowed the campaign to; None uses those of the campaign."""
    if campaign not in analysed_campaigns():
        return None
    found: set[int] = set()
    for each in launches:
        seeds = own_seeds(each.launch, each.cells)
        if seeds is None:
            return None
        found.update(seeds)
    return sorted(found) or None


def _write_config(composed: DictConfig, path: Path) -> None:
    """Without the place of the ledger, which is in the archive."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data: Any = OmegaConf.to_container(composed, resolve=True)
    path.write_text(OmegaConf.to_yaml(data | {"ledger": None}), encoding="utf-8")


def _freeze_inputs(
    ledger: Ledger, launches: Iterable[_Launched], folder: Path, packing: Packing
) -> None:
    """Write the requests of every accepted run, each workload once, and note what is unknown."""
    frame = ledger.frame().set_index("cell_id")
    wanted: dict[str, str] = dict(frame["workload_digest"])
    lacking = dict.fromkeys(wanted.values())
    (folder / "workloads").mkdir(exist_ok=True)
    for cell in (cell for each in launches for cell in each.cells):
        digest = wanted.get(cell.cell_id)
        if digest in packing.workloads:
            lacking.pop(digest, None)
        if digest not in lacking or digest is None:
            continue
        try:
            workload, found = workload_of(parse_run(cell.config))
        except (ConfigError, TraceError, KeyError, OSError):
            continue
        if found != digest:
            continue
        file = f"workloads/{digest}.parquet"
        (folder / file).write_bytes(encode_arrow(frozen(workload)))
        packing.workloads[digest] = {"file": file, "num_requests": len(workload.requests)}
        lacking.pop(digest)
    if lacking:
        campaign = str(frame["campaign"].iloc[0])
        packing.notes.append(
            f"{campaign}: {len(lacking)} workloads cannot be made again and are not packed: "
            + json.dumps([digest[:16] for digest in lacking])
        )


def run(arguments: Sequence[str]) -> int:
    """Exit code of the command."""
    return run_command(main, arguments, ArchiveError)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
