"""python tests/engine/triton_versions.py [--folder FOLDER] [VERSION...]

Runs the kernels' tests under one Triton after the other: the GPU lock's, 3.6.0 (the one beside
PyTorch 2.11) and the newest on the package index, or the given ones. The exit status is the number
of versions whose tests failed.

A version lies in a folder of its own, by default in the environment, and is imported ahead of the
one that is installed there.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests" / "engine" / "test_kernels.py"
BESIDE_TORCH = "3.6.0"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")


def chosen_versions() -> list[str]:
    lock = (ROOT / "requirements" / "gpu.lock").read_text(encoding="utf-8")
    locked = re.findall(r"^triton==(\S+)", lock, re.MULTILINE)
    return list(dict.fromkeys([*locked, BESIDE_TORCH, newest()]))


def newest() -> str:
    """The newest version that the package index has for this Python."""
    options = ("--dry-run", "--ignore-installed", "--no-deps", "--upgrade", "--report", "-")
    done = subprocess.run([*PIP, *options, "triton"], check=True, capture_output=True, text=True)
    (package,) = json.loads(done.stdout)["install"]
    version: str = package["metadata"]["version"]
    return version


def environment_of(version: str, folder: Path) -> dict[str, str]:
    """An environment that imports this version; installs it at the first time."""
    if not (folder / f"triton-{version}.dist-info").exists():
        options = ("--no-deps", "--upgrade", "--target", str(folder))
        subprocess.run([*PIP, *options, f"triton=={version}"], check=True)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", "import triton; print(triton.__version__)"]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == version, f"imported {done.stdout.strip()} instead of {version}"
    return environment


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(sys.prefix) / "triton-versions")
    parser.add_argument("versions", nargs="*", metavar="VERSION")
    arguments = parser.parse_args()
    verdicts = {}
    for version in arguments.versions or chosen_versions():
        sys.stdout.write(f"== Triton {version}\n")
        sys.stdout.flush()
        environment = environment_of(version, arguments.folder.resolve() / version)
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", str(TESTS)]
        verdicts[version] = subprocess.run(command, env=environment, cwd=ROOT, check=False)
    failed = [version for version, done in verdicts.items() if done.returncode]
    for version in verdicts:
        sys.stdout.write(f"Triton {version}: {'failed' if version in failed else 'passed'}\n")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
