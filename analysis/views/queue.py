"""The queue around one wait: who was ahead, when it was first asked, what held it up."""

from dataclasses import dataclass

from analysis.views.reuse import Reuse
from hsexp.trace import Trace
from hsexp.trace.clock import Clock
from hsexp.trace.shortages import Preemption, preemptions
from hsexp.trace.trace import Event


@dataclass(frozen=True, kw_only=True)
class Wait:
    """From an entry to the admission that ended it."""

    ahead: tuple[int, ...]
    """Requests that waited already, in order of entry."""
    overtaken_by: tuple[int, ...]
    """Requests that joined later, for the first time, and were admitted earlier."""
    came_back: tuple[int, ...]
    """Requests that were preempted meanwhile, and came back before it was admitted."""
    num_running: int
    """At the entry."""
    first_asked_ns: int | None
    """When it was first asked for admission; None if its admission was the first time."""
    num_not_ready: int
    """Times that it waited for a step which was about to compute what it could reuse."""
    num_without_chunk: int
    """Times that it was asked and neither refused nor admitted: the step had no tokens left for a
    first chunk."""
    num_steps: int
    """Steps that started while it waited, with their work."""
    prefill_tokens: int
    decode_tokens: int
    num_full_steps: int | None
    """Steps that ran with as many requests as the cap allows; None if no cap is known."""


def wait_of(trace: Trace, reuse: Reuse, clock: Clock, *, cap: int | None) -> Wait:
    """What happened around a request while it waited."""
    entered, adopted = reuse.enter.seq, reuse.adopt.seq
    queue: dict[int, None] = {}
    running: set[int] = set()
    ahead: tuple[int, ...] = ()
    num_running = 0
    later: dict[int, int] = {}
    passed: list[int] = []
    first_asked: Event | None = None
    num_asked = num_not_ready = num_refused = num_full = 0
    num_steps = prefill_tokens = decode_tokens = 0
    for event in trace.rows("enter", "lookup", "refuse", "adopt", "release", "step"):
        if event.seq >= adopted:
            break
        inside = event.seq > entered
        if event.seq == entered:
            ahead, num_running = tuple(queue), len(running)
        if event.kind == "step":
            if inside and cap is not None and event.running >= cap:
                num_full += event.count
            if inside:
                num_steps += event.count
                prefill_tokens += event.count * event.prefill_tokens
                decode_tokens += event.count * event.decode_tokens
        elif event.kind == "enter":
            queue[event.request] = None
            if inside:
                later[event.request] = event.episode
        elif event.kind == "adopt":
            queue.pop(event.request, None)
            running.add(event.request)
            if event.request in later:
                passed.append(event.request)
        elif event.kind == "release":
            running.discard(event.request)
        elif not inside or event.request != reuse.request:
            continue
        elif event.kind == "refuse":
            num_refused += event.cause != "standing"
        else:
            first_asked = first_asked or event
            num_asked += 1
            num_not_ready += event.ahead
    adopted_ns = clock.of(reuse.adopt)
    asked_ns = None if first_asked is None else clock.of(first_asked)
    return Wait(
        ahead=ahead,
        overtaken_by=tuple(request for request in passed if not later[request]),
        came_back=tuple(request for request in passed if later[request]),
        num_running=num_running,
        first_asked_ns=None if asked_ns is None else min(asked_ns, adopted_ns),
        num_not_ready=num_not_ready,
        num_without_chunk=max(num_asked - 1 - num_not_ready - num_refused, 0),
        num_steps=num_steps,
        prefill_tokens=prefill_tokens,
        decode_tokens=decode_tokens,
        num_full_steps=None if cap is None else num_full,
    )


@dataclass(frozen=True, kw_only=True)
class Relapse:
    """A preemption, and what it cost its request."""

    preemption: Preemption
    recomputed_tokens: int
    """Of the tokens that it had computed, those that it prefilled again."""
    pinned_tokens: int | None
    """Depth of the checkpoint that was pinned for it; None if none was."""


def relapses(trace: Trace) -> list[Relapse]:
    """Every preemption, in order."""
    found = preemptions(trace)
    releases = {(each.victim, each.release.episode): each.release for each in found}
    computed_again: dict[tuple[int, int], int] = {}
    pins: dict[int, int | None] = {}
    depths: dict[int, int] = {}
    pinned: tuple[int, int] | None = None
    for event in trace.rows("keep", "publish", "release", "chunk"):
        if event.kind == "publish":
            if event.entry == "state":
                depths[event.pages[0]] = event.tokens
        elif event.kind == "keep":
            if event.cause == "pinned":
                pinned = event.request, depths[event.state]
        elif event.kind == "chunk":
            name = event.request, event.episode - 1
            if name in releases:
                again = max(min(event.start + event.tokens, releases[name].tokens) - event.start, 0)
                computed_again[name] = computed_again.get(name, 0) + again
        elif event.cause == "preempted":
            is_own = pinned is not None and pinned[0] == event.request
            pins[event.seq] = pinned[1] if is_own and pinned is not None else None
            pinned = None
    return [
        Relapse(
            preemption=each,
            recomputed_tokens=computed_again.get((each.victim, each.release.episode), 0),
            pinned_tokens=pins[each.release.seq],
        )
        for each in found
    ]
