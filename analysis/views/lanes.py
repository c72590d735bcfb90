"""Requests as lanes: the phases of each one, from its entry to its end."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from hsexp.trace import Trace
from hsexp.trace.clock import Clock

PhaseKind = Literal["waiting", "prefill", "decode", "preempted"]

PHASES: tuple[PhaseKind, ...] = get_args(PhaseKind)


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """What a request did from `start_ns` to `end_ns`. `preempted` is the wait to come back."""

    kind: PhaseKind
    start_ns: int
    end_ns: int
    episode: int
    """Preemptions before it."""
    tokens: int | None
    """To compute while it waits; adopted at the start of a prefill; else None."""


@dataclass(kw_only=True)
class Lane:
    """A request and its phases; each begins where the one before it ends."""

    request: int
    id: str
    prompt_tokens: int | None
    """None for a branch, which never waits."""
    phases: list[Phase] = field(default_factory=list)
    is_finished: bool = False

    @property
    def start_ns(self) -> int:
        return self.phases[0].start_ns

    @property
    def end_ns(self) -> int:
        return self.phases[-1].end_ns

    def waited_ns(self, *kinds: PhaseKind) -> int:
        """Time in these phases."""
        return sum(phase.end_ns - phase.start_ns for phase in self.phases if phase.kind in kinds)


@dataclass(kw_only=True)
class _Open:
    kind: PhaseKind
    start_ns: int
    episode: int
    tokens: int | None
    target: int | None
    """Tokens after which the prefill ends."""

    def ends_with(self, tokens: int) -> bool:
        """Whether it is a prefill, and has computed all of its tokens."""
        return self.kind == "prefill" and self.target is not None and tokens >= self.target


def lanes(trace: Trace, clock: Clock) -> list[Lane]:
    """Every request that entered or was admitted, in order of their first events."""
    found: dict[int, Lane] = {}
    current: dict[int, _Open] = {}
    for event in trace.rows("enter", "adopt", "chunk", "release"):
        now, request = clock.of(event), event.request
        phase = current.get(request)
        if event.kind == "enter":
            if request not in found:
                found[request] = Lane(
                    request=request, id=event.id, prompt_tokens=event.prompt_tokens
                )
            kind: PhaseKind = "preempted" if event.episode else "waiting"
            current[request] = _Open(
                kind=kind,
                start_ns=now,
                episode=event.episode,
                tokens=event.tokens,
                target=event.tokens,
            )
        elif event.kind == "adopt":
            if request not in found:
                found[request] = Lane(request=request, id=event.id, prompt_tokens=None)
            if phase is not None:
                _close(found[request], phase, now)
            target = None if phase is None else phase.target
            current[request] = _Open(
                kind="decode" if target is None else "prefill",
                start_ns=now if phase is None else max(now, phase.start_ns),
                episode=event.episode,
                tokens=event.tokens,
                target=target,
            )
        elif event.kind == "chunk":
            if phase is not None and phase.ends_with(event.start + event.tokens):
                _close(found[request], phase, now)
                current[request] = _Open(
                    kind="decode",
                    start_ns=max(now, phase.start_ns),
                    episode=phase.episode,
                    tokens=None,
                    target=None,
                )
        elif phase is not None:
            _close(found[request], phase, now)
            del current[request]
            found[request].is_finished = event.cause == "finished"
    for request, phase in current.items():
        _close(found[request], phase, clock.end_ns)
    return list(found.values())


def _close(lane: Lane, phase: _Open, now: int) -> None:
    lane.phases.append(
        Phase(
            kind=phase.kind,
            start_ns=phase.start_ns,
            end_ns=max(now, phase.start_ns),
            episode=phase.episode,
            tokens=phase.tokens,
        )
    )
