"""Submitted work and event time of a run, from its schedule (Appendices B.8, C.3 and E.2).

    INITIAL ......... prefill of a request that was never preempted
    RESUME .......... prefill after a preemption
    NORMAL_DECODE ... one token of each decoding request and step

The tokens are those of the schedule as it ran: a chunk that was scheduled and rolled back in the
same step is none. Chunks tell INITIAL from RESUME; steps count prefill and decode tokens on their
own, and the lives of the requests count the decode tokens a third time (`hsexp.trace.agreement`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hsexp.measure.window import central_window
from hsexp.trace.trace import Event, Trace

Phase = Literal["prefill", "mixed", "decode"]
"""What a step carries: prefill tokens, decode tokens, or both."""
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(kw_only=True)
class Life:
    """One admission of a request, until it leaves."""

    request: int
    id: str
    episode: int
    """Preemptions before it: 0 is INITIAL, others are RESUME."""
    prompt_tokens: int
    end: int
    """Tokens to prefill, cached ones too: the prompt, and outputs of earlier lives."""
    adopted_step: int
    adopted_tokens: int
    computed_before: int
    """Most tokens that earlier lives have computed."""
    prefill_tokens: int = 0
    prefilled_to: int
    """Where the last chunk ended."""
    recomputed_tokens: int = 0
    """Prefill tokens that an earlier life has computed already."""
    output_tokens: int = 0
    """Prefill tokens that are outputs of earlier lives."""
    last_chunk_step: int | None = None
    left_step: int | None = None
    """None if it never left."""
    computed: int | None = None
    """Tokens when it left; None if it never did."""
    cause: str | None = None
    """finished | preempted; None if it never left."""
    chunks: list[tuple[int, int]] = field(default_factory=list)
    """Step and tokens of each chunk."""

    @property
    def decode_tokens(self) -> int:
        """Tokens that it decoded: those between its last chunk and its end."""
        return 0 if self.computed is None else self.computed - self.prefilled_to

    @property
    def planned_prompt_replay(self) -> int:
        """Of a RESUME: prompt tokens that its admission leaves to compute."""
        return max(self.prompt_tokens - self.adopted_tokens, 0) if self.episode else 0

    @property
    def planned_output_replay(self) -> int:
        """Of a RESUME: outputs of earlier lives that its admission leaves to compute."""
        return self.end - max(self.prompt_tokens, self.adopted_tokens) if self.episode else 0

    def add_chunk(self, event: Event) -> None:
        start, end = event.start, event.start + event.tokens
        self.prefill_tokens += event.tokens
        self.prefilled_to = end
        self.recomputed_tokens += max(min(end, self.computed_before) - start, 0)
        self.output_tokens += max(end - max(start, self.prompt_tokens), 0)
        self.last_chunk_step = event.step
        self.chunks.append((event.step, event.tokens))


def lives(trace: Trace) -> list[Life]:
    """The lives of all requests, in order of their admissions. A branch has no entry: its prompt
    ends where it starts."""
    found: list[Life] = []
    entered: dict[int, Event] = {}
    alive: dict[int, Life] = {}
    computed: dict[int, int] = {}
    for event in trace.rows("enter", "adopt", "chunk", "release"):
        if event.kind == "enter":
            entered[event.request] = event
        elif event.kind == "adopt":
            entry = entered.get(event.request)
            life = Life(
                request=event.request,
                id=event.id,
                episode=event.episode,
                prompt_tokens=event.tokens if entry is None else entry.prompt_tokens,
                end=event.tokens if entry is None else entry.tokens,
                adopted_step=event.step,
                adopted_tokens=event.tokens,
                computed_before=computed.get(event.request, 0),
                prefilled_to=event.tokens,
            )
            alive[event.request] = life
            found.append(life)
        elif event.kind == "chunk":
            alive[event.request].add_chunk(event)
        else:
            life = alive.pop(event.request)
            life.left_step, life.computed, life.cause = event.step, event.tokens, event.cause
            computed[event.request] = max(event.tokens, life.computed_before)
    return found


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the steps of a run carried, and how long they took."""

    initial_tokens: int
    resume_tokens: int
    prefill_tokens: int
    """As the steps count them: INITIAL and RESUME."""
    decode_tokens: int
    """NORMAL_DECODE: inputs of decoding requests."""
    forwards: dict[Phase, int]
    """Steps that carry tokens, by phase."""
    time_ns: dict[Phase, int]
    """Sum of their durations."""
    length_ns: int | None = None
    """Length of the window; None for a whole run."""

    @property
    def submitted_tokens(self) -> int:
        return self.prefill_tokens + self.decode_tokens

    @property
    def num_forwards(self) -> int:
        return sum(self.forwards.values())

    @property
    def event_time_ns(self) -> int:
        return sum(self.time_ns.values())


def work(trace: Trace, window_ns: tuple[int, int] | None = None) -> Work:
    """The work of a run, or of the steps that end in a window (start, end].

    Args:
        window_ns: of the engine's clock.
    """
    steps = _StepTable.of(trace)
    count = steps.count if window_ns is None else steps.ended_within(*window_ns)
    carried = {
        "prefill": (steps.prefill > 0) & (steps.decode == 0),
        "mixed": (steps.prefill > 0) & (steps.decode > 0),
        "decode": (steps.prefill == 0) & (steps.decode > 0),
    }
    initial = resume = 0
    numbers = None if window_ns is None else set(steps.numbers_within(*window_ns))
    for event in trace.rows("chunk"):
        if numbers is None or event.step in numbers:
            if event.episode:
                resume += event.tokens
            else:
                initial += event.tokens
    return Work(
        initial_tokens=initial,
        resume_tokens=resume,
        prefill_tokens=int((count * steps.prefill).sum()),
        decode_tokens=int((count * steps.decode).sum()),
        forwards={phase: int(count[carried[phase]].sum()) for phase in PHASES},
        time_ns={phase: int((count * steps.duration_ns)[carried[phase]].sum()) for phase in PHASES},
        length_ns=None if window_ns is None else window_ns[1] - window_ns[0],
    )


def realised_window_ns(trace: Trace) -> tuple[int, int] | None:
    """20th to 80th percentile of the times at which the requests of this run joined the queue
    (B.8). None where it has no length."""
    times = [event.time_ns for event in trace.rows("enter") if event.episode == 0]
    window = central_window(np.array(times, dtype=np.float64))
    return None if window is None else (round(window.start_s), round(window.end_s))


@dataclass(frozen=True, kw_only=True)
class _StepTable:
    """Stretches of equal steps, in order."""

    first: NDArray[np.int64]
    count: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    prefill: NDArray[np.int64]
    decode: NDArray[np.int64]

    @classmethod
    def of(cls, trace: Trace) -> "_StepTable":
        events = trace.rows("step")

        def column(name: str) -> NDArray[np.int64]:
            return np.array([getattr(event, name) for event in events], dtype=np.int64)

        return cls(
            first=column("step"),
            count=column("count"),
            start_ns=column("time_ns"),
            duration_ns=column("duration_ns"),
            prefill=column("prefill_tokens"),
            decode=column("decode_tokens"),
        )

    def ended_by(self, time_ns: int) -> NDArray[np.int64]:
        """Steps of each stretch that have ended by a time, one that ends exactly then included."""
        ended = (time_ns - self.start_ns) // np.maximum(self.duration_ns, 1)
        return np.asarray(np.clip(ended, 0, self.count), dtype=np.int64)

    def ended_within(self, start_ns: int, end_ns: int) -> NDArray[np.int64]:
        return self.ended_by(end_ns) - self.ended_by(start_ns)

    def numbers_within(self, start_ns: int, end_ns: int) -> Iterator[int]:
        """Numbers of the steps that end in (start, end]."""
        stops = zip(
            self.first.tolist(),
            self.ended_by(start_ns).tolist(),
            self.ended_by(end_ns).tolist(),
            strict=True,
        )
        for first, low, high in stops:
            yield from range(first + low, first + high)
