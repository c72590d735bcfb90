"""Where the commands write: whole lines, which a terminal wraps and a pipe does not."""

from rich.console import Console

_PIPED_WIDTH = 100_000
"""Columns where nobody watches, so that no table and no line is cut to a width."""


def make_console(*, stderr: bool = False) -> Console:
    """The console of a command, on standard output or on standard error."""
    console = Console(stderr=stderr, highlight=False, soft_wrap=True)
    if not console.file.isatty():  # colours may be forced on a pipe; a width may not
        console.width = _PIPED_WIDTH
        console.is_interactive = False  # nothing is drawn over what was printed
    return console
