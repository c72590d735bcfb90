"""The scheduler's record holds what was scheduled, in a run that preempts, replays and evicts.

So does its trace, which is whole or refused.
"""

import json
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cores import replace_method
from vllm_scheduler import Drive, build_scheduler, drive, settings, vllm_config, vllm_request

from hsexp.config.base import ConfigError
from hsexp.config.catalog import read_option
from hsexp.config.device import DeviceConfig
from hsexp.engine.recording import KEY, TRACE_KEY, RecordingScheduler
from hsexp.sim.steptime import StepClock
from hsexp.trace import Trace, TraceError, recorder
from hsexp.trace.file import read_trace_file
from hsexp.workload import Request, generate
from hsexp.workload.arrivals import PoissonArrivals
from hsexp.workload.synthetic import SyntheticWorkload

CHOSEN = settings("d0", "b63")
"""D0 under the smallest budget: some requests are preempted."""


def scheduler(folder: Path, **additional: Any) -> RecordingScheduler:
    config = vllm_config(CHOSEN, folder)
    config.additional_config = config.additional_config | additional
    made: RecordingScheduler = build_scheduler(CHOSEN, config, RecordingScheduler)
    return made


def serve(recording: RecordingScheduler) -> Drive:
    law = read_option("workload", "extension") | {"sharing": 1.0, "num_requests": 60}
    workload = generate(
        SyntheticWorkload.parse(law), PoissonArrivals(kind="poisson", rate_per_s=6.0), seed=7
    )
    device = DeviceConfig.parse(read_option("device", "a100_40gb"))
    return drive(recording, workload, StepClock.of(device.known_step_time))


def test_a_record_tells_every_step_and_every_request(tmp_path: Path) -> None:
    recording = scheduler(tmp_path, **{KEY: str(tmp_path / "engine.jsonl")})
    driven = serve(recording)
    counters = recording.kv_cache_manager.memory.cache.counters
    recording.shutdown()

    events = [json.loads(line) for line in (tmp_path / "engine.jsonl").read_text().splitlines()]
    kinds = {kind: [event for event in events if event[0] == kind] for kind in ("step", "request")}
    assert [tuple(event[3:]) for event in kinds["step"]] == driven.steps
    assert all(start < end for _, start, end, *_ in kinds["step"])

    assert len(kinds["request"]) == 60
    by_id = {int(event[1]): event[2:] for event in kinds["request"]}
    assert {key: fields[3] for key, fields in by_id.items()} == driven.adopted_tokens
    assert {key: fields[2] for key, fields in by_id.items()} == driven.num_preemptions
    assert sum(driven.num_preemptions.values()) > 0
    prefill, replayed, replayed_output = (
        sum(fields[place] for fields in by_id.values()) for place in (4, 5, 6)
    )
    assert prefill + replayed == sum(step[1] for step in driven.steps)
    assert replayed > replayed_output >= 0

    kind, _, totals, num_live, num_kept = events[-1]
    assert (kind, num_live, num_kept) == ("end", 0, 0)
    assert totals["preemptions"] == counters.preemptions > 0
    assert totals["pool_byte_steps"] > totals["stranded_byte_steps"] >= 0


def test_a_recording_scheduler_without_a_file_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"additional_config\.hsexp_record is required"):
        scheduler(tmp_path)


def test_a_full_disk_ends_the_record_and_not_the_serving(tmp_path: Path) -> None:
    recording = scheduler(tmp_path, **{KEY: "/dev/full"})
    recording.reset_prefix_cache()  # writes a mark, and the disk refuses
    recording.reset_prefix_cache()
    recording.shutdown()


# -- the trace -------------------------------------------------------------------------------------


def traced(folder: Path, trace: str | Path | None = None) -> RecordingScheduler:
    files = {KEY: str(folder / "engine.jsonl"), TRACE_KEY: str(trace or folder / "trace.arrow")}
    return scheduler(folder, **files)


def test_two_independent_counts_of_a_traced_engine_agree(tmp_path: Path) -> None:
    """The record counts requests and steps; the trace has chunks, steps and the memory's events."""
    recording = traced(tmp_path)
    serve(recording)
    memory = recording.kv_cache_manager.memory
    recording.shutdown()
    trace = Trace(read_trace_file(tmp_path / "trace.arrow"))
    lines = [json.loads(line) for line in (tmp_path / "engine.jsonl").read_text().splitlines()]
    requests = [line for line in lines if line[0] == "request"]
    chunks, steps = trace.events("chunk"), trace.events("step")
    initial = chunks["episode"] == 0
    assert chunks[initial]["tokens"].sum() == sum(line[6] for line in requests)
    assert chunks[~initial]["tokens"].sum() == sum(line[7] for line in requests) > 0
    assert [tuple(line[1:]) for line in lines if line[0] == "step"] == [
        (row.time_ns, row.time_ns + row.duration_ns, *row[6:]) for row in trace.rows("step")
    ]
    assert steps["prefill_tokens"].sum() == chunks["tokens"].sum()
    assert set(chunks["step"]) <= set(steps["step"])
    counters = memory.cache.counters
    assert trace.events("refuse")["count"].sum() == counters.refusals
    lost = trace.events("lose")
    assert (lost["entry"] == "state").sum() == counters.lost_checkpoints
    assert lost[lost["entry"] == "attention"]["pages"].map(len).sum() == counters.lost_blocks
    published = trace.events("publish")["entry"].tolist()
    assert published.count("state") == counters.published_checkpoints
    left = trace.events("release")["cause"].tolist()
    assert left.count("preempted") == counters.preemptions > 0


def test_a_trace_changes_neither_the_schedule_nor_how_often_the_memory_is_asked(
    tmp_path: Path,
) -> None:
    """Refusals stood only without an observer; a traced engine looked again in every step."""
    lookups: Counter[bool] = Counter()
    driven, counters = {}, {}
    for is_traced in (False, True):
        recording = traced(tmp_path) if is_traced else scheduler(tmp_path, **{KEY: "/dev/null"})
        memory = recording.kv_cache_manager.memory
        lookup = memory.lookup

        def counted(*args: Any, lookup: Any = lookup, is_traced: bool = is_traced) -> Any:
            lookups[is_traced] += 1
            return lookup(*args)

        replace_method(memory, "lookup", counted)
        driven[is_traced] = serve(recording)
        counters[is_traced] = memory.counters()
        recording.shutdown()
    assert driven[True] == driven[False]
    assert counters[True] == counters[False]
    assert lookups[True] == lookups[False] < counters[True]["refusals"] + 60  # some have stood


def test_an_engine_that_is_not_shut_down_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "BATCH", 64)
    recording = traced(tmp_path)
    serve(recording)
    table = read_trace_file(tmp_path / "trace.arrow")
    assert len(table) > 1000
    with pytest.raises(TraceError, match=f"no end record after {len(table)} events"):
        Trace(table)


def test_an_engine_that_is_shut_down_over_a_request_leaves_no_trace(tmp_path: Path) -> None:
    """vLLM shuts its scheduler down also when a worker has died."""
    recording = traced(tmp_path)
    request = Request(request_id=1, arrival_s=0.0, prompt_tokens=3000, output_tokens=5)
    recording.add_request(vllm_request(request, hash_block_size=recording.hash_block_size))
    recording.schedule()
    recording.shutdown()
    table = read_trace_file(tmp_path / "trace.arrow")
    assert {"enter", "adopt", "chunk"} < set(table["kind"].to_pylist())
    with pytest.raises(TraceError, match="no end record"):
        Trace(table)


@pytest.fixture
def full_disk() -> Iterator[Any]:
    """Files may not grow beyond a number of bytes: a write beyond it fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int | None) -> None:
        soft = before[0] if size is None else size
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, before[1]))

    yield limit
    limit(None)


@pytest.mark.parametrize("for_good", [False, True])
def test_a_disk_that_is_full_in_between_costs_the_trace_and_not_the_serving(
    for_good: bool, full_disk: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once there is room again the end record counts what was lost; else there is no end."""
    monkeypatch.setattr(recorder, "BATCH", 64)
    recording = scheduler(tmp_path, **{KEY: "/dev/null", TRACE_KEY: str(tmp_path / "trace.arrow")})
    full_disk(100_000)
    driven = serve(recording)
    assert len(driven.finish_ns) == 60
    if not for_good:
        full_disk(None)
    recording.shutdown()
    full_disk(None)
    table = read_trace_file(tmp_path / "trace.arrow")
    reason = "no end record" if for_good else r"has dropped \d{3,} events in \d+ failed writes"
    with pytest.raises(TraceError, match=reason):
        Trace(table)


def test_an_engine_whose_trace_has_no_room_from_the_start_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        traced(tmp_path, "/dev/full")
