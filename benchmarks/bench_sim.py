"""python benchmarks/bench_sim.py [--quick] [--cpu-time]

How fast the simulator runs, and whether a step costs more with more requests or larger pools. Each
figure is the best of n tries, so that other work on the machine disturbs it least.
"""

import argparse
import gc
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from rich.table import Table

from hsexp.config.axes import AXES
from hsexp.config.catalog import read_option
from hsexp.console import make_console
from hsexp.core import CORE
from hsexp.measure.metrics import summarize
from hsexp.plan.run import RunConfig
from hsexp.sim.scheduler import SimScheduler
from hsexp.sim.steptime import StepClock
from hsexp.workload import Workload, build
from runners.sim import simulate_run

Clock = Callable[[], float]
"""Seconds since some moment."""

ORGANIZATIONS = ("s0", "s1", "s2", "d0")
BUDGETS = ("b63", "b83", "b108")
SEEDS = (42000, 42001, 42002)

S2_PAGE_BYTES = 524_288
"""512 tokens of 1 KiB (Table 1): the unit in which pools are counted below."""


def run_config(organization: str, **changes: Any) -> RunConfig:
    """Q1's main cell (Table 2): 300 requests at 3 a second, cap 63, all sharing."""
    workload = read_option("workload", "extension") | {"sharing": changes.pop("sharing", 1.0)}
    arrivals = read_option("arrivals", "poisson") | {"rate_per_s": changes.pop("rate", 3.0)}
    workload["num_requests"] = changes.pop("num_requests", workload["num_requests"])
    config: dict[str, Any] = {
        axis.name: read_option(axis.name, axis.neutral[0])
        for axis in AXES
        if axis.options is not None and axis.neutral is not None
    } | {
        "model": read_option("model", "falcon_h1_7b"),
        "organization": read_option("organization", organization),
        "admission": {"headroom": 0.0, "cap": 63},
        "trace": False,
        "workload": workload,
        "arrivals": arrivals,
        "scheduler": read_option("scheduler", "v1"),
        "device": read_option("device", "a100_40gb"),
        "engine": "sim",
        "seed": SEEDS[0],
    }
    return RunConfig.parse(config | changes)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One simulation: how long it took, and how much it did."""

    seconds: float
    worked_steps: int
    """Steps in which the scheduler worked; it leaps over the others. 0 where not counted."""
    steps: int
    requests: int

    @property
    def us_per_worked_step(self) -> float:
        return 1e6 * self.seconds / self.worked_steps

    @property
    def us_per_step(self) -> float:
        return 1e6 * self.seconds / self.steps


def best_of(repeats: int, act: Callable[[], Timing]) -> Timing:
    timings = []
    for _ in range(repeats):
        gc.collect()
        timings.append(act())
    return min(timings, key=lambda timing: timing.seconds)


def time_scheduling(config: RunConfig, workload: Workload, clock: Clock) -> Timing:
    """The scheduler and the memory alone: without making the pools, and, as in timeit, without
    the garbage collector, which walks over every page now and then."""
    memory = config.memory()
    scheduler = SimScheduler(
        workload.requests,
        memory,
        config.scheduler,
        StepClock.of(config.device.step_time, paged=config.paged),
        cap=config.admission.cap,
        max_model_tokens=config.model.max_model_tokens,
    )
    gc.disable()
    start = clock()
    scheduler.run()
    seconds = clock() - start
    gc.enable()
    return Timing(
        seconds=seconds,
        worked_steps=scheduler.num_scheduled_steps,
        steps=sum(stretch.num_steps for stretch in scheduler.stretches),
        requests=len(workload.requests),
    )


def time_run(config: RunConfig, workload: Workload, clock: Clock) -> Timing:
    """A whole run as a campaign does it: pools, simulation, tables, checks and metrics."""
    start = clock()
    record = simulate_run(config, workload)
    metrics = summarize(record)
    seconds = clock() - start
    steps = metrics["num_steps"]
    assert isinstance(steps, int)
    return Timing(seconds=seconds, worked_steps=0, steps=steps, requests=len(workload.requests))


# -- the tables -----------------------------------------------------------------------------


def speed(repeats: int, seeds: tuple[int, ...], clock: Clock) -> Table:
    table = Table(
        title=f"300 requests at 3/s, cap 63; mean of {', '.join(BUDGETS)} x {len(seeds)} seeds, "
        f"best of {repeats}"
    )
    for heading in (
        "",
        "ms a run",
        "runs a minute",
        "us a worked step",
        "us a step",
        "worked steps",
        "steps",
    ):
        table.add_column(heading, justify="right")
    for organization in ORGANIZATIONS:
        runs, cores = [], []
        for budget in BUDGETS:
            for seed in seeds:
                config = run_config(organization, budget=read_option("budget", budget), seed=seed)
                workload = build(config.workload, config.arrivals, seed)
                runs.append(best_of(repeats, partial(time_run, config, workload, clock)))
                cores.append(best_of(repeats, partial(time_scheduling, config, workload, clock)))
        seconds = fmean(run.seconds for run in runs)
        table.add_row(
            organization,
            f"{1e3 * seconds:.1f}",
            f"{60 / seconds:,.0f}",
            f"{fmean(core.us_per_worked_step for core in cores):.1f}",
            f"{fmean(core.us_per_step for core in cores):.1f}",
            f"{fmean(core.worked_steps for core in cores):,.0f}",
            f"{fmean(core.steps for core in cores):,.0f}",
        )
    return table


def growth_with_requests(repeats: int, sizes: tuple[int, ...], clock: Clock) -> Table:
    table = Table(title=f"Requests: b108, 2/s, cap 63, best of {repeats}")
    for heading in ("", "requests", "s per 1,000", "of the first", "us a step"):
        table.add_column(heading, justify="right")
    budget = read_option("budget", "b108")
    for organization in ("s2", "d0"):
        rows = [
            best_of(repeats, partial(time_run, config, workload, clock))
            for config, workload in (
                _loaded(organization, budget=budget, num_requests=size, rate=2.0) for size in sizes
            )
        ]
        for row in rows:
            per_thousand = 1e3 * row.seconds / row.requests
            first = 1e3 * rows[0].seconds / rows[0].requests
            table.add_row(
                organization,
                f"{row.requests:,}",
                f"{per_thousand:.3f}",
                f"{per_thousand / first:.2f}",
                f"{row.us_per_step:.1f}",
            )
    return table


def growth_with_pages(repeats: int, sizes: tuple[int, ...], clock: Clock) -> Table:
    """Private prompts at a light load, so that every pool sees the same steps.

    Sizes count S2's pages; D0 cuts the same bytes into 17 times as many, so it stops earlier.
    """
    table = Table(title=f"Pages: 300 private requests at 0.5/s, best of {repeats}")
    for heading in ("", "S2 pages' worth", "pages", "worked steps", "us a worked step", "of first"):
        table.add_column(heading, justify="right")
    for organization in ("s2", "d0"):
        first: Timing | None = None
        for num_pages in sizes if organization == "s2" else sizes[:3]:
            budget = {"name": "bench", "bytes": num_pages * S2_PAGE_BYTES}
            config, workload = _loaded(organization, budget=budget, sharing=0.0, rate=0.5)
            timing = best_of(repeats, partial(time_scheduling, config, workload, clock))
            first = first or timing
            table.add_row(
                organization,
                f"{num_pages:,}",
                f"{sum(pool.spec.num_pages for pool in config.memory().cache.pools):,}",
                f"{timing.worked_steps:,}",
                f"{timing.us_per_worked_step:.1f}",
                f"{timing.us_per_worked_step / first.us_per_worked_step:.2f}",
            )
    return table


def _loaded(organization: str, **changes: Any) -> tuple[RunConfig, Workload]:
    config = run_config(organization, **changes)
    return config, build(config.workload, config.arrivals, config.seed)


def tables(*, quick: bool, clock: Clock) -> Iterator[Table]:
    if quick:
        yield speed(2, SEEDS[:1], clock)
        yield growth_with_requests(1, (300, 3_000), clock)
        yield growth_with_pages(2, (200, 2_000, 20_000), clock)
    else:
        yield speed(7, SEEDS, clock)
        yield growth_with_requests(3, (300, 3_000, 30_000), clock)
        yield growth_with_pages(7, (200, 2_000, 20_000, 200_000), clock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer tries and smaller sizes")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="count this process's time on a core instead of wall time: for a busy machine",
    )
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    console = make_console()
    python = f"{platform.python_implementation()} {platform.python_version()}"
    console.print(f"{python}, core {CORE.name}, one process")
    start, cpu_start = time.perf_counter(), time.process_time()
    for table in tables(quick=arguments.quick, clock=clock):
        console.print(table)
    share = (time.process_time() - cpu_start) / (time.perf_counter() - start)
    console.print(
        f"Times are {'on a core' if arguments.cpu_time else 'wall times'}; this process had a core "
        f"for {share:.0%} of the time. Far below 100 % they tell of the machine's other work too."
    )


if __name__ == "__main__":
    main()
