"""Checkpoints, each over its whole life: who made it, how deep it is, who kept it, who lost it.

Page ids are reused. A state's identity is its first page and which life of that page it is: state
17.3 is in the third life of page 17.
"""

from dataclasses import dataclass
from typing import Literal

from hsexp.trace import Trace
from hsexp.trace.clock import Clock
from hsexp.trace.lives import PageLives

MarkKind = Literal["published", "lost", "retained", "pinned"]


@dataclass(kw_only=True, slots=True)
class State:
    """A published state."""

    page: int
    life: int
    producer: int | None
    """Request whose step published it."""
    tokens: int | None
    """Its depth; None before it is published."""
    key: int | None = None

    @property
    def name(self) -> str:
        return f"{self.page}.{self.life}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """Something that happened to a checkpoint."""

    kind: MarkKind
    time_ns: int
    seq: int
    request: int | None
    """Who published, keeps or pins it, or for whom it was lost."""
    state: State
    cause: str | None
    """Of a loss (`LossCause`)."""
    act: str | None
    """What the memory was doing when it lost it."""


def marks(trace: Trace, clock: Clock) -> list[Mark]:
    """Publications, losses, retentions and pins of checkpoints, in order."""
    lives = PageLives(trace.memory)
    states: dict[int, State] = {}
    found: list[Mark] = []
    recurrent = trace.memory.recurrent_pool
    for event in trace.rows("take", "publish", "lose", "keep"):
        if event.kind == "take":
            lives.take(event)
            continue
        if event.kind == "keep":
            page = event.state
        elif event.entry != "state":
            continue
        else:
            page = event.pages[0]
        if event.kind == "publish":
            state = states[page] = State(
                page=page,
                life=lives.of(recurrent, page).life,
                producer=event.request,
                tokens=event.tokens,
                key=event.keys[0],
            )
            kind: MarkKind = "published"
        else:
            state = states[page]
            kind = "lost" if event.kind == "lose" else event.cause
        found.append(
            Mark(
                kind=kind,
                time_ns=clock.of(event),
                seq=event.seq,
                request=event.request,
                state=state,
                cause=event.cause if event.kind == "lose" else None,
                act=event.act if event.kind == "lose" else None,
            )
        )
    return found
