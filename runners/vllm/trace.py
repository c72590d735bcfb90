"""Collects the trace of an engine's life: verified whole, then cut to the measured episode.

    start | warm-up ... emptied prefix cache | first arrival ... last release | end
    kept  | cut                              | kept                           | kept

Between the two the memory holds nothing, so that a replay can begin there. What is kept looks like
a trace of the simulator: requests have their workload ids, and times and steps count from the start
of the workload. An earlier try of a request that lost its connection has the id `12 try 0`.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hsexp.trace import Trace, TraceError
from hsexp.trace.file import read_trace_file
from runners.vllm.clock import Episode
from runners.vllm.engine_record import find_request
from runners.vllm.faults import TraceRefused
from runners.vllm.observed import Streams


def collect_trace(path: Path, streams: Streams, episode: Episode) -> Trace:
    """The trace of the episode.

    Raises:
        TraceRefused: the engine's trace has no end, a gap or a drop, or there is none.
    """
    try:
        whole = Trace(read_trace_file(path)).table
        return Trace(_cut(whole, streams, episode))
    except TraceError as error:
        raise TraceRefused(str(error)) from None


def _cut(whole: pa.Table, streams: Streams, episode: Episode) -> pa.Table:
    """The events since the episode began.

    Raises:
        TraceError: there are none.
    """
    times = whole["time_ns"].fill_null(-1).to_numpy()
    measured = np.flatnonzero(times >= episode.begin_ns)
    if not len(measured):
        raise TraceError("the trace has no event of the measured episode")
    first = int(measured[0])
    table = pa.concat_tables([whole.slice(0, 1), whole.slice(first)])
    first_step = whole["step"][first].as_py()
    num_warmup = whole["request"][first].as_py()
    steps = pc.max_element_wise(pc.subtract(table["step"], first_step), 0)
    columns = {
        "seq": np.arange(len(table)),
        "step": steps,  # the start comes before all steps
        "time_ns": pc.subtract(table["time_ns"], episode.start_ns),
        "request": pc.subtract(table["request"], num_warmup),
        "id": [_workload_id(name, streams) for name in table["id"].to_pylist()],
        "count": _with_last(table["count"], len(table) - 1),
    }
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        field = table.schema.field(place)
        values = values if isinstance(values, pa.ChunkedArray) else pa.array(values, field.type)
        table = table.set_column(place, field, values.cast(field.type))
    return table


def _workload_id(engine_id: str | None, streams: Streams) -> str | None:
    if engine_id is None or (found := find_request(engine_id)) is None:
        return engine_id
    index, num_retries = found
    stream = streams.all[index]
    own_id = str(stream.request.request_id)
    return own_id if num_retries == stream.num_retries else f"{own_id} try {num_retries}"


def _with_last(column: pa.ChunkedArray, value: int) -> pa.ChunkedArray:
    last = pa.array([value], column.type)
    return pa.chunked_array([*column.slice(0, len(column) - 1).chunks, last])
