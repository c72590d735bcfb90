"""Calls that ask a pool for pages, by what they found and by what followed (Table E-10).

A call is a request that is scheduled, or that asks for admission, in one step. It checks the pools
in order, attention first, and fails at the first one that is short.

    need > free > 0 .... some pages are free, too few
    free = 0 ........... none is
    headroom, price .... pages are free, but they are kept for others; the paper had no such rule
    copies ............. pages are free, but the copies of a branch need more

A failed admission is deferred. A running request whose call fails takes the room of another one,
which is preempted, or of entries that are kept beyond execution (`give_way`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from hsexp.trace.pools import MOVES, PoolReplay, StepNumbers, is_after_schedule
from hsexp.trace.schema import TraceError
from hsexp.trace.trace import Event, Trace
from hsexp.trace.work import lives

Shortage = Literal["need > free > 0", "free = 0", "headroom", "price", "copies"]
Label = Literal["defer", "preempt", "give_way"]


@dataclass(frozen=True, kw_only=True)
class Preemption:
    """A running request lost its memory."""

    step: int
    victim: int
    beneficiary: int | None
    """The request that found no room in that step, which may be the victim itself; None if none
    did."""
    release: Event = field(compare=False, repr=False)
    short: Event | None = field(compare=False, repr=False)
    """The event of the beneficiary."""


def preemptions(trace: Trace) -> list[Preemption]:
    """Every preemption of a run, in order, with the shortage that it ended."""
    found: list[Preemption] = []
    short: Event | None = None
    for event in trace.rows("short", "release"):
        if event.kind == "short":
            short = event
        elif event.cause == "preempted":
            is_caused = short is not None and short.step == event.step
            cause = short if is_caused else None
            found.append(
                Preemption(
                    step=event.step,
                    victim=event.request,
                    beneficiary=None if cause is None else cause.request,
                    release=event,
                    short=cause,
                )
            )
            short = None
    return found


@dataclass(kw_only=True)
class Checks:
    """The calls of one run."""

    failed: Counter[tuple[int, Shortage]] = field(default_factory=Counter)
    """Failed calls by pool and by what they found."""
    labels: Counter[Label] = field(default_factory=Counter)
    """The same calls by what followed."""
    passed_at_zero: Counter[int] = field(default_factory=Counter)
    """Calls of running requests that needed nothing of a pool without a free page, by pool. Calls
    are taken in running order; steps that separate prefill (Appendix C.1) call prefills first, and
    the count is then approximate."""
    preemptions: list[Preemption] = field(default_factory=list)


def checks(trace: Trace) -> Checks:
    """Count the calls of a run.

    Raises:
        TraceError: the events contradict each other.
    """
    found, replay = Checks(), PoolReplay(trace.memory)
    refused: dict[int, Event] = {}
    num_short = 0
    for event in trace.rows(*MOVES, "refuse", "short"):
        replay.apply(event)
        if event.kind == "refuse":
            if event.cause != "standing":
                refused[event.request] = event
                failure = _of_refusal(event)
            elif event.request in refused:
                headroom = trace.memory.headroom_pages
                failure = _of_standing(refused[event.request], replay.num_free, headroom)
            else:
                raise TraceError(f"request {event.request} is refused again, and never was before")
            found.failed[failure] += event.count
            found.labels["defer"] += event.count
        elif event.kind == "short":
            num_short += 1
            found.failed[_of_short(event)] += 1
    found.preemptions = preemptions(trace)
    num_preempting = sum(each.short is not None for each in found.preemptions)
    found.labels["preempt"] = num_preempting
    found.labels["give_way"] = num_short - num_preempting
    found.passed_at_zero = _Calls(trace).count_passed()
    return found


def _of_refusal(refusal: Event) -> tuple[int, Shortage]:
    """Which pool was short at an admission."""
    pool: int = refusal.pool
    if refusal.cause == "memory":
        return pool, _lack(refusal.free[pool])
    return pool, refusal.cause


def _of_standing(
    refusal: Event, free: Sequence[int], headroom: Sequence[int]
) -> tuple[int, Shortage]:
    """Which pool is short for a refused admission now: pages may have been taken meanwhile.

    Its need is that of the refusal. That is exact unless the need depends on slots of slabs or on
    promises to others, which may change while the refusal stands.
    """
    for pool, (pages, available) in enumerate(zip(refusal.need, free, strict=True)):
        if pages > available:
            return pool, _lack(available)
        if pages + headroom[pool] > available:
            return pool, "headroom"
    return _of_refusal(refusal)


def _of_short(event: Event) -> tuple[int, Shortage]:
    """Which pool was short for a running request."""
    for pool, (pages, available) in enumerate(zip(event.need, event.free, strict=True)):
        if pages > available:
            return pool, _lack(available)
    return 0, "copies"


def _lack(free: int) -> Shortage:
    return "need > free > 0" if free else "free = 0"


class _Calls:
    """Goes through the running requests of each step, in the order in which they are scheduled.

    Most calls move no page and are no event. They come between the calls that do.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._replay = PoolReplay(trace.memory)
        self._steps = StepNumbers(trace)
        self._passed: Counter[int] = Counter()
        self._running: dict[int, int] = {}
        """Step from which each request decodes, in order of the admissions."""
        self._left: list[int] | None = None
        """Requests of this step whose calls are still to come; None before its first event."""
        self._caller: int | None = None
        """Request whose call moves pages now."""
        self._took: set[int] = set()
        """Pools that its call has taken pages from."""
        self._chunks: dict[int, set[int]] = {}
        """Requests that prefill, by step."""
        self._decode_from: dict[tuple[int, int], int] = {}
        for life in lives(trace):
            for step, _ in life.chunks:
                self._chunks.setdefault(step, set()).add(life.request)
            if life.last_chunk_step is not None and life.prefilled_to >= life.end:
                self._decode_from[life.request, life.episode] = life.last_chunk_step + 1
        self._decodes_wait = {
            event.step + i
            for event in trace.rows("step")
            if not event.decode_tokens
            for i in range(event.count)
        }

    def count_passed(self) -> Counter[int]:
        """Calls of running requests that needed nothing of a pool without a free page, by pool."""
        for event in self._trace.rows(*MOVES, "adopt", "short", "chunk", "release"):
            self._end_steps(event.step + is_after_schedule(event))
            self._see(event)
            self._replay.apply(event)
        self._end_steps(None)
        return self._passed

    def _see(self, event: Event) -> None:
        """An event that has yet to be applied."""
        if event.kind == "adopt":
            never = 1 << 62
            start = self._decode_from.get((event.request, event.episode), never)
            self._running[event.request] = start
        elif event.kind == "release":
            self._running.pop(event.request, None)
        elif getattr(event, "act", None) == "copies":  # after all calls of the step
            self._end_calls(event.step)
        elif event.kind == "short" or getattr(event, "act", None) in ("extend", "admit"):
            if self._left is None:
                self._left = list(self._running)
            if self._caller != event.request:
                self._end_call(event.step)
                self._pass_before(event.request, event.step)
                self._caller, self._took = event.request, set()
            if event.kind == "take":
                self._took.add(event.pool)

    def _end_calls(self, step: int) -> None:
        """The rest of the calls of a step."""
        if self._left is None:
            self._left = list(self._running)
        self._end_call(step)
        self._pass_before(None, step)

    def _pass_before(self, request: int | None, step: int) -> None:
        """The calls before that of a request; all of them if it has none yet."""
        while self._left:
            caller = self._left.pop(0)
            if caller == request:
                break
            if self._is_scheduled(caller, step):
                self._count(set())

    def _end_call(self, step: int) -> None:
        if self._caller is not None and self._is_scheduled(self._caller, step):
            self._count(self._took)
        self._caller = None

    def _count(self, took: set[int]) -> None:
        for pool, num_free in enumerate(self._replay.num_free):
            self._passed[pool] += num_free == 0 and pool not in took

    def _end_steps(self, end: int | None) -> None:
        """Whatever calls are left of the steps before `end`."""
        for steps in self._steps.until(end):
            for step in steps if 0 in self._replay.num_free else steps[:1]:
                self._end_calls(step)
                self._left = None
            self._caller, self._left = None, None

    def _is_scheduled(self, request: int, step: int) -> bool:
        if request in self._chunks.get(step, ()):
            return True
        start = self._running.get(request)
        return start is not None and start <= step and step not in self._decodes_wait
