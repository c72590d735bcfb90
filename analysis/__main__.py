"""python -m analysis campaign=q6 [table=B-7] [ledger=DIR] [out=DIR] [seeds=FIRST-LAST]

Regenerates the tables of a campaign from its ledger alone: printed, and written to
<ledger>/analysis as CSV, LaTeX and Markdown.
"""

import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from analysis.command import parse, run
from analysis.tables import TABLES
from analysis.tables.table import Table, write


def main(arguments: Sequence[str]) -> None:
    console = Console(highlight=False)
    if not arguments or "--help" in arguments:
        console.print((__doc__ or "").strip(), markup=False)
        return
    request = parse(arguments, kind="table", known=tuple(TABLES))
    runs = request.read_runs()
    for name in request.names:
        table = TABLES[name](runs, request.config)
        show(table, console)
        paths = write(table, request.out)
        console.print(f"  written: {', '.join(str(path) for path in paths)}\n", soft_wrap=True)


def show(table: Table, console: Console) -> None:
    """Print a table part by part, then its notes and missing cells."""
    console.print(Text(f"{table.name}  ", style="bold").append(table.caption, style="not bold"))
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
        console.print(rich)
    for remark in table.remarks:
        console.print(Text(f"  {remark}", style="dim"))


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
