"""python -m analysis campaign=q6 [table=B-7] [ledger=DIR] [ledgers=ROOT] [source=paper]
                   [adoption=complete_case] [out=DIR] [seeds=FIRST-LAST] [metric=NAME]
                   [config_dir=DIR]

Makes the tables of a campaign, or one table by its name in the paper, from ledgers alone: printed,
and written as CSV, LaTeX and Markdown to <ledger>/analysis (tables over several campaigns:
<root>/analysis).

  table=E-5                        from the ledgers it needs, <root>/<campaign>/<engine>
  ledgers=ROOT                     that root; the default is ledgers/
  source=paper [table=E-5]         from the published values, beside the printed ones
  adoption=complete_case|invalid   how to treat a run in doubt (Appendix E.14)
  table=settings                   of any campaign: the settings of the whole ledger, best first
  metric=ttft_p99_s                what they are ranked by; a rate or a time of the ledger
  config_dir=DIR                   a folder with campaigns and options of your own

python -m analysis compare=paper [ledgers=ROOT] [fresh=DIR] [engine=sim]
                   [seeds=published|all|FIRST-LAST] [out=DIR]

Compares each published number with ours, and says what became of every one. Fresh seeds lead where
they have run, those of the paper stand beside them.

  fresh=DIR     ledgers of fresh seeds, DIR/<campaign>/<engine>; the default is ROOT/fresh
  seeds=all     one set of seeds instead: all that ROOT has, as of
                `python -m hsexp campaign=paper seeds=[...] ledger=ROOT`

python -m analysis export ledger=DIR [out=DIR]

Writes runs.parquet (one row an accepted run) and summary.json (settings and answers) again, beside
the ledger or to DIR. A launch does the same at its end.

python -m analysis calibrate ledger=DIR [ledger=DIR ...] [device=NAME] [out=FILE] [overwrite=true]
python -m analysis calibrate source=paper

Fits the step-time model to ledgers that were run with record_steps=true, and writes it to
conf-local/device/NAME.yaml, for `python -m hsexp --config-dir conf-local device=NAME`; with
config_dir=DIR, to DIR/device/NAME.yaml.

python -m analysis beside measured=DIR simulated=DIR [out=DIR]

Runs of a calibrated simulator beside the measured runs of the same requests.

python -m analysis timeline ledger=DIR [run=ATTEMPT_OR_CELL] [out=FILE.html]
python -m analysis perfetto ledger=DIR [run=ATTEMPT_OR_CELL] [out=FILE.json]
python -m analysis why ledger=DIR [run=ATTEMPT_OR_CELL] [request=ID]

One traced run (trace=true): as a page, as a file for Perfetto or Chrome, and why a request waited,
what it could have reused and who evicted it. Without request=, why lists the requests that lost
most by eviction and those that waited longest. Files go to <ledger>/analysis.
"""

import hsexp.starting  # noqa: F401, I001

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from analysis.calibration.command import calibrate
from analysis.calibration.device_file import how_to_use
from analysis.command import Request, parse, run
from analysis.compare.command import compare
from analysis.errors import NoInputsError
from analysis.export import command as export_command
from analysis.side_by_side import compare_ledgers
from analysis.tables import TABLES, derive, make
from analysis.tables.table import Table, write
from analysis.views.perfetto import perfetto
from analysis.views.timeline import timeline
from analysis.views.why import why
from hsexp.console import make_console

COMPARISON_WIDTH = 150
"""Characters in a line of the comparison; a narrower terminal wraps it."""


_UNBOUNDED = 10_000
"""Characters; wider than any table."""


def main(arguments: Sequence[str]) -> None:
    console = make_console()
    if not arguments or "--help" in arguments:
        console.print((__doc__ or "").strip(), markup=False)
        return
    match arguments[0].partition("=")[0]:
        case "compare":
            print_comparison(arguments, console)
        case "calibrate":
            tables, out, device = calibrate(arguments[1:])
            print_and_write(tables, out, console)
            if device is not None:
                console.print(f"device written: {device}", markup=False)
                console.print(f"to use it: {how_to_use(device)}", markup=False)
        case "beside":
            console.width = max(console.width, COMPARISON_WIDTH)
            print_and_write(*compare_ledgers(arguments[1:]), console)
        case "export":
            for path in export_command(arguments[1:]):
                console.print(f"written: {path}", markup=False)
        case "timeline":
            console.print(f"page written: {timeline(arguments[1:])}", markup=False)
        case "perfetto":
            path = perfetto(arguments[1:])
            console.print(f"trace written: {path}; open it at ui.perfetto.dev", markup=False)
        case "why":
            console.print(why(arguments[1:]), markup=False)
        case _:
            make_tables(arguments, console)


Made = tuple[str, Table | NoInputsError]
"""A requested table by its name, or why it has no inputs."""


def make_tables(arguments: Sequence[str], console: Console) -> tuple[Request, list[Made]]:
    """Print and write the requested tables. Returns the request and what became of each table.

    Raises:
        NoInputsError: no table has inputs.
        AnalysisError, ConfigError: an argument or a table is refused.
    """
    request = parse(arguments, kind="table", known=tuple(TABLES))
    made: list[Made] = []

    def kept() -> Iterator[Made]:
        for each in make_requested(request):
            made.append(each)
            yield each

    print_tables(kept(), request.out, console)
    return request, made


def print_comparison(arguments: Sequence[str], console: Console) -> list[Table]:
    """Print and write the tables of a comparison, and return them.

    Raises:
        AnalysisError: an argument is refused, or the ledgers do not allow the comparison.
    """
    console.width = max(console.width, COMPARISON_WIDTH)
    tables, out = compare(arguments)
    print_and_write(tables, out, console)
    return tables


def make_requested(request: Request) -> Iterator[Made]:
    """Each requested table, or why it has no inputs.

    Raises:
        AnalysisError, ConfigError: a table is refused.
    """
    for name in request.names or tuple(TABLES):
        try:
            if request.source == "ledger":
                yield name, make(name, request.ledgers)
            else:
                yield name, derive(name, request.ledgers.adoption)
        except NoInputsError as error:
            yield name, error


def print_tables(tables: Iterable[Made], folder: Path | None, console: Console) -> None:
    """Print and write each table as it is made, then name the tables without inputs.

    Args:
        folder: where the tables are written; None writes nothing.

    Raises:
        NoInputsError: no table has inputs.
    """
    lacking: dict[str, str] = {}
    num_tables = 0
    for name, table in tables:
        if isinstance(table, Table):
            num_tables += 1
            print_and_write([table], folder, console)
        else:
            lacking[name] = str(table)
    if num_tables == 0:
        raise NoInputsError("; ".join(dict.fromkeys(lacking.values())))
    for name, reason in lacking.items():
        console.print(f"{name}: {reason}", markup=False)


def print_and_write(tables: Iterable[Table], folder: Path | None, console: Console) -> None:
    """Show tables, write each in all formats, and print the paths. None only shows them."""
    for table in tables:
        show(table, console)
        if folder is None:
            console.print()
            continue
        paths = write(table, folder)
        console.print(f"  written: {', '.join(str(path) for path in paths)}\n")


def show(table: Table, console: Console) -> None:
    """Print a table part by part, then its notes and missing cells."""
    heading = Text(f"{table.name}  ", style="bold").append(table.caption, style="not bold")
    console.print(heading, soft_wrap=False)
    for view in table.views:
        rich = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        groups = [""] + [column.group for column in view]
        for column, before in zip(view, groups, strict=False):
            group = column.group if column.group != before else ""
            rich.add_column(
                Text(f"{group}\n{column.heading}" if any(groups) else column.heading),
                justify="right" if column.numeric else "left",
                no_wrap=True,
            )
        for line in table.cells(view):
            rich.add_row(*map(Text, line))
        # Never cropped: a narrow terminal wraps long lines.
        unbounded = console.options.update(width=_UNBOUNDED)
        width = console.width
        console.width = max(width, Measurement.get(console, unbounded, rich).maximum)
        console.print(rich)
        console.width = width
    for remark in table.remarks:
        console.print(Text(f"  {remark}", style="dim"), soft_wrap=False)
    for text in table.closing:
        console.print(f"\n{text}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
