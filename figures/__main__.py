"""python -m figures figure=2 [campaign=q1] [ledger=DIR] [ledgers=ROOT] [source=paper] [out=DIR]
                  [seeds=FIRST-LAST] [metric=NAME] [config_dir=DIR]

Draws the figures of a campaign, or one figure by its number in the paper, from ledgers alone, as
PDF, SVG and PNG in <ledger>/analysis (figures over several campaigns: <root>/analysis).

  figure=7                      from the ledgers it needs, <root>/<campaign>/<engine>
  ledgers=ROOT                  that root; the default is ledgers/
  source=paper [figure=7]       the published values alone, where the paper prints enough
  figure=settings               of any campaign: the settings of the whole ledger, best first
  metric=ttft_p99_s             what they are ranked by; a rate or a time of the ledger
  config_dir=DIR                a folder with campaigns and options of your own
"""

import sys
from collections.abc import Sequence

from matplotlib.figure import Figure
from rich.console import Console

from analysis.command import Request, parse, run
from figures import FIGURES, derive, style
from hsexp.console import make_console


def main(arguments: Sequence[str]) -> None:
    console = make_console()
    if not arguments or "--help" in arguments:
        console.print((__doc__ or "").strip(), markup=False)
        return
    draw(parse(arguments, kind="figure", known=tuple(FIGURES)), console)


def draw(request: Request, console: Console) -> dict[str, Figure]:
    """Draw and write each requested figure, and print its paths. Returns the figures by name.

    Raises:
        AnalysisError: a figure cannot be drawn.
    """
    from_paper = request.source == "paper"
    derivable = [name for name, entry in FIGURES.items() if entry.from_paper is not None]
    style.use()
    drawn: dict[str, Figure] = {}
    for name in request.names or (derivable if from_paper else ()):
        figure = derive(name) if from_paper else FIGURES[name].from_ledgers(request.ledgers)
        paths = style.save(figure, request.out, f"figure-{name}")
        console.print(f"figure {name}: {', '.join(map(str, paths))}")
        drawn[name] = figure
    return drawn


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
