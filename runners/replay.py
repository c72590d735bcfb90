"""python -m runners.replay ledger=DIR [out=DIR]

Replays measured runs in the simulator with the measured step times, and checks step by step that
its scheduler and its memory do what vLLM's did.

A server stands between client and scheduler, and no record tells in which step the scheduler first
saw a request. The replay assumes that it sees a request as soon as the client sends it. Where the
simulator then counts more requests than vLLM did, the youngest ones are delayed by a step. Nothing
else is fitted: tokens, running and waiting requests of every step, and all counters of the memory,
must be equal. So must all events, where the run was traced (`hsexp.trace.compare`).
"""

import hsexp.starting  # noqa: F401, I001

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.progress import track

from hsexp.shadows import guard

guard("analysis")

from analysis.__main__ import print_and_write
from analysis.command import parse_pairs, run
from analysis.errors import AnalysisError, NoRunsError
from analysis.ledgers import read_ledger
from analysis.runs import Origin
from analysis.tables.table import Column, Table
from hsexp.console import make_console
from hsexp.plan.run import RunConfig, VllmRunConfig
from hsexp.sim.scheduler import SimScheduler
from hsexp.sim.steptime import NS_PER_S, StepContext, to_ns
from hsexp.trace import Trace, TraceRecorder
from hsexp.trace.compare import deeds, num_equal
from hsexp.workload import Request
from runners.sim import workload_of

_STEP = ["decode_tokens", "prefill_tokens", "running", "waiting"]

Step = tuple[int, int, int, int]
"""Decode tokens, prefill tokens, running and waiting requests."""


class _RecordEnded(Exception):
    """The simulator has work left, but the record has no further step."""


class _RecordedClock:
    """A step lasts until the next measured one, so that both clocks agree at every step."""

    def __init__(self, starts_ns: Sequence[int]) -> None:
        self._durations = iter(np.diff([*starts_ns, starts_ns[-1] + 1]).tolist())

    @property
    def reads_context(self) -> bool:
        return False

    def step_ns(
        self, decode_tokens: int, prefill_tokens: int, context: StepContext | None = None
    ) -> int:
        duration: int | None = next(self._durations, None)
        if duration is None:
            raise _RecordEnded
        return duration


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Result of replaying one measured run."""

    num_steps: int
    """Steps of the measured run."""
    num_equal_steps: int
    """Steps up to the first difference."""
    num_delayed: int
    """Requests that the scheduler did not see in the first step after they were sent."""
    largest_delay_s: float
    """Longest delay given to a request; the step that saw it began no earlier."""
    different_counters: tuple[str, ...]
    """Name, measured value and replayed value of each counter that differs."""
    difference: str | None
    """The first step that differs, in words."""
    num_events: int | None = None
    """Events of the measured trace (`hsexp.trace.compare`); None if it was not traced."""
    num_equal_events: int | None = None
    """Events up to the first difference."""

    @property
    def repeated(self) -> bool:
        return (
            self.difference is None
            and not self.different_counters
            and self.num_equal_events == self.num_events
        )


def replay(
    config: RunConfig,
    requests: pd.DataFrame,
    steps: pd.DataFrame,
    counters: dict[str, Any],
    trace: Trace | None = None,
) -> Replay:
    """Repeat a measured run.

    Args:
        requests, steps: the run's tables; a row of `steps` is one step.
        counters: measured values by name; names that the memory does not count are ignored.
        trace: of the run, if it was traced.
    """
    starts = [to_ns(start) for start in steps["start_s"].astype(float)]
    recorded: list[Step] = list(steps[_STEP].astype(int).itertuples(index=False, name=None))
    ids, times = requests["request_id"].astype(int), requests["sent_s"].astype(float)
    sent = {key: max(to_ns(time), starts[0]) for key, time in zip(ids, times, strict=True)}
    workload, _ = workload_of(config)
    seen = dict(sent)
    while True:
        arrived = sorted(workload.requests, key=lambda request: seen[request.request_id])
        recorder = None if trace is None else TraceRecorder()
        simulator, finished = _simulate(config, arrived, seen, starts, recorder)
        done: list[Step] = [
            (stretch.decode_tokens, stretch.prefill_tokens, stretch.running, stretch.waiting)
            for stretch in simulator.stretches
            for _ in range(stretch.num_steps)
        ]
        differing = _first_difference(done, recorded, finished=finished)
        if differing is None or differing >= min(len(done), len(recorded)):
            break
        surplus = sum(done[differing][2:]) - sum(recorded[differing][2:])
        if surplus <= 0:
            break
        present = [each for each in arrived if seen[each.request_id] <= starts[differing]]
        for request in present[-surplus:]:
            seen[request.request_id] = starts[differing] + 1
    num_events = num_equal_events = None
    if trace is not None and recorder is not None:
        ours, theirs = deeds(trace), deeds(Trace(recorder.finish()))
        num_events, num_equal_events = max(len(ours), len(theirs)), num_equal(ours, theirs)
    replayed = asdict(simulator.memory.cache.counters)
    measured = {name: counters[name] for name in replayed if name in counters}
    return Replay(
        num_steps=len(recorded),
        num_equal_steps=len(recorded) if differing is None else differing,
        num_delayed=sum(seen[key] != sent[key] for key in seen),
        largest_delay_s=max(seen[key] - sent[key] for key in seen) / NS_PER_S,
        different_counters=tuple(
            f"{name}: measured {value:.0f}, replayed {replayed[name]}"
            for name, value in measured.items()
            if not pd.isna(value) and value != replayed[name]
        ),
        difference=None if differing is None else _describe_difference(differing, done, recorded),
        num_events=num_events,
        num_equal_events=num_equal_events,
    )


def _sent_at(request: Request, seen_ns: int) -> Request:
    """The request as it was sent: no turn waits, since its time is known."""
    return replace(request, arrival_s=seen_ns / NS_PER_S, after=None)


def _simulate(
    config: RunConfig,
    requests: Sequence[Request],
    seen_ns: dict[int, int],
    starts: Sequence[int],
    recorder: TraceRecorder | None,
) -> tuple[SimScheduler, bool]:
    """The simulated run, and whether it ended within the record."""
    run = SimScheduler(
        [_sent_at(each, seen_ns[each.request_id]) for each in requests],
        config.memory(),
        config.scheduler.model_copy(update={"fast_forward": False}),
        _RecordedClock(starts),
        cap=config.admission.cap,
        max_model_tokens=config.model.max_model_tokens,
        exact=config.exact,
        waiting=config.waiting,
    )
    if recorder is not None:
        recorder.start(run.memory)
    try:
        run.run()
    except _RecordEnded:
        return run, False
    return run, True


def _first_difference(
    done: Sequence[Step], recorded: Sequence[Step], *, finished: bool
) -> int | None:
    for index, (ours, theirs) in enumerate(zip(done, recorded, strict=False)):
        if ours != theirs:
            return index
    return None if finished and len(done) == len(recorded) else min(len(done), len(recorded))


def _describe_difference(index: int, done: Sequence[Step], recorded: Sequence[Step]) -> str:
    if index == len(recorded):
        return f"after {index} steps the record ends and the replay does not"
    if index == len(done):
        return f"after {index} steps the replay ends and the record does not"
    return f"step {index} ({', '.join(_STEP)}): measured {recorded[index]}, replayed {done[index]}"


# -- the command -----------------------------------------------------------------------------------


def replays(arguments: Sequence[str]) -> tuple[list[Table], Path]:
    """A table with one row per measured run, and the folder that it is written to.

    Raises:
        AnalysisError: an argument is refused; the ledger cannot be read, is not of measured
            serving runs, or has none.
    """
    given = parse_pairs(arguments, keys=("ledger", "out"))
    if "ledger" not in given:
        raise AnalysisError("ledger= is required: the folder of a ledger")
    path = Path(given["ledger"])
    ledger, frame = read_ledger(path)
    if frame.empty:
        raise NoRunsError(f"{path}: no run was adopted")
    if set(frame["data_kind"]) != {"measured"} or "organization" not in frame:
        raise AnalysisError(f"{path}: its runs are not measured serving runs")
    rows = []
    for cell in track(frame.to_dict("records"), description="replaying", transient=True):
        config = VllmRunConfig.parse(json.loads(cell["engine_facts"])["config"])
        found = replay(
            config,
            ledger.request_table(cell["cell_id"]),
            ledger.step_table(cell["cell_id"]),
            {str(name): value for name, value in cell.items()},
            ledger.trace(cell["cell_id"]) if config.trace else None,
        )
        rows.append(
            {
                "organization": cell["organization"],
                "budget": cell["budget"],
                "headroom": cell["headroom"],
                "retention": cell["retention"],
                "isolation": cell["isolation"],
                "seed": cell["seed"],
                **{name: value for name, value in asdict(found).items() if name != "difference"},
                "different_counters": "; ".join(found.different_counters) or "none",
                "repeated": found.repeated,
                "first_difference": found.difference,
            }
        )
    return [_table(pd.DataFrame(rows), frame)], Path(given.get("out", path / "analysis"))


def _table(rows: pd.DataFrame, frame: pd.DataFrame) -> Table:
    num_repeated = int(rows["repeated"].sum())
    columns: tuple[Column, ...] = _COLUMNS
    if rows["num_events"].isna().all():
        rows = rows.drop(columns=["num_events", "num_equal_events"])
    else:
        columns += _EVENT_COLUMNS
    first = tuple(
        f"{row['organization']} {row['budget']} seed {row['seed']}: {row['first_difference']}."
        for row in rows[rows["first_difference"].notna()].to_dict("records")
    )
    return Table(
        name="replay",
        title=f"{num_repeated} of {len(rows)} measured runs are repeated by the simulator, step by "
        "step and counter by counter, when its steps take the measured times",
        rows=rows.sort_values(["organization", "budget", "headroom", "retention", "seed"]),
        views=(columns,),
        origin=Origin(
            data_kind=f"simulated with the step times of runs that were {Origin.of(frame)}"
        ),
        notes=(
            "Delayed: requests that the scheduler first saw in a later step than they were sent "
            "before; the largest of these delays.",
            *first,
        ),
    )


_COLUMNS = (
    Column(heading="organization", templates=("{organization}",)),
    Column(heading="budget", templates=("{budget}",)),
    Column(heading="headroom", templates=("{headroom:.2f}",)),
    Column(heading="retention", templates=("{retention}",)),
    Column(heading="isolation", templates=("{isolation}",)),
    Column(heading="seed", templates=("{seed:d}",)),
    Column(heading="steps", templates=("{num_steps:,d}",)),
    Column(heading="equal", templates=("{num_equal_steps:,d}",)),
    Column(heading="delayed", templates=("{num_delayed:d}",)),
    Column(heading="by, s", templates=("{largest_delay_s:.3f}",)),
    Column(heading="counters that differ", templates=("{different_counters}",)),
)

_EVENT_COLUMNS = (
    Column(heading="events", templates=("{num_events:,.0f}",)),
    Column(heading="equal", templates=("{num_equal_events:,.0f}",)),
)


def main(arguments: Sequence[str]) -> None:
    print_and_write(*replays(arguments), make_console())


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
