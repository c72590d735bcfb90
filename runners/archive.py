"""An archive of campaigns: a tar file, or its unpacked folder, whose manifest names every file.

    manifest.json                          size and SHA-256 of every other file, and what they are
    ledgers/<campaign>/<engine>/           journal and tables, as a launch left them
    tables/<campaign>/<engine>/, figures/...   made from those ledgers alone
    workloads/<digest>.parquet             the requests of every accepted run, frozen
    config/<campaign>/<engine>.yaml        the composed configuration of the last launch

Equal folders give equal bytes: names are sorted, and no time, owner or name of a machine is kept.
"""

import hashlib
import json
import os
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

MANIFEST = "manifest.json"
FORMAT = 1
"""Version of the manifest. A reader refuses any other."""

_FOLDERS = ("ledgers", "tables", "figures", "workloads", "config")


class ArchiveError(Exception):
    """An archive cannot be made, or is not what its manifest says."""


def write_manifest(folder: Path, said: dict[str, Any]) -> None:
    """Write the manifest of all files in a folder, with what else is said of them."""
    files = {name: _measure(folder / name) for name in _names(folder)}
    text = json.dumps({"format": FORMAT, **said, "files": files}, indent=1, ensure_ascii=False)
    (folder / MANIFEST).write_text(f"{text}\n", encoding="utf-8")


def write_tar(folder: Path, out: Path) -> None:
    """Write the files of a folder as a tar file that appears whole or not at all.

    Raises:
        ArchiveError: the file cannot be written.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{out.name}.", dir=out.parent)
    except OSError as error:
        raise ArchiveError(f"{out}: cannot be written: {error.strerror}") from None
    part = Path(name)
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar,
        ):
            for member in (MANIFEST, *_names(folder)):
                _add(tar, folder, member)
        part.chmod(0o644)
        part.replace(out)
    except OSError as error:
        raise ArchiveError(f"{out}: cannot be written: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def opened(path: Path) -> Iterator[Path]:
    """The folder of an archive: the given one, or that of a tar file, unpacked for a while.

    Raises:
        ArchiveError: it is neither; a member of the tar file is not a plain file inside of it.
    """
    if path.is_dir():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="hsexp-") as scratch:
        _unpack(path, Path(scratch))
        yield Path(scratch)


def read_manifest(folder: Path, shown: Path) -> dict[str, Any]:
    """The manifest of an archive's folder, once every file is what it says.

    Args:
        shown: what the user calls the archive.

    Raises:
        ArchiveError: the manifest is missing or unreadable; a file is missing, is not named, or
            has another size or SHA-256.
    """
    try:
        manifest: Any = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArchiveError(f"{shown} is not an archive of hsexp: it has no {MANIFEST}") from None
    except (OSError, ValueError) as error:
        raise ArchiveError(f"{shown}: {MANIFEST} cannot be read: {error}") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise ArchiveError(f"{shown}: {MANIFEST} names no files")
    if manifest.get("format") != FORMAT:
        raise ArchiveError(
            f"{shown}: the format must be {FORMAT}, got {manifest.get('format')!r}; "
            "a newer hsexp made it"
        )
    named, there = set(manifest["files"]), set(_names(folder))
    if missing := sorted(named - there):
        raise ArchiveError(f"{shown}: {_some(missing)} missing")
    if unnamed := sorted(there - named):
        raise ArchiveError(f"{shown}: {_some(unnamed)} not in the manifest")
    for name, said in manifest["files"].items():
        found = _measure(folder / name)
        for what in ("bytes", "sha256"):
            if not isinstance(said, dict) or said.get(what) != found[what]:
                kind = "size" if what == "bytes" else "SHA-256"
                raise ArchiveError(f"{shown}: {name} does not have the {kind} of the manifest")
    return manifest


def _names(folder: Path) -> list[str]:
    """Every file of an archive but the manifest, by its path in it."""
    files = (path for path in folder.rglob("*") if not path.is_dir())
    return sorted(
        name for path in files if (name := path.relative_to(folder).as_posix()) != MANIFEST
    )


def _measure(path: Path) -> dict[str, Any]:
    if path.is_symlink() or not path.is_file():
        return {"bytes": None, "sha256": None}
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _add(tar: tarfile.TarFile, folder: Path, name: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = (folder / name).stat().st_size
    entry.mode = 0o644
    with (folder / name).open("rb") as file:
        tar.addfile(entry, file)


def _unpack(path: Path, folder: Path) -> None:
    try:
        with tarfile.open(path, mode="r:") as tar:
            for entry in tar:
                name = PurePosixPath(entry.name)
                is_ours = entry.name == MANIFEST or name.parts[0] in _FOLDERS
                if not entry.isreg() or name.is_absolute() or ".." in name.parts or not is_ours:
                    raise ArchiveError(f"{path}: {entry.name!r} does not belong in an archive")
                if (folder / name).exists():
                    raise ArchiveError(f"{path}: {entry.name!r} is there twice")
                tar.extract(entry, folder, filter="data")
    except FileNotFoundError:
        raise ArchiveError(f"{path}: there is no such file or folder") from None
    except (tarfile.TarError, EOFError, IndexError, ValueError) as error:
        raise ArchiveError(f"{path} is not a tar file, or is cut short: {error}") from None
    except OSError as error:
        raise ArchiveError(f"{path}: cannot be unpacked: {error.strerror or error}") from None


def _some(names: list[str]) -> str:
    if len(names) == 1:
        return f"{names[0]} is"
    return f"{names[0]} and {len(names) - 1} more are"
