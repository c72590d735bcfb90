"""python benchmarks/history.py [--append] [--slower PERCENT] [--last ROWS]

The speed of the simulator from commit to commit, in benchmarks/history.jsonl. Without arguments it
shows the last rows, and where one is slower than the row before it of the same core, processor and
Python.

`--append` measures each core in processes of its own, in turn, and adds a row for each. Absolute
times say little about a commit: the machine has other work. So a row has ratios to a yardstick, a
piece of Python that no commit changes, timed in the same process just before and after. Every
figure is the best of all tries, in time on the core.
"""

import argparse
import gc
import heapq
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from bench_sim import ORGANIZATIONS, run_config, time_run, time_scheduling
from rich.table import Table

from hsexp.config.catalog import read_option
from hsexp.console import make_console
from hsexp.core import CORE
from hsexp.ledger.provenance import Provenance
from hsexp.workload import build

HISTORY = Path(__file__).with_name("history.jsonl")
ROUNDS = 3
"""Processes of each core."""
TRIES = 5
"""Of each figure in a process."""
CORES = ("compiled", "pure")

Row = dict[str, Any]


def yardstick() -> int:
    """Work of the kind that a simulation is: dictionaries, a heap, integers. Never change it."""
    heap: list[int] = []
    due: dict[int, int] = {}
    total = 0
    for number in range(20_000):
        key = number * 2_654_435_761 % 65_521
        heapq.heappush(heap, key)
        due[key] = due.get(key, 0) + number
        if number % 3 == 0:
            total += due.pop(heapq.heappop(heap), 0)
    return total


# -- one process -----------------------------------------------------------------------------------


def measure() -> dict[str, float]:
    """Milliseconds of the yardstick, and of Q1's main cell under b83, by what was timed."""
    acts: dict[str, Callable[[], float]] = {"yardstick": _timed_yardstick}
    for organization in ORGANIZATIONS:
        config = run_config(organization, budget=read_option("budget", "b83"))
        workload = build(config.workload, config.arrivals, config.seed)
        for name, timing in (("run", time_run), ("core", time_scheduling)):
            acts[f"{name} {organization}"] = partial(_seconds, timing, config, workload)
    best = dict.fromkeys(acts, float("inf"))
    for _ in range(TRIES):
        for name, act in acts.items():
            gc.collect()
            best[name] = min(best[name], 1e3 * act())
    return best


def _timed_yardstick() -> float:
    start = time.process_time()
    yardstick()
    return time.process_time() - start


def _seconds(timing: Callable[..., Any], *arguments: Any) -> float:
    seconds: float = timing(*arguments, time.process_time).seconds
    return seconds


# -- rows ------------------------------------------------------------------------------------------


def rows() -> list[Row]:
    """Measure both cores, in turn; a core that does not run here has no row."""
    found: dict[str, list[dict[str, float]]] = {}
    provenance: dict[str, Any] = {}
    for _ in range(ROUNDS):
        for core in CORES:
            done = subprocess.run(
                [sys.executable, __file__, "--measure"],
                env={**os.environ, "HSEXP_CORE": "pure" if core == "pure" else "auto"},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            report = json.loads(done.stdout)
            if report["core"] == core:
                found.setdefault(core, []).append(report["ms"])
                provenance[core] = report["provenance"]
    return [_row(core, tries, provenance[core]) for core, tries in found.items()]


def _row(core: str, tries: Iterable[Mapping[str, float]], provenance: Mapping[str, Any]) -> Row:
    tries = list(tries)
    best = {name: min(each[name] for each in tries) for name in tries[0]}
    yardstick_ms = best.pop("yardstick")
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": provenance["code_version"],
        "core": core,
        "cpu": provenance["host"]["cpu"],
        "num_cores": provenance["host"]["num_cores"],
        "versions": provenance["versions"],
        "yardstick_ms": round(yardstick_ms, 3),
        "ratios": {name: round(ms / yardstick_ms, 3) for name, ms in best.items()},
        "runs_a_minute": {
            name.removeprefix("run "): round(60_000 / ms)
            for name, ms in best.items()
            if name.startswith("run ")
        },
    }


def read(history: Path = HISTORY) -> list[Row]:
    if not history.exists():
        return []
    return [json.loads(line) for line in history.read_text(encoding="utf-8").splitlines()]


def slower(before: Row, row: Row, *, percent: float) -> list[str]:
    """What takes more of the yardstick than in an earlier row, with the growth in percent."""
    growth = {
        name: 100 * (ratio / before["ratios"][name] - 1)
        for name, ratio in row["ratios"].items()
        if name in before["ratios"]
    }
    return [f"{name} {grown:+.0f} %" for name, grown in growth.items() if grown > percent]


def previous(history: list[Row], place: int) -> Row | None:
    """The row before one that can be compared with it: the same core, processor and Python."""
    row = history[place]
    for other in reversed(history[:place]):
        if _machine(other) == _machine(row):
            return other
    return None


def _machine(row: Row) -> tuple[Any, ...]:
    return row["core"], row["cpu"], row["versions"]["python"]


# -- what it prints --------------------------------------------------------------------------------


def table(history: list[Row], *, last: int, percent: float) -> Table:
    shown = Table(title="Times over the yardstick's; run: a whole run, core: scheduler and memory")
    names = list(dict.fromkeys(name for row in history[-last:] for name in row["ratios"]))
    for heading in (
        "commit",
        "core",
        *names,
        "runs a minute",
        f"slower by more than {percent:g} %",
    ):
        shown.add_column(heading, justify="left" if heading in ("commit", "core") else "right")
    for place in range(max(len(history) - last, 0), len(history)):
        row, before = history[place], previous(history, place)
        found = [] if before is None else slower(before, row, percent=percent)
        shown.add_row(
            row["commit"].partition("+")[2],
            row["core"],
            *(f"{row['ratios'][name]:.2f}" if name in row["ratios"] else "" for name in names),
            " ".join(f"{name} {runs:,}" for name, runs in row["runs_a_minute"].items()),
            "; ".join(found),
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--append", action="store_true", help="measure, and add the rows")
    parser.add_argument("--slower", type=float, default=10.0, metavar="PERCENT")
    parser.add_argument("--last", type=int, default=10, metavar="ROWS")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        provenance = asdict(Provenance.collect())
        json.dump({"core": CORE.name, "ms": measure(), "provenance": provenance}, sys.stdout)
        return
    if arguments.append:
        with HISTORY.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows())
    console = make_console()
    console.print(f"{platform.machine()}, {HISTORY.name}")
    console.print(table(read(), last=arguments.last, percent=arguments.slower))


if __name__ == "__main__":
    main()
