"""Owners of pages over time, sampled whenever time passes between two moves of pages.

attention, tail, state, slab, cached, free     add up to the usable pages of a pool
padding      of attention: room for tokens that no running request has reached, in pages
stranded     of cached and free: pages that a pool has left while another one has none (E.12)
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import get_args

from hsexp.trace import Trace
from hsexp.trace.clock import Clock
from hsexp.trace.pools import MOVES, Owner, PoolReplay
from hsexp.trace.trace import Event

OWNERS: tuple[Owner, ...] = get_args(Owner)

FREE_OWNERS: tuple[Owner, ...] = ("cached", "free")
"""Nobody references their pages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """The pages of all pools at one moment; each lasts until the next one."""

    time_ns: int
    pages: tuple[tuple[int, ...], ...]
    """By pool and owner, in the order of `OWNERS`."""
    padding_tokens: int
    """Tokens for which attention pages have room, and that nobody has computed."""

    def stranded(self, pool: int) -> int:
        """Pages that a pool has left while another one has none."""
        left = [sum(pages[len(OWNERS) - len(FREE_OWNERS) :]) for pages in self.pages]
        return left[pool] if min(left) == 0 else 0


def samples(trace: Trace, clock: Clock) -> list[Sample]:
    """Every moment at which pages have moved.

    Raises:
        TraceError: the events contradict each other.
    """
    replay, progress = PoolReplay(trace.memory), Progress(trace)
    found: list[Sample] = []
    now = step = 0
    for event in trace.rows(*MOVES, "adopt", "chunk", "release"):
        time_ns = clock.of(event)
        if time_ns > now:
            found.append(_sample(replay, progress, now, step))
            now = time_ns
        step = event.step
        if event.kind in MOVES:
            replay.apply(event)
        progress.apply(event)
    found.append(_sample(replay, progress, now, step))
    return found


def fullest(found: Sequence[Sample], limit: int) -> list[Sample]:
    """At most `limit` of the samples: of each stretch of time the one with the fewest pages left.

    Each is a moment of the run, so that its pages still add up.
    """
    if len(found) <= limit:
        return list(found)
    start, end = found[0].time_ns, found[-1].time_ns
    best: dict[int, Sample] = {}
    for sample in found:
        stretch = min((sample.time_ns - start) * limit // max(end - start, 1), limit - 1)
        if stretch not in best or _left(sample) < _left(best[stretch]):
            best[stretch] = sample
    return list(best.values())


def _left(sample: Sample) -> int:
    return sum(sum(pages[len(OWNERS) - len(FREE_OWNERS) :]) for pages in sample.pages)


def _sample(replay: PoolReplay, progress: "Progress", now: int, step: int) -> Sample:
    pools = range(len(replay.memory.pools))
    counts: list[Mapping[Owner, int]] = [replay.count(pool) for pool in pools]
    return Sample(
        time_ns=now,
        pages=tuple(tuple(count[owner] for owner in OWNERS) for count in counts),
        padding_tokens=progress.padding_tokens(step),
    )


class Progress:
    """Tokens that each running request has computed, and the attention pages that it has.

    A prefill's chunks are events. A decode computes a token in every step that decodes.
    """

    def __init__(self, trace: Trace) -> None:
        self._block_size = trace.memory.block_size
        self._targets = {
            (event.request, event.episode): event.tokens for event in trace.rows("enter")
        }
        self._decodes = _DecodeSteps(trace)
        self._pages: dict[int, int] = {}
        self._computed: dict[int, int] = {}
        self._since: dict[int, int] = {}
        """Of those that decode: decode steps before their first one."""

    def tokens(self, request: int, step: int) -> int:
        """Tokens that a running request has computed before a step."""
        computed = self._computed[request]
        if request in self._since:
            computed += self._decodes.before(step) - self._since[request]
        return computed

    def padding_tokens(self, step: int) -> int:
        size = self._block_size
        return sum(
            max(pages * size - self.tokens(request, step), 0)
            for request, pages in self._pages.items()
        )

    def apply(self, event: Event) -> None:
        if event.kind == "adopt":
            self._pages[event.request] = len(event.pages)
            self._computed[event.request] = event.tokens
            if (event.request, event.episode) not in self._targets:  # a branch decodes at once
                self._since[event.request] = self._decodes.before(event.step)
        elif event.kind == "take":
            if event.use == "attention" and event.request in self._pages:
                self._pages[event.request] += len(event.pages)
        elif event.kind == "chunk":
            self._computed[event.request] = event.start + event.tokens
            if self._computed[event.request] >= self._targets[event.request, event.episode]:
                self._since[event.request] = self._decodes.before(event.step + 1)
        elif event.kind == "release":
            del self._pages[event.request], self._computed[event.request]
            self._since.pop(event.request, None)


class _DecodeSteps:
    """Counts the steps that decoded."""

    def __init__(self, trace: Trace) -> None:
        steps = sorted(trace.rows("step"), key=lambda event: event.step)
        self._first: list[int] = [event.step for event in steps]
        self._count: list[int] = [event.count if event.decode_tokens else 0 for event in steps]
        self._sums = [0, *accumulate(self._count)]

    def before(self, step: int) -> int:
        place = bisect_right(self._first, step) - 1
        if place < 0:
            return 0
        return self._sums[place] + min(step - self._first[place], self._count[place])
