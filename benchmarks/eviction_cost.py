"""python benchmarks/eviction_cost.py [--repeats N] [--cpu-time]

What the orders of eviction cost the simulator, as ratios to the paper's order. The orders take
turns within each repeat, so that other work on the machine meets all of them; each figure is the
best of the repeats.
"""

import argparse
import time
from statistics import fmean
from typing import Any

from bench_sim import SEEDS, Timing, run_config, time_scheduling
from rich.table import Table

from hsexp.config.catalog import read_option
from hsexp.console import make_console
from hsexp.workload import build

ORDERS = {
    "paper": {},
    "lru": {"eviction": "lru"},
    "restart_point": {"eviction": "restart_point"},
    "value_per_byte": {"eviction": "value_per_byte"},
    "replay_length": {"eviction": "replay_length"},
    "restart_point, priced": {"eviction": "restart_point", "retention": "priced"},
}
LOADS = {
    "b63, 3/s": {"budget": "b63"},
    "b63, 4.5/s, q .5": {"budget": "b63", "rate": 4.5, "sharing": 0.5},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    clock = time.process_time if options.cpu_time else time.perf_counter
    table = Table(
        title="us a worked step, in brackets its ratio to the paper's order; ratio of a whole run; "
        f"mean of {len(SEEDS)} seeds, best of {options.repeats}"
    )
    for column in ("organization", "load", *ORDERS):
        table.add_column(column)
    for organization in ("s2", "d0"):
        for load, settings in LOADS.items():
            best = {order: [] for order in ORDERS}  # type: dict[str, list[Timing]]
            for seed in SEEDS:
                tried = {order: [] for order in ORDERS}  # type: dict[str, list[Timing]]
                for _ in range(options.repeats):
                    for order, parts in ORDERS.items():
                        config = run_config(organization, **chosen(settings | parts), seed=seed)
                        workload = build(config.workload, config.arrivals, seed)
                        tried[order].append(time_scheduling(config, workload, clock))
                for order, timings in tried.items():
                    best[order].append(min(timings, key=lambda timing: timing.seconds))
            steps = {order: mean_us(timings) for order, timings in best.items()}
            runs = {order: fmean(each.seconds for each in best[order]) for order in ORDERS}
            table.add_row(
                organization,
                load,
                *(
                    f"{steps[order]:.1f} ({steps[order] / steps['paper']:.2f}); "
                    f"{runs[order] / runs['paper']:.2f}"
                    for order in ORDERS
                ),
            )
    make_console().print(table)


def chosen(parts: dict[str, Any]) -> dict[str, Any]:
    """The options that these names stand for."""
    return {
        name: read_option(name, value) if isinstance(value, str) else value
        for name, value in parts.items()
    }


def mean_us(timings: list[Timing]) -> float:
    return fmean(timing.us_per_worked_step for timing in timings)


if __name__ == "__main__":
    main()
