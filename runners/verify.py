"""python -m hsexp verify FILE.tar|DIR [config_dir=DIR]

Checks an archive of `python -m hsexp pack`, or its unpacked folder: size and SHA-256 of every file,
the tables of the ledgers, the digests of the frozen requests, and that every table of the archive
is made again, bit for bit, from its ledgers alone. Writes nothing.
"""

import hsexp.starting  # noqa: F401, I001

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hsexp.shadows import guard

guard("analysis", "figures")

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.command import run as run_command
from hsexp.console import make_console
from hsexp.ledger import Ledger, Provenance
from hsexp.ledger.provenance import package_versions
from hsexp.workload.frozen import thawed
from runners.archive import ArchiveError, opened, read_manifest
from runners.derived import make_tables


def main(arguments: Sequence[str]) -> None:
    """
    Raises:
        ArchiveError: the archive is not what its manifest says.
        LedgerError: one of its ledgers is damaged.
    """
    console = make_console()
    if not arguments or "--help" in arguments:
        console.print((__doc__ or "").strip(), markup=False)
        return
    if len(arguments) > 1:
        raise ArchiveError(f"verify takes one archive, got {' '.join(arguments)}")
    path = Path(arguments[0])
    with opened(path) as folder:
        manifest = read_manifest(folder, path)
        num_bytes = sum(each["bytes"] for each in manifest["files"].values())
        console.print(
            f"{path}: {len(manifest['files'])} files, {num_bytes / 1e6:.1f} MB: every size and "
            "SHA-256 is that of the manifest",
            markup=False,
        )
        try:
            num_runs = _check_ledgers(folder, manifest)
            _check_workloads(folder, manifest)
            num_files = _remake_tables(folder, manifest)
        except (KeyError, TypeError, AttributeError) as error:
            raise ArchiveError(f"{path}: the manifest lacks {error}") from None
    console.print(f"ledgers: {len(manifest['ledgers'])}, runs: {num_runs}; every table is whole")
    console.print(f"workloads: {len(manifest['workloads'])}; every one has its digest")
    console.print(f"{num_files} files of tables: made again from the ledgers, bit for bit")
    for note in manifest["notes"]:
        console.print(f"the archive says: {note}", markup=False)


def _check_ledgers(folder: Path, manifest: Mapping[str, Any]) -> int:
    """
    Raises:
        ArchiveError: a ledger is not the one of the manifest.
        LedgerError: it is damaged.
    """
    num_runs = 0
    for journal in sorted(folder.glob("ledgers/*/*/journal.jsonl")):
        Ledger.read(journal.parent).check_tables()
    for said in manifest["ledgers"]:
        ledger = Ledger.read(folder / said["ledger"])
        if ledger.digest != said["digest"]:
            raise ArchiveError(f"{said['ledger']} is not the ledger of the manifest")
        num_runs += len(ledger.accepted())
    return num_runs


def _check_workloads(folder: Path, manifest: Mapping[str, Any]) -> None:
    """
    Raises:
        ArchiveError: the requests of a file have another digest than its name.
    """
    for digest, said in manifest["workloads"].items():
        try:
            workload = thawed(pq.read_table(folder / said["file"]), digest)
        except (pa.ArrowException, ValueError, OSError) as error:
            raise ArchiveError(f"{said['file']}: {error}") from None
        if workload.digest != digest:
            raise ArchiveError(f"{said['file']}: the requests have the digest {workload.digest}")


def _remake_tables(folder: Path, manifest: Mapping[str, Any]) -> int:
    """Make every table again. Returns the number of files.

    Raises:
        ArchiveError: one differs; says so if other code or packages made it.
    """
    with tempfile.TemporaryDirectory(prefix="hsexp-") as scratch:
        for said in manifest["ledgers"]:
            place = f"{said['campaign']}/{said['engine']}"
            make_tables(
                folder,
                said["campaign"],
                said["engine"],
                seeds=said["seeds"],
                out=Path(scratch) / place,
            )
        packed, made = _contents(folder / "tables"), _contents(Path(scratch))
    for name in sorted(packed.keys() | made.keys()):
        if packed.get(name) != made.get(name):
            what = "is not made" if name not in made else "is made otherwise"
            raise ArchiveError(f"tables/{name} {what} from the ledgers here{_other(manifest)}")
    return len(packed)


def _contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def _other(manifest: Mapping[str, Any]) -> str:
    """What was different where the archive was made, in words; empty where nothing was."""
    ours, theirs = Provenance.collect().code_version, manifest["code_version"]
    changes = [] if ours == theirs else [f"hsexp {theirs}, here {ours}"]
    here, there = package_versions(), manifest["versions"]
    changes += [
        f"{name} {there.get(name, 'none')}, here {here.get(name, 'none')}"
        for name in ("numpy", "pandas", "scipy")
        if here.get(name) != there.get(name)
    ]
    return f"; it was packed by {'; '.join(changes)}" if changes else ""


def run(arguments: Sequence[str]) -> int:
    """Exit code of the command."""
    return run_command(main, arguments, ArchiveError)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
