"""python tests/wheel_on_pythons.py [PYTHON ...]

Builds the wheel and tries it in a fresh environment of every Python from 3.11 to 3.13: those given,
or all that are found. A campaign runs, is packed and is verified. `make test-pythons` does this.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUPPORTED = ("3.11", "3.12", "3.13")
_PLACES = ("~/.pyenv/versions/{}.*/bin/python", "~/.local/share/uv/python/cpython-{}*/bin/python3")
"""Where Pythons lie that are not on the path."""
SMALL = ("campaign=q6", "engine=sim", "seeds=[7]", "budget=b63", "workload.num_requests=4")


def main(given: list[str]) -> int:
    pythons = given or [found for version in SUPPORTED if (found := _found(version))]
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, str(ROOT))
        wheel = next(scratch.glob("hsexp-*.whl"))
        for number, python in enumerate(pythons):
            _try(python, wheel, scratch / str(number))
    lacking = [version for version in SUPPORTED if not given and not _found(version)]
    sys.stdout.write(f"not found here: {', '.join(lacking)}\n" if lacking else "")
    return 0 if pythons else 1


def _try(python: str, wheel: Path, place: Path) -> None:
    version = _run(python, "--version").strip()
    sys.stdout.write(f"{version}: {python}\n")
    _run(python, "-m", "venv", str(place))
    own = str(place / "bin" / "python")
    pip = (own, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--prefer-binary")
    _run(*pip, str(wheel))
    work = place / "work"
    work.mkdir()
    hsexp = str(place / "bin" / "hsexp")
    for arguments in (SMALL, ("pack", "campaign=q6"), ("verify", "q6.tar")):
        printed = _run(hsexp, *arguments, cwd=work)
    sys.stdout.write(f"  {printed.splitlines()[-1]}\n")


def _found(version: str) -> str | None:
    on_path = shutil.which(f"python{version}")
    if on_path is not None and _answers(on_path, version):
        return on_path
    for pattern in _PLACES:
        base, _, rest = pattern.format(version).removeprefix("~/").partition("*")
        for path in sorted(Path.home().glob(f"{base}*{rest}")):
            if _answers(str(path), version):
                return str(path)
    return None


def _answers(python: str, version: str) -> bool:
    """Whether it starts, and is that version: a shim may stand for one that is not there."""
    done = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
    return bool(re.match(rf"Python {re.escape(version)}\.", done.stdout))


def _run(*command: str, cwd: Path | None = None) -> str:
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
