"""The traced run that a command names, and what ran."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.command import parse_pairs
from analysis.errors import AnalysisError
from hsexp.config.axes import ARM_AXES
from hsexp.ledger import Ledger, LedgerError, is_simulated
from hsexp.ledger.journal import NoTableError
from hsexp.trace import Trace, TraceError

HOW_TO_TRACE = (
    "trace=true traces runs: `python -m hsexp campaign=NAME trace=true ledger=DIR`; campaign=q7 "
    "always has traced runs"
)

_MOST_LISTED = 12
"""Runs that a message lists."""


@dataclass(frozen=True, kw_only=True)
class TracedRun:
    """One attempt with its trace."""

    attempt_id: str
    row: Mapping[str, Any]
    """The attempt's row of the ledger."""
    trace: Trace

    @property
    def is_simulated(self) -> bool:
        return is_simulated(self.row["data_kind"])

    @property
    def origin(self) -> str:
        """What produced it: simulated runs are never called measured."""
        return (
            f"{self.row['data_kind']} (engine {self.row['engine']}, device {self.row['device']}, "
            f"time model {self.row['time_model']})"
        )

    @property
    def campaign(self) -> str:
        return str(self.row["campaign"])

    @cached_property
    def settings(self) -> dict[str, str]:
        """Axes and seed, as texts."""
        return settings_of(self.row)

    @property
    def cap(self) -> int | None:
        """Most running requests; None if the row lacks it."""
        cap = self.row.get("cap")
        return None if cap is None or pd.isna(cap) else int(cap)


def open_run(given: Mapping[str, str]) -> TracedRun:
    """The run that `ledger=` and `run=` name.

    Raises:
        AnalysisError: a value is missing or wrong, the run has no trace, or its trace is not whole.
    """
    if "ledger" not in given:
        raise AnalysisError("ledger= is required: the folder of a ledger with a traced run")
    path = Path(given["ledger"])
    try:
        ledger = Ledger.read(path)
        attempts = ledger.attempts()
    except LedgerError as error:
        raise AnalysisError(f"ledger={error}") from None
    attempt_id = _attempt(ledger, attempts, given.get("run"), path)
    row = _records(attempts[attempts["attempt_id"] == attempt_id])[0]
    try:
        trace = ledger.trace(attempt_id)
    except NoTableError:
        raise AnalysisError(f"run={attempt_id}: it has no trace; {HOW_TO_TRACE}") from None
    except (LedgerError, TraceError) as error:
        raise AnalysisError(f"run={attempt_id}: {error}") from None
    return TracedRun(attempt_id=attempt_id, row=row, trace=trace)


def settings_of(row: Mapping[str, Any]) -> dict[str, str]:
    """Axes of an attempt and its seed, as texts, in the order in which plans nest them."""
    names = [*(axis.name for axis in ARM_AXES), "seed"]
    return {name: _text(row[name]) for name in names if name in row and not pd.isna(row[name])}


def one_line(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items() if name != "trace")


def _attempt(ledger: Ledger, attempts: pd.DataFrame, run: str | None, path: Path) -> str:
    """The attempt that `run` names, or the only traced one."""
    accepted = ledger.accepted()
    if run is not None:
        known = set(attempts["attempt_id"]) if len(attempts) else set()
        if run not in known and run not in accepted:
            traced = _traced(ledger, attempts)
            listed = f"; traced runs: {_listed(traced)}" if traced else f"; {HOW_TO_TRACE}"
            raise AnalysisError(f"run={run}: {path} has no such attempt or accepted cell{listed}")
        return run if run in known else accepted[run]
    traced = _traced(ledger, attempts)
    if not traced:
        raise AnalysisError(f"ledger={path}: no run has a trace; {HOW_TO_TRACE}")
    if len(traced) > 1:
        raise AnalysisError(
            f"run= is required, because ledger={path} has {len(traced)} traced runs: "
            f"{_listed(traced)}"
        )
    return str(traced[0]["attempt_id"])


def _traced(ledger: Ledger, attempts: pd.DataFrame) -> list[dict[str, Any]]:
    return [row for row in _records(attempts) if ledger.has_trace(row["attempt_id"])]


def _records(attempts: pd.DataFrame) -> list[dict[str, Any]]:
    rows: Any = attempts.to_dict("records")
    return list(rows)


def _listed(rows: list[dict[str, Any]]) -> str:
    """Runs by what distinguishes them."""
    shown = rows[:_MOST_LISTED]
    settings = [settings_of(row) for row in shown]
    every = dict.fromkeys(name for each in settings for name in each)
    varied = [name for name in every if len({each.get(name) for each in settings}) > 1]
    lines = [
        f"\n  run={row['attempt_id']}  "
        + ", ".join(f"{name} {each[name]}" for name in varied if name in each)
        for row, each in zip(shown, settings, strict=True)
    ]
    more = len(rows) - len(shown)
    return "".join(lines) + (f"\n  and {more} more" if more else "")


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def write_view(arguments: Sequence[str], name: str, view: Callable[[TracedRun], str]) -> Path:
    """Write a view of the run that `ledger=` and `run=` name, to `out=`. Returns its path.

    Args:
        name: of the file beside the ledger's other output; `{}` stands for the attempt.
        view: the text of the file; it may raise TraceError.

    Raises:
        AnalysisError: an argument is refused, the events contradict each other, or the file cannot
            be written.
    """
    given = parse_pairs(arguments, keys=("ledger", "run", "out"))
    run = open_run(given)
    default = Path(given["ledger"]) / "analysis" / name.format(run.attempt_id)
    path = Path(given["out"]) if "out" in given else default
    try:
        text = view(run)
    except TraceError as error:
        raise AnalysisError(f"run={run.attempt_id}: {error}") from None
    write_text(path, text)
    return path


def write_text(path: Path, text: str) -> None:
    """Write a file of a view, and the folder that it lies in.

    Raises:
        AnalysisError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise AnalysisError(f"out={path}: cannot be written: {error.strerror}") from None
