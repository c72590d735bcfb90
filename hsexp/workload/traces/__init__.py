"""Workloads read from trace files, one reader per format, chosen once.

azure       CSV of an Azure LLM inference trace    times; no shared content
lengths     CSV of lengths                         times optional; no shared content
mooncake    JSON lines of a Mooncake trace         times; shared 512-token blocks
sharegpt    JSON list of conversations             no times; shared history of a conversation
auto        .jsonl is mooncake, .json is sharegpt; in a CSV the columns tell azure from lengths

A reader gives rows one by one, so a limit ends the reading, too. Times count from the first row in
every format: where a file's clock began changes nothing.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, zip_longest
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.random import Generator

from hsexp.config.base import ConfigError
from hsexp.workload.arrivals import ArrivalsConfig, arrival_times
from hsexp.workload.request import Request, Workload
from hsexp.workload.traces.config import TraceWorkload
from hsexp.workload.traces.mooncake import read_mooncake
from hsexp.workload.traces.sharegpt import read_sharegpt
from hsexp.workload.traces.source import Source, TraceError, TraceRow
from hsexp.workload.traces.tables import (
    AZURE_COLUMNS,
    LENGTH_COLUMNS,
    column_names,
    read_azure,
    read_lengths,
)

__all__ = ["Trace", "TraceError", "load_trace", "read_trace"]

_Format = Literal["azure", "lengths", "mooncake", "sharegpt"]

_NS_PER_S = 1_000_000_000
_MAX_DAYS = 366
"""A longer trace is not one run but, say, a row of another clock."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The requests of a trace file, in order of time."""

    path: Path
    rows: Sequence[TraceRow]
    """At least one. Either all have a time or none has."""

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
    def digest(self) -> str:
        """SHA-256 over all requests and their times after the first row, as 64 hex digits.

        It does not depend on the file's place, format or clock.
        """
        sha = hashlib.sha256()
        for row, time in zip_longest(self.rows, self.times_s):
            segments = ",".join(map(str, row.segments))
            sha.update(
                f"{time!r} {row.prompt_tokens} {row.output_tokens} {segments} "
                f"{row.conversation}\n".encode()
            )
        return sha.hexdigest()


def read_trace(spec: TraceWorkload) -> Trace:
    """The requests of a trace file. No row is dropped: one that cannot be served is refused.

    Raises:
        TraceError: names file, line and reason, or says that the file has other requests than
            `spec.content_digest` names.
        ConfigError: the tokenizer cannot be loaded.
    """
    source = Source.of(Path(spec.path))
    file_format = _detect(source) if spec.format == "auto" else spec.format
    rows = list(islice(_rows(source, file_format, spec.tokenizer), spec.max_requests))
    if not rows:
        raise source.error(None, f"no requests in this {file_format} trace")
    rows.sort(key=lambda row: row.time_ns or 0)  # equal times in the order of the file
    first, last = rows[0], rows[-1]
    if last.time_ns is not None and first.time_ns is not None:
        num_days = (last.time_ns - first.time_ns) // (86_400 * _NS_PER_S)
        if num_days >= _MAX_DAYS:
            raise source.error(
                last.line,
                f"its time is {num_days:,} days after that of line {first.line}; a trace may last "
                f"{_MAX_DAYS} days",
            )
    trace = Trace(path=source.path, rows=tuple(rows))
    if spec.content_digest not in (None, trace.digest):
        raise source.error(
            None,
            f"the file has changed: its requests have the digest {trace.digest}, not "
            f"{spec.content_digest}",
        )
    return trace


def load_trace(spec: TraceWorkload, arrivals: ArrivalsConfig | None, seed: int) -> Workload:
    """The requests of a trace file as a workload.

    The trace's own times are replayed if the file has times and `spec.keep_arrivals` is true.
    Otherwise times are drawn from `arrivals` with `seed`, which also mixes the turns of different
    conversations, each conversation in its own order. A replayed trace is the same for all seeds.
    Nothing else is shuffled.

    Raises:
        TraceError, ConfigError: see `read_trace`; or arrivals are needed and missing.
    """
    trace = read_trace(spec)
    rows = trace.rows
    if trace.replayed_by(spec):
        times = trace.times_s
    elif arrivals is None:
        raise ConfigError(
            f"arrivals.rate_per_s is required: {trace.path} is not replayed with its own times"
        )
    else:
        rng = np.random.default_rng(seed)
        rows = _mixed(rows, rng)
        times = arrival_times(arrivals, len(rows), rng)
    return Workload(
        name=spec.name,
        requests=tuple(
            Request(
                request_id=i,
                arrival_s=time,
                prompt_tokens=row.prompt_tokens,
                output_tokens=row.output_tokens,
                segments=row.segments,
            )
            for i, (row, time) in enumerate(zip(rows, times, strict=True))
        ),
    )


def _detect(source: Source) -> _Format:
    match source.path.suffix.lower():
        case ".jsonl":
            return "mooncake"
        case ".json":
            return "sharegpt"
    names = column_names(source)
    if set(AZURE_COLUMNS) <= set(names):
        return "azure"
    if set(LENGTH_COLUMNS) <= set(names):
        return "lengths"
    raise source.error(
        1,
        f"cannot tell the format: neither .jsonl (mooncake) nor .json (sharegpt), and the columns "
        f"{names} are neither {list(AZURE_COLUMNS)} (azure) nor {list(LENGTH_COLUMNS)} (lengths)",
    )


def _rows(source: Source, file_format: _Format, tokenizer: str | None) -> Iterator[TraceRow]:
    match file_format:
        case "azure":
            return read_azure(source)
        case "lengths":
            return read_lengths(source)
        case "mooncake":
            return read_mooncake(source)
        case "sharegpt":
            return read_sharegpt(source, tokenizer)


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
