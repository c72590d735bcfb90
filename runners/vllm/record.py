"""Joins what client and engine saw: the request table, the steps and the counters of a real run."""

from collections.abc import Mapping
from dataclasses import asdict

import numpy as np
import pandas as pd

from hsexp.measure.records import MEASURED_COLUMNS, REQUEST_COLUMNS, RunRecord
from hsexp.sim.balance import Imbalance, check_requests, check_tokens
from hsexp.workload import Workload
from runners.vllm.clock import Episode
from runners.vllm.engine_record import EngineRecord, EngineRequest
from runners.vllm.faults import RecordTorn
from runners.vllm.load import Measured
from runners.vllm.observed import Stream, Streams

_WORK = (
    "num_preemptions",
    "adopted_tokens",
    "prefill_tokens",
    "replayed_tokens",
    "replayed_output_tokens",
)


def put_together(
    workload: Workload,
    refused: Mapping[int, str],
    streams: Streams,
    measured: Measured,
    engine: EngineRecord,
) -> RunRecord:
    """The record of a run that has ended well.

    Args:
        refused: why a request was not sent, by its id.

    Raises:
        RecordTorn: client and engine contradict each other.
    """
    episode = measured.episode
    sent = {stream.request.request_id: index for index, stream in enumerate(streams.all)}
    rows = []
    for request in workload.requests:
        row: dict[str, object] = {
            "request_id": request.request_id,
            "prompt_tokens": request.prompt_tokens,
            "output_tokens": request.output_tokens,
            "arrival_s": request.arrival_s,
        }
        index = sent.get(request.request_id)
        if index is None:
            row |= {"status": "refused", "reason": refused[request.request_id]}
            rows.append(row | _never_ran())
        else:
            planned_s = request.arrival_s
            if request.after is not None:
                planned_s = episode.seconds(streams.planned_ns(index, episode.start_ns))
            row |= {"status": "finished", "reason": None, "arrival_s": planned_s}
            rows.append(row | _ran(index, streams.all[index], engine, episode))
    columns = REQUEST_COLUMNS | MEASURED_COLUMNS
    record = RunRecord(
        requests=pd.DataFrame(rows)[list(columns)].astype(columns),
        steps=engine.steps,
        counters=dict(engine.counters),
        samples=measured.samples,
        token_gaps_s=streams.token_gaps_s(),
        episode_s=episode.length_s,
    )
    _require_balance(record)
    return record


def _ran(index: int, stream: Stream, engine: EngineRecord, episode: Episode) -> dict[str, object]:
    seen = engine.requests.get((index, stream.num_retries))
    if seen is None or not seen.is_finished:
        status = "nothing" if seen is None else seen.status
        raise RecordTorn(f"request {stream.request.request_id} finished; the engine has {status}")
    assert stream.sent_ns is not None
    assert stream.first_token_ns is not None
    assert stream.last_token_ns is not None
    return {
        "generated_tokens": len(stream.tokens),
        "first_scheduled_s": episode.seconds(seen.first_scheduled_ns),
        "first_token_s": episode.seconds(stream.first_token_ns),
        "finish_s": episode.seconds(stream.last_token_ns),
        "sent_s": episode.seconds(stream.sent_ns),
        "num_retries": stream.num_retries,
        "output_digest": stream.output_digest,
        **_work(seen),
    }


def _never_ran() -> dict[str, object]:
    times = ("first_scheduled_s", "first_token_s", "finish_s", "sent_s")
    return {
        "generated_tokens": 0,
        "num_retries": 0,
        "output_digest": None,
        **dict.fromkeys(_WORK, 0),
        **dict.fromkeys(times, np.nan),
    }


def _work(seen: EngineRequest) -> dict[str, int]:
    return {name: value for name, value in asdict(seen).items() if name in _WORK}


def _require_balance(record: RunRecord) -> None:
    """Check a measured run like a simulated one; tokens only if no request was computed twice."""
    try:
        check_requests(record.requests)
        if not record.requests["num_retries"].any():
            check_tokens(record)
    except Imbalance as error:
        raise RecordTorn(f"the engine's record does not balance: {error}") from None
