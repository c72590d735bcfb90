"""Who owned the states that were adopted, and which states a policy kept: an audit of retention.

The paper's observe-only logs count requests and hashes of retention, but neither which frees were
skipped nor whose states were adopted (Sections 4.5 and 5.5).
"""

from collections import defaultdict
from dataclasses import dataclass

from hsexp.trace.clock import NS_PER_S, Clock
from hsexp.trace.lives import PageLife, PageLives
from hsexp.trace.schema import TraceError
from hsexp.trace.trace import Event, Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptState:
    """A state that a policy kept beyond execution (`keep`)."""

    request: int
    """Its holder: the request that moved on from it, or was preempted."""
    step: int
    cause: str
    """retained | pinned"""
    state: PageLife
    key: int
    num_references: int
    """References on the state, with the kept one."""

    @property
    def is_free_skip(self) -> bool:
        """Whether its pages would have been freed now, had the policy not kept it."""
        return self.cause == "retained" and self.num_references == 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Adoption:
    """A state that an admitted request reused."""

    request: int
    episode: int
    """Preemptions of the request before it."""
    tokens: int
    state: PageLife
    producer: int
    """The request that published it."""
    published_step: int
    adopted_step: int
    age_s: float | None
    """Time between both steps; None if the trace has no times."""
    was_referenced: bool
    """Whether somebody held the state, so that nobody could take its pages."""
    was_retained: bool
    """Whether a running request had kept the state at any time before."""
    was_pinned: bool
    """Whether a preemption had kept the state at any time before."""

    @property
    def is_own(self) -> bool:
        """Whether the request published it itself, before a preemption."""
        return self.producer == self.request


@dataclass(frozen=True, kw_only=True)
class Ownership:
    """The audit of one run."""

    kept: tuple[KeptState, ...]
    adoptions: tuple[Adoption, ...]


def ownership(trace: Trace) -> Ownership:
    """Replay who published, kept and adopted each state.

    Raises:
        TraceError: a state is kept or adopted that nobody has published.
    """
    pool = trace.memory.recurrent_pool
    lives = PageLives(trace.memory)
    published: dict[int, Event] = {}
    """The last publication of each state, by its first page."""
    kept: list[KeptState] = []
    adoptions: list[Adoption] = []
    causes: defaultdict[PageLife, set[str]] = defaultdict(set)
    woken: set[int] = set()
    """Pages to which the admission that comes next has added a reference."""
    clock = Clock(trace)

    for event in trace.rows("take", "hold", "publish", "keep", "adopt"):
        if event.kind == "take":
            lives.take(event)
        elif event.kind == "hold":
            if event.pool == pool and event.act == "admit":
                woken.update(event.pages)
        elif event.kind == "publish":
            if event.entry == "state":
                published[event.pages[0]] = event
        elif event.state is not None:
            source = published.get(event.state)
            if source is None:
                raise TraceError(f"event {event.seq} names state {event.state}, which has no key")
            state = lives.of(pool, event.state)
            if event.kind == "keep":
                causes[state].add(event.cause)
                kept.append(
                    KeptState(
                        request=event.request,
                        step=event.step,
                        cause=event.cause,
                        state=state,
                        key=source.keys[0],
                        num_references=event.count,
                    )
                )
            else:
                adoptions.append(
                    Adoption(
                        request=event.request,
                        episode=event.episode,
                        tokens=event.tokens,
                        state=state,
                        producer=source.request,
                        published_step=source.step,
                        adopted_step=event.step,
                        age_s=(clock.start(event.step) - clock.start(source.step)) / NS_PER_S
                        if clock.has_times
                        else None,
                        was_referenced=event.state not in woken,
                        was_retained="retained" in causes[state],
                        was_pinned="pinned" in causes[state],
                    )
                )
        if event.kind == "adopt":
            woken.clear()
    return Ownership(kept=tuple(kept), adoptions=tuple(adoptions))
