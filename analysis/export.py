"""Files beside a ledger for other programs: `runs.parquet`, one row a run, and `summary.json`.

Both are made from the ledger alone, at the end of every launch and by
`python -m analysis export ledger=DIR`. Deleting them loses nothing.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from analysis.command import parse_pairs
from analysis.errors import AnalysisError, NoInputsError, NoRunsError
from analysis.runs import ORIGIN, THROUGHPUT
from analysis.settings import MEASURES, Place, Ranking, Setting, compare, rank
from hsexp.ledger import Ledger, encode_table
from hsexp.ledger.journal import write_durably, write_error
from hsexp.runs import flat_runs

RUNS, SUMMARY = "runs.parquet", "summary.json"


def command(arguments: Sequence[str]) -> list[Path]:
    """`ledger=DIR [out=DIR]`.

    Raises:
        AnalysisError: an argument is refused, or the ledger has no run.
        LedgerError: there is no ledger, or the files cannot be written.
    """
    given = parse_pairs(arguments, keys=("ledger", "out"))
    if "ledger" not in given:
        raise AnalysisError("ledger is required: python -m analysis export ledger=DIR")
    return export(Path(given["ledger"]), Path(given["out"]) if "out" in given else None)


def export(folder: Path, out: Path | None = None) -> list[Path]:
    """Write both files. Each appears whole or not at all. Returns their paths.

    Args:
        folder: the ledger.
        out: where to write; None writes beside the ledger's journal.

    Raises:
        NoRunsError: the ledger has no accepted run.
        LedgerError: there is no ledger, its rows do not belong together, or the disk refused.
    """
    target = folder if out is None else out
    # Of launches that end together, the last one reads what all have recorded.
    with _alone(target):
        ledger = Ledger.read(folder)
        runs = flat_runs(ledger)
        if runs.empty:
            raise NoRunsError(f"{folder}: the ledger has no accepted run")
        text = json.dumps(summary(ledger), indent=1, ensure_ascii=False, allow_nan=False)
        files = {RUNS: bytes(encode_table(runs)), SUMMARY: f"{text}\n".encode()}
        for name, data in files.items():
            write_durably(target / name, data)
    return [target / name for name in files]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    lock = FileLock(folder / f"{RUNS}.lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise write_error(folder, error) from error
    try:
        yield
    finally:
        lock.release()


def summary(ledger: Ledger) -> dict[str, Any]:
    """What a ledger says, as plain data: its settings, and the best one of each place."""
    frame, attempts = ledger.frame(), ledger.attempts()
    campaign = str(frame["campaign"].iloc[0])
    head = {
        "campaign": campaign,
        "ledger_digest": ledger.digest,
        **{name: str(frame[name].iloc[0]) for name in ORIGIN},
        "num_runs": len(frame),
        "seeds": sorted({int(seed) for seed in frame["seed"]}),
    }
    try:
        ranking = rank(frame, attempts, campaign=campaign, metric=THROUGHPUT)
    except NoInputsError:  # a check of the engine has no throughput
        return {**head, "places": []}
    return {
        **head,
        "without_a_run": list(ranking.missing),
        "metric": ranking.metric,
        "places": [
            {
                "axes": dict(place.axes),
                "answer": answer,
                "settings": [_setting(ranking, place, each) for each in place.settings],
            }
            for place, answer in zip(ranking.places, ranking.answers(), strict=True)
        ],
    }


def _setting(ranking: Ranking, place: Place, setting: Setting) -> Mapping[str, Any]:
    best = place.settings[0]
    found = None if setting is best else compare(best, setting, ranking.metric)
    interval = None if found is None else found.interval
    return {
        "axes": dict(setting.axes),
        "num_seeds": len(setting.rows),
        "means": {each.metric: _known(setting.mean(each.metric)) for each in MEASURES},
        "deviations": {each.metric: _known(setting.deviation(each.metric)) for each in MEASURES},
        "best_over_percent": None if found is None else found.change_percent,
        "interval_percent": None if interval is None else [interval.low, interval.high],
        "level": None if interval is None else interval.level,
        "num_pairs": None if found is None else found.num_pairs,
    }


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
