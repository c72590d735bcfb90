"""`python -m analysis perfetto`: one run as a trace of Chrome and Perfetto.

    requests    a track for each: waiting, prefill, decode, preempted; marks of its checkpoints
    engine      stretches of equal steps
    pools       a counter for each pool, by owner of its pages; requests that run and wait

A flow leads from the loss of an entry to the admission that lacked it. The format is the JSON one
of https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: times are
microseconds, and events are in their order.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from analysis.views.lanes import Lane, lanes
from analysis.views.pools import OWNERS, samples
from analysis.views.refusals import refusals, sentence
from analysis.views.reuse import Lost, Reuse, reuses, why_lost
from analysis.views.run import TracedRun, one_line, write_view
from analysis.views.states import marks
from hsexp.trace.clock import Clock

REQUESTS, ENGINE, POOLS = 1, 2, 3
"""Processes of the trace; each has tracks of its own."""

Json = dict[str, Any]


def perfetto(arguments: Sequence[str]) -> Path:
    """Write the trace of a run. Returns its path.

    Raises:
        AnalysisError: an argument is refused, or the file cannot be written.
    """
    return write_view(arguments, "perfetto-{}.json", _text)


def _text(run: TracedRun) -> str:
    return json.dumps(trace_events(run), separators=(",", ":")) + "\n"


def trace_events(run: TracedRun) -> Json:
    """The whole file.

    Raises:
        TraceError: the events contradict each other.
    """
    clock = Clock(run.trace)
    every = lanes(run.trace, clock)
    events = [
        *_request_slices(run, every, clock),
        *_checkpoints(run, every, clock),
        *_flows(run, every, clock),
        *_steps(run, clock),
        *_counters(run, clock),
    ]
    events.sort(key=lambda event: event["ts"])  # stable: a flow starts behind its slice
    return {
        "traceEvents": [*_names(every), *events],
        "displayTimeUnit": "ms",
        "otherData": {
            "run": run.attempt_id,
            "campaign": run.campaign,
            "settings": one_line(run.settings),
            "origin": run.origin,
        },
    }


def _names(every: Sequence[Lane]) -> Iterator[Json]:
    processes = {REQUESTS: "requests", ENGINE: "engine", POOLS: "pools"}
    for pid, name in processes.items():
        yield _meta(pid, 0, "process_name", {"name": name})
        yield _meta(pid, 0, "process_sort_index", {"sort_index": -pid})
    yield _meta(ENGINE, 1, "thread_name", {"name": "steps"})
    for lane in every:
        yield _meta(REQUESTS, _track(lane.request), "thread_name", {"name": f"request {lane.id}"})
        yield _meta(
            REQUESTS, _track(lane.request), "thread_sort_index", {"sort_index": lane.request}
        )


def _meta(pid: int, tid: int, name: str, args: Json) -> Json:
    return {"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": name, "args": args}


def _track(request: int) -> int:
    """Number of a request's track; 0 stands for the process."""
    return request + 1


def _request_slices(run: TracedRun, every: Sequence[Lane], clock: Clock) -> Iterator[Json]:
    waits = refusals(run.trace, clock)
    for lane in every:
        for phase in lane.phases:
            args: Json = {"request": lane.id, "episode": phase.episode}
            if phase.kind in ("waiting", "preempted"):
                args["tokens"] = phase.tokens
                own = [
                    each for each in waits.get(lane.request, ()) if each.episode == phase.episode
                ]
                args["refusals"] = [
                    f"{each.count} x {sentence(each, run.trace.memory)}" for each in own
                ]
            elif phase.kind == "prefill":
                args["adopted_tokens"] = phase.tokens
            yield _slice(
                REQUESTS, _track(lane.request), phase.kind, phase.start_ns, phase.end_ns, args
            )


def _slice(pid: int, tid: int, name: str, start_ns: int, end_ns: int, args: Json) -> Json:
    start, end = _us(start_ns), _us(end_ns)
    return {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": start,
        "dur": round(end - start, 3),
        "name": name,
        "cat": "request" if pid == REQUESTS else "step",
        "args": args,
    }


def _checkpoints(run: TracedRun, every: Sequence[Lane], clock: Clock) -> Iterator[Json]:
    names = {lane.request: lane.id for lane in every}
    for mark in marks(run.trace, clock):
        args: Json = {
            "state": mark.state.name,
            "tokens": mark.state.tokens,
            "producer": None if mark.state.producer is None else names[mark.state.producer],
        }
        if mark.kind == "lost":
            args |= {"cause": mark.cause, "act": mark.act}
        on_engine = mark.request is None
        yield {
            "ph": "i",
            "s": "t",
            "pid": ENGINE if on_engine else REQUESTS,
            "tid": 1 if mark.request is None else _track(mark.request),
            "ts": _us(mark.time_ns),
            "name": f"checkpoint {mark.kind}",
            "cat": "checkpoint",
            "args": args,
        }


def _flows(run: TracedRun, every: Sequence[Lane], clock: Clock) -> Iterator[Json]:
    """From each loss to the admissions that lacked what it took."""
    names = {lane.request: lane.id for lane in every}
    number = 0
    for reuse in reuses(run.trace):
        culprit = reuse.culprit
        if culprit is None or culprit.cached.lost is None:
            continue
        number += 1
        yield from _flow(number, reuse, culprit.cached.lost, names, clock)


def _flow(
    number: int, reuse: Reuse, lost: Lost, names: dict[int, str], clock: Clock
) -> Iterator[Json]:
    request = lost.request
    common = {"cat": "loss", "name": "evicted", "id": number}
    why = why_lost(lost.cause, lost.act, None if request is None else names[request])
    yield {
        "ph": "s",
        "pid": ENGINE if request is None else REQUESTS,
        "tid": 1 if request is None else _track(request),
        "ts": _us(clock.start(lost.step)),
        **common,
        "args": {"why": why, "lost_tokens": reuse.lost_tokens, "sufferer": reuse.id},
    }
    yield {
        "ph": "f",
        "bp": "e",
        "pid": REQUESTS,
        "tid": _track(reuse.request),
        "ts": _us(clock.of(reuse.adopt)),
        **common,
        "args": {},
    }


def _steps(run: TracedRun, clock: Clock) -> Iterator[Json]:
    for event in sorted(run.trace.rows("step"), key=lambda event: event.step):
        kind = "mixed" if event.prefill_tokens and event.decode_tokens else (
            "prefill" if event.prefill_tokens else "decode"
        )  # fmt: skip
        name = kind if event.count == 1 else f"{kind} x {event.count}"
        args = {
            "first_step": event.step,
            "steps": event.count,
            "decode_tokens": event.decode_tokens,
            "prefill_tokens": event.prefill_tokens,
        }
        start, end = clock.start(event.step), clock.end(event.step + event.count - 1)
        yield _slice(ENGINE, 1, name, start, end, args)
        yield _counter(
            "requests", start, {"running": event.running, "waiting": event.waiting}, pid=ENGINE
        )


def _counters(run: TracedRun, clock: Clock) -> Iterator[Json]:
    for sample in samples(run.trace, clock):
        for pool, pages in zip(run.trace.memory.pools, sample.pages, strict=True):
            args: Json = dict(zip(OWNERS, pages, strict=True))
            yield _counter(f"pages of {pool.name}", sample.time_ns, args, pid=POOLS)


def _counter(name: str, time_ns: int, args: Json, *, pid: int) -> Json:
    return {"ph": "C", "pid": pid, "tid": 0, "ts": _us(time_ns), "name": name, "args": args}


def _us(time_ns: int) -> float:
    return round(time_ns / 1_000, 3)
