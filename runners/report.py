"""Printed progress of a launch: a bar over its cells, one line per fault, a first and a last line.

The bar is one line at any width: what does not fit is left out. If the console is not a terminal,
the bar is not drawn and the lines remain.
"""

import time
from collections.abc import Iterable
from typing import Self

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from hsexp.plan.cells import Cell, Plan
from runners.pace import Pace, clock

_BAR_WIDTH = 40
_MIN_BAR_WIDTH = 8
"""Columns; a shorter bar says nothing."""


class LaunchReport:
    """Prints the progress of one launch; a context manager that owns the bar."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._plan = plan
        self._console = console
        self._printed: set[str] = set()
        self._num_ended = 0
        self._progress = Progress(
            _LineColumn(console, plan.campaign),
            console=console,
            disable=not console.is_interactive,
        )
        self._bar = self._progress.add_task(
            plan.campaign, total=len(plan.cells), failed=0, num_ended=0
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def begin(self, *, accepted: int, notices: Iterable[str]) -> None:
        for notice in notices:
            self._print(notice)
        planned = len(self._plan.cells)
        self._progress.update(self._bar, completed=accepted)
        self._print(f"{planned} cells, {accepted} already accepted, {planned - accepted} to run")

    def advance(self, *, failed: int) -> None:
        """Count one more ended cell; `failed` cells have failed so far."""
        self._num_ended += 1
        self._progress.update(self._bar, advance=1, failed=failed, num_ended=self._num_ended)

    def failure(self, cell: Cell, reason: str) -> None:
        axes = " ".join(f"{name}={value}" for name, value in cell.axes.items())
        self._print_once(reason, f"failed: {axes}: {reason}")

    def waiting(self, num_cells: int) -> None:
        self._print_once("waiting", f"waiting for {num_cells} cells that another process runs")

    def stop(self, *, recorded: int) -> None:
        self._print(
            f"stopped; {recorded} runs of this launch are recorded; rerun the command to resume"
        )

    def end(self, text: str) -> None:
        self._print(text)

    def _print_once(self, key: str, text: str) -> None:
        """Print a line once per key, so that one fault in all cells is one line."""
        if key not in self._printed:
            self._printed.add(key)
            self._print(text)

    def _print(self, text: str) -> None:
        line = f"{self._plan.campaign}: {text}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class _LineColumn(ProgressColumn):
    """The whole line. Redrawn often, so that the time left falls between two ends, too."""

    max_refresh = 0.5

    def __init__(self, console: Console, campaign: str) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self._console = console
        self._campaign = campaign
        self._start = time.monotonic()

    def render(self, task: Task) -> Table:
        text = self._text(task)
        line = Table.grid(padding=(0, 1, 0, 0))
        room = self._console.width - len(text) - 1
        if room < _MIN_BAR_WIDTH:
            line.add_row(text)
        else:
            bar = ProgressBar(
                total=task.total, completed=task.completed, width=min(room, _BAR_WIDTH)
            )
            line.add_row(bar, text)
        return line

    def _text(self, task: Task) -> Text:
        """As many parts as fit: how many are done comes first and stays longest."""
        total = task.total or 0
        pace = Pace(num_ended=task.fields["num_ended"], seconds=time.monotonic() - self._start)
        left_s = pace.seconds_for(round(total - task.completed))
        failed = task.fields["failed"]
        parts = {
            "done": Text(f"{task.completed:.0f}/{total:.0f} done"),
            "failed": Text(f"{failed} failed" if failed else "", style="red"),
            "left": Text("" if left_s is None or not left_s else f"{clock(left_s)} left"),
            "rate": Text(str(pace)),
            "campaign": Text(self._campaign),
        }
        shown = [name for name, part in parts.items() if part]
        while True:
            order = ("campaign", "done", "failed", "rate", "left")
            line = Text(", ").join(parts[name] for name in order if name in shown)
            if len(line) <= self._console.width - 1 or len(shown) == 1:
                return line
            shown.pop()
