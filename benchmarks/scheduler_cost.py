"""python benchmarks/scheduler_cost.py [--quick] [--cpu-time]

What a scheduling step costs with each organization, as a ratio to stock vLLM on the same requests.
Runs vLLM's scheduler without a model; needs vLLM's CPU build (make setup-cpu).

Timed are schedule() and update_from_output(). Making and hashing requests, adding them to the
queue and sampling are not. Every repetition runs all schedulers in turn, so that other work on the
machine meets them alike. A ratio is the median over repetitions, in brackets that of the best.

Two stock schedulers are the measure. One has S0's shape, 512-token blocks and as many pages. The
other has D0's, 16-token blocks and 1,792-token states in one pool: D0 hashes, tables and publishes
every 16 tokens, and so does stock vLLM with blocks of that size. Each organization admits by its
own rules and so has its own number of steps and of requests in a step; "S0 as stock" has no reserve
and counts one state at admission, like stock vLLM.
"""

import argparse
import gc
import importlib.util
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

if importlib.util.find_spec("vllm") is None:
    sys.exit("scheduler_cost.py needs vLLM's CPU build: make setup-cpu")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "engine"))

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request as VllmRequest
from vllm_scheduler import build_scheduler, settings, vllm_config, vllm_request

from hsexp.config.catalog import read_option
from hsexp.console import make_console
from hsexp.engine.scheduler import HybridScheduler
from hsexp.workload import Request, Workload, generate
from hsexp.workload.arrivals import PoissonArrivals
from hsexp.workload.synthetic import SyntheticWorkload

Clock = Callable[[], float]
"""Seconds since some moment."""

SEED = 42000
COARSE_PAGE_BYTES = 1_594_368  # 1,557 KiB: S0's page (Table 1)


@dataclass(frozen=True, kw_only=True)
class Load:
    """Work for a scheduler: all requests wait from the start."""

    name: str
    workload: Workload
    budget_bytes: int
    """Nominal bytes of state of one layer."""
    cap: int
    token_budget: int


def shared_prefixes(num_requests: int) -> Load:
    """Q1's requests (3,365-token prompts, eight shared contexts) over 193 coarse pages, with
    eviction, preemption and a queue that is refused in most steps."""
    law = read_option("workload", "extension") | {"sharing": 1.0, "num_requests": num_requests}
    workload = generate(
        SyntheticWorkload.parse(law), PoissonArrivals(kind="poisson", rate_per_s=3.0), seed=SEED
    )
    return Load(
        name=f"{num_requests} requests of 3,365 + 262 tokens, 8 contexts, cap 63, 193 coarse pages",
        workload=workload,
        budget_bytes=193 * COARSE_PAGE_BYTES,
        cap=63,
        token_budget=8192,
    )


def decodes(num_requests: int, output_tokens: int) -> Load:
    """Private short prompts, and room for all: a step is nothing but decodes."""
    requests = tuple(
        Request(request_id=i, arrival_s=0.0, prompt_tokens=100, output_tokens=output_tokens)
        for i in range(num_requests)
    )
    return Load(
        name=f"{num_requests} requests decode {output_tokens} tokens each, no queue",
        workload=Workload(name="decodes", requests=requests),
        budget_bytes=10 * read_option("budget", "b320")["bytes"],
        cap=num_requests,
        token_budget=8192,
    )


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A scheduler that is timed: an organization's, or vLLM's own in an organization's shape."""

    name: str
    organization: str
    scheduler: type[Scheduler] = HybridScheduler
    changes: dict[str, Any] = field(default_factory=dict, hash=False)
    """Fields of the organization's configuration."""
    parts: dict[str, str] = field(default_factory=dict, hash=False)
    """Policies that differ from those of the paper's campaigns."""


P = {
    "eviction": "restart_point",
    "retention": "priced",
    "reservation": "promised",
    "states": "in_place",
    "waiting": "hit_first",
    "placement": "junction",
}
"""The policy of docs/q10.md."""

STOCK = Subject(name="stock 512", organization="s0", scheduler=Scheduler)
STOCK_NATIVE = Subject(name="stock 16", organization="d0", scheduler=Scheduler)
S0_AS_STOCK = Subject(
    name="S0 as stock",
    organization="s0",
    changes={"reserve_fraction": 0.0, "num_admission_states": 1},
)
SUBJECTS = (
    STOCK,
    STOCK_NATIVE,
    S0_AS_STOCK,
    *(Subject(name=name.upper(), organization=name) for name in ("s0", "s1", "s2", "d0")),
    *(
        Subject(name=f"{name.upper()} + P", organization=name, parts=P)
        for name in ("s2", "s3", "d0")
    ),
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One pass over a load."""

    requests: int
    """Requests in all steps, each counted once a step."""
    schedule_s: float
    update_s: float
    shutdown_s: float
    """Beside the total: what the scheduler's files still take."""
    preemptions: int
    batches: tuple[int, ...]
    """Tokens of each step."""

    @property
    def steps(self) -> int:
        return len(self.batches)

    @property
    def total_s(self) -> float:
        return self.schedule_s + self.update_s

    @property
    def step_s(self) -> float:
        return self.total_s / self.steps

    @property
    def request_s(self) -> float:
        """Cost of a request in a step."""
        return self.total_s / self.requests


def no_files(folder: Path) -> dict[str, str]:
    return {}


def run(
    subject: Subject,
    load: Load,
    clock: Clock,
    *,
    files: Callable[[Path], dict[str, str]] = no_files,
) -> Run:
    """Serve the whole load once; only the scheduler's own two calls are on the clock.

    Args:
        files: entries of vLLM's additional configuration that name files in a folder.
    """
    chosen = settings(subject.organization, "b63", cap=load.cap, **subject.parts)
    chosen = chosen.model_copy(
        update={
            "budget_bytes": load.budget_bytes,
            "organization": chosen.organization.model_copy(update=subject.changes),
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        config = vllm_config(chosen, Path(folder), token_budget=load.token_budget)
        config.additional_config |= files(Path(folder))
        return _serve(build_scheduler(chosen, config, subject.scheduler), load, clock)


def _serve(scheduler: Any, load: Load, clock: Clock) -> Run:
    requests = [
        vllm_request(request, hash_block_size=scheduler.hash_block_size)
        for request in load.workload.requests
    ]
    for request in requests:
        scheduler.add_request(request)
    batches: list[int] = []
    num_requests, schedule_s, update_s = 0, 0.0, 0.0
    gc.collect()
    gc.freeze()  # as vLLM's engine core does once it is up
    while scheduler.has_unfinished_requests():
        start = clock()
        output = scheduler.schedule()
        schedule_s += clock() - start
        sampled = _runner_output(scheduler, output)
        start = clock()
        scheduler.update_from_output(output, sampled)
        update_s += clock() - start
        batches.append(output.total_num_scheduled_tokens)
        num_requests += len(output.num_scheduled_tokens)
    gc.unfreeze()
    start = clock()
    scheduler.shutdown()
    return Run(
        requests=num_requests,
        schedule_s=schedule_s,
        update_s=update_s,
        shutdown_s=clock() - start,
        preemptions=sum(request.num_preemptions for request in requests),
        batches=tuple(batches),
    )


def _runner_output(scheduler: Scheduler, output: Any) -> ModelRunnerOutput:
    """A token for every request whose prompt and history are computed, as from a model."""
    request_ids = list(output.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=request_ids,
        req_id_to_index={request_id: i for i, request_id in enumerate(request_ids)},
        sampled_token_ids=[_token(scheduler.requests[request_id]) for request_id in request_ids],
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


def _token(request: VllmRequest) -> list[int]:
    if request.num_computed_tokens < request.num_tokens:
        return []
    return [2_000_000_000 + int(request.request_id) * 100_000 + request.num_tokens]


def ratio(own: list[Run], baseline: list[Run], cost: Callable[[Run], float]) -> str:
    """Median over repetitions, and that of the best times."""
    pairs = zip(own, baseline, strict=True)
    middle = median(cost(one) / cost(other) for one, other in pairs)
    return f"{middle:.2f} ({min(map(cost, own)) / min(map(cost, baseline)):.2f})"


def table(load: Load, runs: dict[Subject, list[Run]]) -> Table:
    result = Table(title=f"{load.name}; {len(runs[STOCK])} repetitions")
    for heading in (
        "",
        "steps",
        "requests a step",
        "preempted",
        "ms a step (best)",
        "schedule",
        "update",
        "step / stock 512",
        "step / stock 16",
        "request / stock 512",
    ):
        result.add_column(heading, justify="right")
    for subject, own in runs.items():
        best = min(own, key=lambda run: run.step_s)
        result.add_row(
            subject.name,
            f"{best.steps:,}",
            f"{best.requests / best.steps:.1f}",
            f"{best.preemptions}",
            f"{1e3 * median(run.step_s for run in own):.3f} ({1e3 * best.step_s:.3f})",
            f"{1e3 * best.schedule_s / best.steps:.3f}",
            f"{1e3 * best.update_s / best.steps:.3f}",
            ratio(own, runs[STOCK], lambda run: run.step_s),
            ratio(own, runs[STOCK_NATIVE], lambda run: run.step_s),
            ratio(own, runs[STOCK], lambda run: run.request_s),
        )
    return result


def same_work(runs: dict[Subject, list[Run]]) -> Iterator[str]:
    """How far S0's schedule is stock vLLM's, and the ratio in total."""
    stock = runs[STOCK]
    for subject, own in runs.items():
        if subject.organization != "s0" or subject is STOCK:
            continue
        pairs = zip(own[0].batches, stock[0].batches, strict=False)
        equal = sum(ours == theirs for ours, theirs in pairs)
        yield (
            f"{subject.name}: {own[0].steps:,} steps where stock has {stock[0].steps:,}; {equal:,} "
            f"of them take the same number of tokens. Time in total over stock's: "
            f"{ratio(own, stock, lambda run: run.total_s)}"
        )


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line asks for."""

    is_quick: bool
    counts_core_time: bool
    loads: list[Load]

    @classmethod
    def parse(cls, description: str | None) -> "Options":
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--quick", action="store_true", help="fewer repetitions, smaller loads")
        parser.add_argument(
            "--cpu-time",
            action="store_true",
            help="count this process's time on a core instead of wall time: for a busy machine",
        )
        arguments = parser.parse_args()
        if arguments.quick:
            loads = [shared_prefixes(100), decodes(256, 100)]
        else:
            loads = [shared_prefixes(300), decodes(256, 700)]
        return cls(
            is_quick=arguments.quick,
            counts_core_time=arguments.cpu_time,
            loads=loads,
        )

    @property
    def clock(self) -> Callable[[], float]:
        return time.process_time if self.counts_core_time else time.perf_counter


def main() -> None:
    options = Options.parse(__doc__)
    logging.disable(logging.WARNING)
    clock, loads = options.clock, options.loads
    repeats = 3 if options.is_quick else 7
    console = make_console()
    start, cpu_start = time.perf_counter(), time.process_time()
    for load in loads:
        runs: dict[Subject, list[Run]] = {subject: [] for subject in SUBJECTS}
        for _ in range(repeats):
            for subject in SUBJECTS:
                runs[subject].append(run(subject, load, clock))
        console.print(table(load, runs))
        for line in same_work(runs):
            console.print(line)
    share = (time.process_time() - cpu_start) / (time.perf_counter() - start)
    times = "on a core" if options.counts_core_time else "wall times"
    console.print(f"Times are {times}; this process had a core for {share:.0%} of the time.")


if __name__ == "__main__":
    main()
