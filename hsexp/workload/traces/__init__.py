"""Workloads read from trace files (docs/request_traces.md).

    source     the file: its text, decompressed, and refusals that name file and line
    records    CSV, JSON lines, JSON lists, Parquet
    formats    which format it is
    tables     lengths, and what a table says of shared content
    texts      prompts and conversations
    sessions   what the turns of a table share

A reader gives rows one by one, so a limit ends the reading, too. Times count from the first row in
every format: where a file's clock began changes nothing.
"""

import gc
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, takewhile, zip_longest
from pathlib import Path

import numpy as np
from numpy.random import Generator

from hsexp.config.base import ConfigError
from hsexp.workload.arrivals import ArrivalsConfig, arrival_times
from hsexp.workload.request import Request, Workload
from hsexp.workload.traces.config import TraceWorkload
from hsexp.workload.traces.formats import Reading, reading_of
from hsexp.workload.traces.sessions import continued
from hsexp.workload.traces.source import Source, TraceError, TraceRow

__all__ = ["Trace", "TraceError", "load_trace", "read_trace"]

_NS_PER_S = 1_000_000_000
_MAX_DAYS = 366
"""A longer trace is not one run but, say, a row of another clock."""

_OUTSIDE = "outside of start_s and duration_s"
_LEFT_OUT = "of sessions left out"
"""Why a request is left out."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The requests of a trace file, in order of time."""

    path: Path
    rows: Sequence[TraceRow]
    """At least one. Either all have a time or none has."""
    format: str = ""
    """Name of the format."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Requests of the file that are left out, by the reason. What comes after a limit is not read,
    and not counted."""

    @property
    def has_times(self) -> bool:
        return self.rows[0].time_ns is not None

    def replayed_by(self, spec: TraceWorkload) -> bool:
        """Whether the trace's own times are the arrivals. Then a seed draws nothing."""
        return spec.keep_arrivals and self.has_times

    @property
    def times_s(self) -> list[float]:
        """Seconds after the first row; empty if the file has no times."""
        times_ns = [row.time_ns for row in self.rows if row.time_ns is not None]
        return [(time_ns - times_ns[0]) / _NS_PER_S for time_ns in times_ns]

    @cached_property
    def sessions(self) -> list[list[int]]:
        """Positions of the turns of each session, in order. A request outside of any session is one
        of its own."""
        sessions: dict[tuple[bool, int], list[int]] = {}
        for i, row in enumerate(self.rows):
            label = row.conversation
            key = (label is None, i if label is None else label)
            sessions.setdefault(key, []).append(i)
        return list(sessions.values())

    @cached_property
    def digest(self) -> str:
        """SHA-256 over all requests and their times after the first row, as 64 hex digits.

        It does not depend on the file's place, format or clock.
        """
        sha = hashlib.sha256()
        for row, time in zip_longest(self.rows, self.times_s):
            segments = ",".join(map(str, row.segments))
            # What only sessions have is told apart where there is one.
            answer = "" if row.answer is None else f" {row.answer}"
            pause = "" if row.pause_ns is None else f" pause {row.pause_ns}"
            sha.update(
                f"{time!r} {row.prompt_tokens} {row.output_tokens} {segments} "
                f"{row.conversation}{answer}{pause}\n".encode()
            )
        return sha.hexdigest()


def read_trace(spec: TraceWorkload) -> Trace:
    """The requests of a trace file. Only rows that the settings leave out are dropped, and counted:
    one that cannot be served is refused.

    Raises:
        TraceError: names file, line and reason, or says that the file has other requests than
            `spec.content_digest` names.
        ConfigError: the tokenizer cannot be loaded.
    """
    source = Source.of(Path(spec.path))
    with _without_collection():
        reading = reading_of(source, spec)
        dropped = reading.dropped
        kept = _of_sessions(spec.sessions, _in_window(source, spec, reading), dropped)
        rows = list(islice(kept, spec.max_requests))
    if not rows:
        left_out = ", ".join(f"{count:,} {why}" for why, count in dropped.items() if count)
        rest = f"; left out: {left_out}" if left_out else ""
        raise source.error(None, f"no requests in this {reading.name} trace{rest}")
    _require_times_of_all(source, spec, rows)
    rows.sort(key=_time)  # equal times in the order of the file
    first, last = rows[0], rows[-1]
    if last.time_ns is not None and first.time_ns is not None:
        num_days = (last.time_ns - first.time_ns) // (86_400 * _NS_PER_S)
        if num_days >= _MAX_DAYS:
            raise source.error(
                last.line,
                f"its time is {num_days:,} days after that of line {first.line}; a trace may last "
                f"{_MAX_DAYS} days",
            )
    if reading.infers_history:
        rows = list(continued(rows))
    if spec.speed != 1.0:
        rows = list(_faster(spec.speed, rows))
    trace = Trace(
        path=source.path,
        rows=tuple(rows),
        format=reading.name,
        dropped={why: count for why, count in dropped.items() if count},
    )
    if spec.content_digest is not None and spec.content_digest != trace.digest:
        raise source.error(
            None,
            f"the file has changed: its requests have the digest {trace.digest}, not "
            f"{spec.content_digest}",
        )
    return trace


def load_trace(spec: TraceWorkload, arrivals: ArrivalsConfig | None, seed: int) -> Workload:
    """The requests of a trace file as a workload.

    The trace's own times are replayed if the file has times and `spec.keep_arrivals` is true.
    Otherwise times are drawn from `arrivals` with `seed`. In a file without times that also mixes
    the turns of different conversations, each conversation in its own order. A replayed trace is
    the same for all seeds. Nothing else is shuffled.

    Raises:
        TraceError, ConfigError: see `read_trace`; or arrivals are needed and missing.
    """
    trace = read_trace(spec)
    if not trace.replayed_by(spec) and arrivals is None:
        raise ConfigError(
            f"arrivals.rate_per_s is required: {trace.path} is not replayed with its own times"
        )
    if spec.turns == "closed":
        return _closed(trace, spec, arrivals, np.random.default_rng(seed))
    rows = trace.rows
    if trace.replayed_by(spec):
        times = trace.times_s
    else:
        assert arrivals is not None
        rng = np.random.default_rng(seed)
        rows = rows if trace.has_times else _mixed(rows, rng)
        times = arrival_times(arrivals, len(rows), rng)
    return Workload(
        name=spec.name,
        requests=tuple(
            _request(i, row, time) for i, (row, time) in enumerate(zip(rows, times, strict=True))
        ),
    )


def _request(
    request_id: int,
    row: TraceRow,
    arrival_s: float,
    *,
    after: int | None = None,
    think_s: float = 0.0,
) -> Request:
    return Request(
        request_id=request_id,
        arrival_s=arrival_s,
        prompt_tokens=row.prompt_tokens,
        output_tokens=row.output_tokens,
        segments=row.segments if row.answer is None else (*row.segments, row.answer),
        after=after,
        think_s=think_s,
    )


@contextmanager
def _without_collection() -> Iterator[None]:
    """Without Python's collector of cycles, which would walk over millions of rows again and again
    and find none."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# -- what is kept ----------------------------------------------------------------------------------


def _time(row: TraceRow) -> int:
    return row.time_ns or 0


def _in_window(source: Source, spec: TraceWorkload, reading: Reading) -> Iterator[TraceRow]:
    """The rows of a window of time; the file's rows as they come where it is open.

    A file in order of time is read up to the window's end.
    """
    rows = reading.reader.rows()
    if spec.start_s == 0.0 and spec.duration_s is None:
        yield from rows
        return
    if not reading.is_sorted:
        rows = iter(sorted(rows, key=_time))
    first = next(rows, None)
    if first is None:
        return
    if first.time_ns is None:
        raise source.error(
            None, "the file has no times, so workload.start_s and workload.duration_s mean nothing"
        )
    start_ns = first.time_ns + round(spec.start_s * _NS_PER_S)
    end_ns = None if spec.duration_s is None else start_ns + round(spec.duration_s * _NS_PER_S)
    for row in takewhile(lambda row: end_ns is None or _time(row) < end_ns, _chain(first, rows)):
        if _time(row) < start_ns:
            reading.dropped[_OUTSIDE] += 1
        else:
            yield row


def _chain(first: TraceRow, rows: Iterable[TraceRow]) -> Iterator[TraceRow]:
    yield first
    yield from rows


def _of_sessions(
    fraction: float, rows: Iterable[TraceRow], dropped: Counter[str]
) -> Iterator[TraceRow]:
    """The rows of a fraction of the sessions. A hash of its number decides over a session."""
    for row in rows:
        if fraction < 1.0:
            number = row.line if row.conversation is None else row.conversation
            digest = hashlib.sha256(str(number).encode()).digest()
            if int.from_bytes(digest[:8]) >= fraction * 2**64:
                dropped[_LEFT_OUT] += 1
                continue
        yield row


def _require_times_of_all(source: Source, spec: TraceWorkload, rows: Sequence[TraceRow]) -> None:
    """
    Raises:
        TraceError: some rows have a time and others have none, or settings need times.
    """
    timed = [row for row in rows if row.time_ns is not None]
    if timed and len(timed) < len(rows):
        without = next(row for row in rows if row.time_ns is None)
        raise source.error(without.line, f"it has no time, and line {timed[0].line} has one")
    if not timed and spec.speed != 1.0:
        raise source.error(None, "the file has no times, so workload.speed means nothing")


def _faster(speed: float, rows: Sequence[TraceRow]) -> Iterator[TraceRow]:
    start_ns = _time(rows[0])
    for row in rows:
        pause_ns = None if row.pause_ns is None else round(row.pause_ns / speed)
        yield replace(row, time_ns=round((_time(row) - start_ns) / speed), pause_ns=pause_ns)


# -- arrivals --------------------------------------------------------------------------------------


def _mixed(rows: Sequence[TraceRow], rng: Generator) -> Sequence[TraceRow]:
    """Spread the turns of each conversation over the trace, keeping their order.

    A random order of the conversations' labels decides whose turn is next. A trace with a row
    outside any conversation stays as it is.
    """
    labels = [row.conversation for row in rows if row.conversation is not None]
    if len(labels) < len(rows):
        return rows
    place = np.argsort(rng.permutation(labels), kind="stable")
    return [rows[i] for i in np.argsort(place)]


def _closed(
    trace: Trace, spec: TraceWorkload, arrivals: ArrivalsConfig | None, rng: Generator
) -> Workload:
    """Sessions whose later turns wait for the answer before them.

    Sessions begin with their first turns. Drawn ones begin at the rate over the mean number of
    turns, so that a long run carries `rate_per_s` requests per second.

    Raises:
        TraceError: no session has a second turn, or a turn has no think time.
    """
    sessions = trace.sessions
    if len(sessions) == len(trace.rows):
        raise TraceError(
            trace.path,
            None,
            f"workload.turns=closed needs sessions with several turns, and this {trace.format} "
            "trace has none; workload.columns.session=NAME names their column",
        )
    if trace.replayed_by(spec):
        times = trace.times_s
        begins = [times[turns[0]] for turns in sessions]
    else:
        assert arrivals is not None
        rate_per_s = arrivals.rate_per_s * len(sessions) / len(trace.rows)
        of_sessions = arrivals.model_copy(update={"rate_per_s": rate_per_s})
        begins = arrival_times(of_sessions, len(sessions), rng)
    planned: list[tuple[float, int, int | None, float]] = []
    for begin, turns in zip(begins, sessions, strict=True):
        earliest, before = begin, None
        for turn in turns:
            think_s = 0.0 if before is None else _think_s(trace, spec, before, turn)
            earliest = round(earliest + think_s, 9)
            planned.append((earliest, turn, before, think_s))
            before = turn
    planned.sort(key=lambda each: each[0])  # stable: a turn stays behind the one before it
    ids = {turn: i for i, (_, turn, _, _) in enumerate(planned)}
    return Workload(
        name=spec.name,
        requests=tuple(
            _request(
                i,
                trace.rows[turn],
                earliest,
                after=None if before is None else ids[before],
                think_s=think_s,
            )
            for i, (earliest, turn, before, think_s) in enumerate(planned)
        ),
    )


def _think_s(trace: Trace, spec: TraceWorkload, before: int, turn: int) -> float:
    """Time between the answer of a turn and the next turn.

    Raises:
        TraceError: nothing says it.
    """
    if spec.think_s is not None:
        return spec.think_s
    row, former = trace.rows[turn], trace.rows[before]
    if row.pause_ns is not None:
        return row.pause_ns / _NS_PER_S
    if row.time_ns is None or former.time_ns is None:
        raise TraceError(
            trace.path,
            row.line,
            "workload.think_s is required: the file has neither times nor pauses",
        )
    return (row.time_ns - former.time_ns) / _NS_PER_S
