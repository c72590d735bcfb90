"""python -m hsexp report campaign=q6 [ledger=DIR] [ledgers=ROOT] [seeds=FIRST-LAST] [metric=NAME]
                       [adoption=complete_case] [out=FILE.html] [config_dir=DIR]
python -m hsexp report ledger=DIR
python -m hsexp report campaign=paper [ledgers=ROOT] [fresh=DIR] [engine=sim] [seeds=SEEDS]
                       [pages=false]

Makes the page of a campaign again, from its ledger alone: <ledger>/report.html, or
ROOT/report-NAME.html for a campaign that needs no run. campaign=paper makes ROOT/report.html, with
one line a question, and the page of every campaign that has a ledger below ROOT.

  ledger=DIR    any ledger, also of a campaign of your own
  pages=false   leaves the pages of the single campaigns as they are
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from analysis.command import LEDGERS, parse, run
from analysis.errors import AnalysisError
from analysis.tables import TABLES
from figures.report.index import COLLECTION_KIND, index, report_members
from figures.report.page import report
from hsexp.config.catalog import options, read_file
from hsexp.console import make_console


def main(arguments: Sequence[str]) -> None:
    """Make the pages that a command line asks for.

    Raises:
        AnalysisError, ConfigError, LedgerError: an argument is refused, or a page cannot be made.
    """
    console = make_console()
    if not arguments or "--help" in arguments:
        console.print((__doc__ or "").strip(), markup=False)
        return
    name = _value(arguments, "campaign")
    if name is not None and _is_collection(name):
        _report_all(name, [item for item in arguments if item != f"campaign={name}"], console)
        return
    out = _value(arguments, "out")
    request = parse(
        [item for item in arguments if not item.startswith("out=")],
        kind="table",
        known=tuple(TABLES),
    )
    path = report(request, out=None if out is None else Path(out))
    console.print(f"report: {path}", markup=False)


def _report_all(name: str, arguments: Sequence[str], console: Console) -> None:
    """The index of a collection, and the page of each member that has a ledger."""
    makes_pages = _value(arguments, "pages") != "false"
    others = [item for item in arguments if not item.startswith("pages=")]
    root = Path(_value(arguments, "ledgers") or LEDGERS)
    if makes_pages:
        engine = _value(arguments, "engine") or "sim"
        for _, make in report_members(name, root, engine=engine):
            console.print(f"report: {make()}", markup=False)
    console.print(f"report: {index(name, others)}", markup=False)


def _is_collection(name: str) -> bool:
    if name not in options("campaign"):
        return False
    kind = read_file("campaign", name).get("campaign", {}).get("kind")
    return bool(kind == COLLECTION_KIND)


def _value(arguments: Sequence[str], key: str) -> str | None:
    """The value of an argument; `parse` checks all of them."""
    found = [item.partition("=")[2] for item in arguments if item.startswith(f"{key}=")]
    if len(found) > 1:
        raise AnalysisError(f"{key} is given twice: {' and '.join(found)}")
    return found[0] if found else None


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
