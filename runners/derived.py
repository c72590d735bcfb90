"""What follows from the ledgers of a folder: the tables and figures of a campaign.

A text in them names places as the folder has them (`ledgers/q6/sim`), never where the folder lies.
"""

from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path

from analysis.__main__ import make_requested
from analysis.command import Request, parse
from analysis.config import GENERIC
from analysis.errors import AnalysisError, NoInputsError
from analysis.tables import TABLES
from analysis.tables.table import Table, write

_LEDGERS = Path("ledgers")


def make_tables(
    folder: Path, campaign: str, engine: str, *, seeds: Sequence[int] | None, out: Path
) -> int:
    """Make every table of a campaign that its ledger has runs for, as CSV, LaTeX and Markdown.

    Args:
        folder: holds `ledgers/<campaign>/<engine>`.
        seeds: seeds that replace the campaign's; None uses those.

    Returns how many there are. Runs that no table of the campaign covers end in that of settings.

    Raises:
        AnalysisError: a table is refused.
    """
    out = out.absolute()
    with chdir(folder):
        for request in _requests("table", campaign, engine, seeds):
            made = [table for _, table in make_requested(request) if isinstance(table, Table)]
            for table in made:
                write(table, out)
            if made:
                return len(made)
    return 0


def make_figures(
    folder: Path, campaign: str, engine: str, *, seeds: Sequence[int] | None, out: Path
) -> list[str]:
    """Draw the figures of a campaign. Returns why one could not be drawn."""
    from figures import FIGURES, style

    out, lacking = out.absolute(), []
    style.use()
    with chdir(folder):
        for request in _requests("figure", campaign, engine, seeds):
            drawn = False
            for name in request.names:
                try:
                    style.save(FIGURES[name].from_ledgers(request.ledgers), out, f"figure-{name}")
                    drawn = True
                except AnalysisError as error:
                    first = str(error).partition("; ")[0]
                    lacking.append(f"{campaign}: no figure {name}: {first}")
            if drawn:
                break
    return lacking


def _requests(
    kind: str, campaign: str, engine: str, seeds: Sequence[int] | None
) -> "list[Request]":
    """The campaign's own tables or figures, then the general ones, in case it has none."""
    from figures import FIGURES

    arguments = [
        f"campaign={campaign}",
        f"ledger={_LEDGERS / campaign / engine}",
        f"ledgers={_LEDGERS}",
    ]
    narrowed = [] if seeds is None else [f"seeds={list(seeds)}"]
    requests = []
    for further in (narrowed, [f"{kind}={GENERIC[0]}"]):
        try:
            if kind == "table":
                requests.append(parse([*arguments, *further], kind="table", known=tuple(TABLES)))
            else:
                requests.append(parse([*arguments, *further], kind="figure", known=tuple(FIGURES)))
        except NoInputsError:
            continue
    return [request for request in requests if request.names]
