"""python benchmarks/trace_cost.py [--quick] [--cpu-time]

What a trace costs a step of vLLM's scheduler, as a ratio to the same scheduler without one.
Runs vLLM's scheduler without a model; needs vLLM's CPU build (make setup-cpu).

Both keep the record of a measured cell (`hsexp.engine.recording`); one also writes its trace to a
file. Timed are schedule(), update_from_output() and shutdown(), which writes the trace's end. Every
repetition runs both in turn and the next one the other way round. A ratio is the median over
repetitions, in brackets that of the best. What a trace costs a whole engine is a smaller ratio: the
last column says how much a step of 20 ms would grow.
"""

import logging
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table
from scheduler_cost import Load, Options, Run, Subject, run

from hsexp.console import make_console
from hsexp.engine.recording import KEY, TRACE_KEY, RecordingScheduler
from hsexp.trace import Trace
from hsexp.trace.file import read_trace_file

STEP_S = 0.020

SUBJECTS = tuple(
    Subject(name=name.upper(), organization=name, scheduler=RecordingScheduler)
    for name in ("s2", "d0", "s3")
)


class Files:
    """Where a scheduler writes, and what it has written."""

    def __init__(self, *, traced: bool) -> None:
        self._traced = traced

    def __call__(self, folder: Path) -> dict[str, str]:
        self.trace = folder / "trace.arrow"
        names = {KEY: str(folder / "engine.jsonl")}
        return names | ({TRACE_KEY: str(self.trace)} if self._traced else {})


def cost(done: Run) -> float:
    return (done.total_s + done.shutdown_s) / done.steps


def measure(subject: Subject, load: Load, clock: Any, repeats: int) -> dict[bool, list[Run]]:
    runs: dict[bool, list[Run]] = {False: [], True: []}
    for repeat in range(repeats):
        for traced in (False, True) if repeat % 2 else (True, False):
            runs[traced].append(run(subject, load, clock, files=Files(traced=traced)))
    return runs


def events_and_bytes(subject: Subject, load: Load, clock: Any, folder: Path) -> tuple[int, int]:
    """Events and bytes of the trace of one more run, which is verified."""

    def files(_: Path) -> dict[str, str]:
        return Files(traced=True)(folder)

    run(subject, load, clock, files=files)
    path = folder / "trace.arrow"
    return len(Trace(read_trace_file(path))), path.stat().st_size


def ratio(runs: dict[bool, list[Run]]) -> str:
    pairs = zip(runs[True], runs[False], strict=True)
    middle = median(cost(on) / cost(off) for on, off in pairs)
    return f"{middle:.2f} ({min(map(cost, runs[True])) / min(map(cost, runs[False])):.2f})"


def growth(runs: dict[bool, list[Run]]) -> str:
    pairs = zip(runs[True], runs[False], strict=True)
    return f"{median(cost(on) - cost(off) for on, off in pairs) / STEP_S:.2%}"


def main() -> None:
    options = Options.parse(__doc__)
    logging.disable(logging.WARNING)
    clock, loads = options.clock, options.loads
    repeats = 4 if options.is_quick else 10
    console = make_console()
    for load in loads:
        result = Table(title=f"{load.name}; {repeats} repetitions")
        for heading in (
            "",
            "steps",
            "events a step",
            "bytes an event",
            "ms a step, off",
            "on",
            "on / off",
            "growth of 20 ms",
        ):
            result.add_column(heading, justify="right")
        for subject in SUBJECTS:
            runs = measure(subject, load, clock, repeats)
            steps = runs[True][0].steps
            with tempfile.TemporaryDirectory() as folder:
                num_events, num_bytes = events_and_bytes(subject, load, clock, Path(folder))
            result.add_row(
                subject.name,
                f"{steps:,}",
                f"{num_events / steps:.1f}",
                f"{num_bytes / num_events:.0f}",
                *(f"{1e3 * median(map(cost, runs[traced])):.3f}" for traced in (False, True)),
                ratio(runs),
                growth(runs),
            )
        console.print(result)


if __name__ == "__main__":
    main()
