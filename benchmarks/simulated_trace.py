"""python benchmarks/simulated_trace.py [--repeats N]

What a trace costs the simulator, in milliseconds of CPU time and as a share of an untraced run: its
rows while the run goes on, the table of them, and the Parquet bytes of the ledger. An untraced run
is that of a campaign, with its tables and metrics. Each figure is the best of the repeats.
"""

import argparse
import time
from collections.abc import Callable
from typing import TypeVar

from bench_sim import SEEDS, run_config
from rich.table import Table

from hsexp.config.catalog import read_option
from hsexp.console import make_console
from hsexp.ledger import encode_arrow
from hsexp.measure.metrics import summarize
from hsexp.plan.run import RunConfig
from hsexp.trace import Trace, TraceRecorder
from hsexp.workload import Workload, build
from runners.sim import simulate_run

T = TypeVar("T")


class TimedRecorder(TraceRecorder):
    """A recorder that times the making of its table."""

    table_s = 0.0

    def finish(self):  # type: ignore[no-untyped-def]
        start = time.process_time()
        table = super().finish()
        self.table_s = time.process_time() - start
        return table


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    table = Table(title=f"ms a run, seed {SEEDS[0]}, best of {options.repeats}")
    for column in ("organization", "untraced", "rows", "table", "Parquet", "in all", "events"):
        table.add_column(column)
    for organization in ("s0", "s1", "s2", "d0"):
        budget = read_option("budget", "b63")
        config = run_config(organization, budget=budget, seed=SEEDS[0])
        workload = build(config.workload, config.arrivals, SEEDS[0])
        tried = [parts(config, workload) for _ in range(options.repeats)]
        plain, rows, made, encoded = (min(column) for column in zip(*tried, strict=True))
        extra = rows + made + encoded
        events = len(traced(config, workload, TraceRecorder()))
        table.add_row(
            organization,
            *(f"{1e3 * seconds:.1f}" for seconds in (plain, rows, made, encoded)),
            f"+{100 * extra / plain:.0f} %",
            f"{events:,}",
        )
    make_console().print(table)


def parts(config: RunConfig, workload: Workload) -> tuple[float, float, float, float]:
    """Seconds of an untraced run, and what rows, table and Parquet add."""
    plain_s, _ = timed(lambda: summarize(simulate_run(config, workload)))
    recorder = TimedRecorder()
    traced_s, trace = timed(lambda: traced(config, workload, recorder))
    parquet_s, _ = timed(lambda: encode_arrow(trace.table))
    return plain_s, max(traced_s - recorder.table_s - plain_s, 0.0), recorder.table_s, parquet_s


def traced(config: RunConfig, workload: Workload, recorder: TraceRecorder) -> Trace:
    record = simulate_run(config, workload, recorder)
    summarize(record)
    assert record.trace is not None
    return record.trace


def timed(call: Callable[[], T]) -> tuple[float, T]:
    start = time.process_time()
    result = call()
    return time.process_time() - start, result


if __name__ == "__main__":
    main()
