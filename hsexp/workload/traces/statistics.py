"""What is in a trace, before anything runs: lengths, rates, burstiness, sharing, sessions.

Sharing is that of an unlimited prefix cache: a request reuses the longest prefix that an earlier
one, in order of arrival, had as its prompt or, where the trace says so, as its answer.

    seen before   [ 46 ][ 47 ][ 2353 ]
    this prompt   [ 46 ][ 47 ][ 2354 ][ 2355 ]      depth: the end of 47
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hsexp.workload.traces import Trace
from hsexp.workload.traces.source import TraceRow

Ints = NDArray[np.int64]

PEAK_S = 10.0
"""Seconds of the window with the most arrivals."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A distribution in five numbers."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, given: Sequence[float] | Ints) -> "Spread | None":
        """None of nothing."""
        if len(given) == 0:
            return None
        values = np.asarray(given, dtype=np.float64)
        p50, p90, p99 = np.percentile(values, (50, 90, 99))
        return cls(
            mean=float(np.mean(values)),
            p50=float(p50),
            p90=float(p90),
            p99=float(p99),
            max=float(np.max(values)),
        )


@dataclass(frozen=True, kw_only=True)
class Load:
    """When requests arrive, by the trace's own times."""

    duration_s: float
    """From the first request to the last."""
    rate_per_s: float | None
    """None where all arrive at once."""
    prompt_tokens_per_s: float | None
    output_tokens_per_s: float | None
    peak_per_s: float
    """Most arrivals in `PEAK_S` seconds, as a rate."""
    gap_cv: float | None
    """Standard deviation of the gaps over their mean: 1 in a Poisson process, more in bursts. None
    of fewer than two gaps, or of none that lasts."""


@dataclass(frozen=True, kw_only=True)
class SessionStatistics:
    """Sessions of several turns or of one."""

    num_sessions: int
    turns: Spread
    pause_s: Spread | None
    """From a turn to the next one: the file's pause, or the time between the arrivals. None where
    the file says neither."""


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """What requests have in common."""

    rows: Sequence[TraceRow]
    depths: Ints
    """Tokens that each request reuses, of its prompt without the last token."""

    @classmethod
    def of(cls, rows: Sequence[TraceRow]) -> "Sharing":
        seen: set[int] = set()
        depths = np.zeros(len(rows), dtype=np.int64)
        for i, row in enumerate(rows):
            depth = 0
            for segment in row.segments:
                if segment.content_id not in seen:
                    break
                depth = segment.end_tokens
            depths[i] = min(depth, row.prompt_tokens - 1)
            seen.update(segment.content_id for segment in row.segments)
            if row.answer is not None:
                seen.add(row.answer.content_id)
        return cls(rows=rows, depths=depths)

    @property
    def prompt_tokens(self) -> int:
        return sum(row.prompt_tokens for row in self.rows)

    def fraction(self, grid: int = 1) -> float:
        """Fraction of the prompt tokens that are reused, if only at multiples of `grid` tokens."""
        return float((self.depths // grid * grid).sum() / self.prompt_tokens)

    @property
    def num_reusing(self) -> int:
        return int((self.depths > 0).sum())

    @property
    def depth(self) -> Spread | None:
        """Depths of those that reuse anything."""
        return Spread.of(self.depths[self.depths > 0])

    def num_units(self, size: int, *, asked_twice: bool) -> int:
        """Distinct stretches of `size` tokens, as a cache keys them: by the content in which they
        end.

        Args:
            asked_twice: only those of two requests or more; else all, private ones among them.
        """
        starts, ends, uses = self._contents
        units = ends // size - starts // size
        if asked_twice:
            return int(units[uses > 1].sum())
        begins, totals = self._private
        return int(units.sum() + (totals // size - begins // size).sum())

    def num_resumed(self, grid: int) -> int:
        """Distinct multiples of `grid` tokens, by content, at which a request resumes."""
        at = self.depths // grid * grid
        resumed: set[tuple[int, int]] = set()
        for i in np.flatnonzero(at):
            depth = int(at[i])
            segment = next(each for each in self.rows[i].segments if depth <= each.end_tokens)
            resumed.add((segment.content_id, depth))
        return len(resumed)

    @cached_property
    def _contents(self) -> tuple[Ints, Ints, Ints]:
        """Start, end and number of requests of each distinct segment."""
        uses: dict[int, int] = {}
        bounds: dict[int, tuple[int, int]] = {}
        for row in self.rows:
            start = 0
            for segment in row.segments if row.answer is None else (*row.segments, row.answer):
                identity = segment.content_id
                if identity in uses:
                    uses[identity] += 1
                else:
                    uses[identity] = 1
                    bounds[identity] = start, segment.end_tokens
                start = segment.end_tokens
        starts, ends = np.array([*bounds.values()], dtype=np.int64).reshape(-1, 2).T
        return starts, ends, np.array([*uses.values()], dtype=np.int64)

    @cached_property
    def _private(self) -> tuple[Ints, Ints]:
        """Where the private tokens of each request begin and end, its output among them."""
        begins, totals = [], []
        for row in self.rows:
            last = row.answer or (row.segments[-1] if row.segments else None)
            begins.append(0 if last is None else last.end_tokens)
            totals.append(row.prompt_tokens + row.output_tokens)
        return np.array(begins, dtype=np.int64), np.array(totals, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class TraceStatistics:
    """What is in a trace."""

    path: Path
    format: str
    num_requests: int
    dropped: Mapping[str, int]
    prompt_tokens: Spread
    output_tokens: Spread
    total_tokens: Ints
    """Prompt and output of each request."""
    load: Load | None
    """None where the file has no times."""
    sessions: SessionStatistics | None
    """None where the file has no sessions."""
    sharing: Sharing

    @classmethod
    def of(cls, trace: Trace) -> "TraceStatistics":
        prompts = np.array([row.prompt_tokens for row in trace.rows], dtype=np.int64)
        outputs = np.array([row.output_tokens for row in trace.rows], dtype=np.int64)
        prompt_tokens, output_tokens = Spread.of(prompts), Spread.of(outputs)
        assert prompt_tokens is not None
        assert output_tokens is not None
        return cls(
            path=trace.path,
            format=trace.format,
            num_requests=len(trace.rows),
            dropped=trace.dropped,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            total_tokens=prompts + outputs,
            load=_load(trace, prompts, outputs) if trace.has_times else None,
            sessions=_sessions(trace),
            sharing=Sharing.of(trace.rows),
        )


def _load(trace: Trace, prompts: Ints, outputs: Ints) -> Load:
    times = np.array(trace.times_s)
    duration_s = float(times[-1])
    gaps = np.diff(times)
    mean_gap = float(gaps.mean()) if gaps.size else 0.0
    in_window = np.searchsorted(times, times + PEAK_S, side="left") - np.arange(times.size)
    lasts = duration_s > 0
    return Load(
        duration_s=duration_s,
        rate_per_s=gaps.size / duration_s if lasts else None,
        prompt_tokens_per_s=float(prompts.sum()) / duration_s if lasts else None,
        output_tokens_per_s=float(outputs.sum()) / duration_s if lasts else None,
        peak_per_s=float(in_window.max()) / PEAK_S,
        gap_cv=float(gaps.std() / mean_gap) if gaps.size > 1 and mean_gap > 0 else None,
    )


def _sessions(trace: Trace) -> SessionStatistics | None:
    if all(row.conversation is None for row in trace.rows):
        return None
    turns = Spread.of([len(session) for session in trace.sessions])
    assert turns is not None
    pauses = [
        pause_ns / 1e9
        for session in trace.sessions
        for before, turn in pairwise(session)
        if (pause_ns := _pause_ns(trace.rows[before], trace.rows[turn])) is not None
    ]
    return SessionStatistics(
        num_sessions=len(trace.sessions), turns=turns, pause_s=Spread.of(pauses)
    )


def _pause_ns(before: TraceRow, turn: TraceRow) -> int | None:
    if turn.pause_ns is not None:
        return turn.pause_ns
    if turn.time_ns is None or before.time_ns is None:
        return None
    return turn.time_ns - before.time_ns
