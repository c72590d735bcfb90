"""vLLM's source distribution, from the package index that pip is configured for.

Only its tests are unpacked. Nothing of it is built: pip asks every source distribution for its
metadata, and gets them here from a stand-in for the build backend, so that no code of it runs.
"""

import hashlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from hsexp.user_cache import cache_folder

VERSION = "0.27.1"
SHA256 = "eec2d54d137ac1e59cb4c39226dfee1943eefc8f4788f5821d7300d6acbdb646"
ARCHIVE = f"vllm-{VERSION}.tar.gz"

_FOLDERS = ("tests/v1/core/", "tests/v1/kv_connector/unit/")
"""What is unpacked, with every `__init__.py` of `tests`. The second has helpers of the first."""

_STAND_IN = f"""
from pathlib import Path

def get_requires_for_build_wheel(config_settings=None):
    return []

def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    folder = Path(metadata_directory) / "vllm-{VERSION}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\\nName: vllm\\nVersion: {VERSION}\\n")
    return folder.name
"""


class NoSources(RuntimeError):
    """The source distribution is not to be had, or is another one."""


def archive() -> Path:
    """The distribution in the user's cache, downloaded the first time.

    Raises:
        NoSources: pip does not find it, or its digest is not the one above.
    """
    path = cache_folder() / "peer" / ARCHIVE
    if not path.exists() or _digest(path) != SHA256:
        _download(path)
    return path


def unpack_tests(path: Path, folder: Path) -> None:
    """Unpack the folders that the tests of V1's core need."""
    with tarfile.open(path) as tar:
        for member in tar:
            _, _, name = member.name.partition("/")
            is_package = name.startswith("tests/") and name.endswith("/__init__.py")
            file = tar.extractfile(member)
            if file is not None and (is_package or name.startswith(_FOLDERS)):
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read())


def _download(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent) as name:
        folder = Path(name)
        backend = folder / "stand_in" / "setuptools"
        backend.mkdir(parents=True)
        (backend / "__init__.py").touch()
        (backend / "build_meta.py").write_text(_STAND_IN, encoding="utf-8")
        wanted = folder / "wanted.txt"
        wanted.write_text(f"vllm=={VERSION} --hash=sha256:{SHA256}\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
        command += [
            "--quiet",
            "--no-deps",
            "--no-binary",
            "vllm",
            "--no-build-isolation",
            "--require-hashes",
        ]
        done = subprocess.run(
            [*command, "--requirement", str(wanted), "--dest", str(folder)],
            env=os.environ | {"PYTHONPATH": str(backend.parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        found = folder / ARCHIVE
        if done.returncode or not found.exists() or _digest(found) != SHA256:
            said = done.stderr.strip().splitlines() or ["pip downloaded another file"]
            raise NoSources(f"vllm {VERSION} as source, sha256 {SHA256}: {said[-1]}")
        found.replace(path)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
