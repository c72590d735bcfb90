"""python -m figures campaign=q6 [figure=6] [ledger=DIR] [out=DIR] [seeds=FIRST-LAST]

Redraws the figures of a campaign from its ledger alone, as PDF, SVG and PNG in <ledger>/analysis.
"""

import sys
from collections.abc import Callable, Sequence

from matplotlib.figure import Figure
from rich.console import Console

from analysis.command import parse, run
from analysis.families import AnalysisConfig
from analysis.runs import Runs
from figures import figure6, style

FIGURES: dict[str, Callable[[Runs, AnalysisConfig], Figure]] = {"6": figure6.draw}


def main(arguments: Sequence[str]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if not arguments or "--help" in arguments:
        console.print((__doc__ or "").strip(), markup=False)
        return
    request = parse(arguments, kind="figure", known=tuple(FIGURES))
    runs = request.read_runs()
    style.use()
    for name in request.names:
        paths = style.save(FIGURES[name](runs, request.config), request.out, f"figure-{name}")
        console.print(f"figure {name}, {runs.origin}: {', '.join(map(str, paths))}")


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
