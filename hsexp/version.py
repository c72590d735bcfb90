"""python -m hsexp.version: what runs here, in a line: hsexp, Python, and which core."""

import platform
import sys

from hsexp import __version__
from hsexp.console import make_console
from hsexp.core import CORE, CoreError
from hsexp.ending import end_well


def main() -> int:
    """Run the command line. Returns the exit code."""
    core = CORE.name if CORE.fault is None else f"{CORE.name} ({CORE.fault})"
    line = f"hsexp {__version__}, Python {platform.python_version()}, core {core}"
    make_console().print(line, markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(end_well(main, CoreError))
