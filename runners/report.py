"""Printed progress of a launch: a bar over its cells, one line per fault, a first and a last line.

If the console is not a terminal, the bar is not drawn and the lines remain.
"""

from collections.abc import Iterable
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from hsexp.plan.cells import Cell, Plan


class LaunchReport:
    """Prints the progress of one launch; a context manager that owns the bar."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._plan = plan
        self._console = console
        self._printed: set[str] = set()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _RateColumn(),
            TimeRemainingColumn(),
            _FailureColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._bar = self._progress.add_task(plan.campaign, total=len(plan.cells), failed=0)

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
        self._progress.update(self._bar, advance=1, failed=failed)

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


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed * 60:.0f} runs/min")


class _FailureColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        failed = task.fields["failed"]
        return Text(f"{failed} failed" if failed else "", style="red")
