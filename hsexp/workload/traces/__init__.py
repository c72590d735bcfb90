"""Workloads read from trace files, one reader per format, chosen once.

azure       CSV of an Azure LLM inference trace    times; no shared content
lengths     CSV of lengths                         times optional; no shared content
mooncake    JSON lines of a Mooncake trace         times; shared 512-token blocks
sharegpt    JSON list of conversations             no times; shared history of a conversation
auto        .jsonl is mooncake, .json is sharegpt; in a CSV the columns tell azure from lengths
"""

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

__all__ = ["TraceError", "load_trace"]

_Format = Literal["azure", "lengths", "mooncake", "sharegpt"]


def load_trace(spec: TraceWorkload, arrivals: ArrivalsConfig | None, seed: int) -> Workload:
    """Read the requests of a trace file.

    The trace's own times are replayed if the file has times and `spec.keep_arrivals` is true.
    Otherwise times are drawn from `arrivals` with `seed`, which also mixes the turns of different
    conversations, each conversation in its own order. A replayed trace is the same for all seeds.
    Nothing else is shuffled and no row is dropped: a row that cannot be served is refused.

    Raises:
        TraceError: names file, line and reason.
        ConfigError: the tokenizer cannot be loaded, or arrivals are needed and missing.
    """
    source = Source.read(Path(spec.path))
    file_format = _detect(source) if spec.format == "auto" else spec.format
    rows = _read(source, file_format, spec)
    if not rows:
        raise TraceError(source.path, None, f"no requests in this {file_format} trace")
    if not spec.keep_arrivals or any(row.arrival_s is None for row in rows):
        if arrivals is None:
            raise ConfigError(
                f"arrivals.rate_per_s is required: {source.path} is not replayed with its own times"
            )
        rng = np.random.default_rng(seed)
        rows = _mixed(rows, rng)
        times = arrival_times(arrivals, len(rows), rng)
    else:
        times = [row.arrival_s for row in rows if row.arrival_s is not None]
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


def _read(source: Source, file_format: _Format, spec: TraceWorkload) -> list[TraceRow]:
    match file_format:
        case "azure":
            return read_azure(source, spec.max_requests)
        case "lengths":
            return read_lengths(source, spec.max_requests)
        case "mooncake":
            return read_mooncake(source, spec.max_requests)
        case "sharegpt":
            return read_sharegpt(source, spec.max_requests, spec.tokenizer)


def _mixed(rows: list[TraceRow], rng: Generator) -> list[TraceRow]:
    """Spread the turns of each conversation over the trace, keeping their order.

    A random order of the conversations' labels decides whose turn is next. A trace with a row
    outside any conversation stays as it is.
    """
    labels = [row.conversation for row in rows if row.conversation is not None]
    if len(labels) < len(rows):
        return rows
    place = np.argsort(rng.permutation(labels), kind="stable")
    return [rows[i] for i in np.argsort(place)]
