"""The scheduler's record holds what was scheduled, in a run that preempts, replays and evicts."""

import json
from pathlib import Path
from typing import Any

import pytest
from vllm_scheduler import build_scheduler, drive, settings, vllm_config

from hsexp.config.base import ConfigError
from hsexp.config.catalog import read_option
from hsexp.config.device import DeviceConfig
from hsexp.engine.recording import KEY, RecordingScheduler
from hsexp.sim.steptime import StepClock
from hsexp.workload import generate
from hsexp.workload.arrivals import PoissonArrivals
from hsexp.workload.synthetic import SyntheticWorkload

CHOSEN = settings("d0", "b63")
"""D0 under the smallest budget: some requests are preempted."""


def scheduler(folder: Path, **additional: Any) -> RecordingScheduler:
    config = vllm_config(CHOSEN, folder)
    config.additional_config = config.additional_config | additional
    made: RecordingScheduler = build_scheduler(CHOSEN, config, RecordingScheduler)
    return made


def test_a_record_tells_every_step_and_every_request(tmp_path: Path) -> None:
    law = read_option("workload", "extension") | {"sharing": 1.0, "num_requests": 60}
    workload = generate(
        SyntheticWorkload.parse(law), PoissonArrivals(kind="poisson", rate_per_s=6.0), seed=7
    )
    device = DeviceConfig.parse(read_option("device", "a100_40gb"))
    recording = scheduler(tmp_path, **{KEY: str(tmp_path / "engine.jsonl")})
    driven = drive(recording, workload, StepClock.of(device.known_step_time))
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
