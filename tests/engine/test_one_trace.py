"""vLLM's scheduler over the memory core and the simulator write the same trace, event by event.

Every page, state and cause is compared. What a leap of the simulator skips is not there to compare,
so that it runs step by step. Three things are told apart only by how they are written down: steps
are rows of their own here and stretches there; keys are hashes here and numbers there; and a
refusal that stands is looked up again there.
"""

from pathlib import Path
from typing import Any

import pytest
from vllm_scheduler import (
    MAX_MODEL_TOKENS,
    build_scheduler,
    drive,
    settings,
    vllm_config,
)

from hsexp.config.catalog import read_option
from hsexp.config.device import DeviceConfig
from hsexp.engine.recording import KEY, TRACE_KEY, RecordingScheduler
from hsexp.sim.config import SchedulerConfig
from hsexp.sim.engine import simulate
from hsexp.sim.steptime import StepClock
from hsexp.trace import Trace, TraceRecorder
from hsexp.trace.episodes import episodes
from hsexp.trace.file import read_trace_file
from hsexp.trace.schema import COLUMNS
from hsexp.workload import generate, isolate
from hsexp.workload.arrivals import PoissonArrivals
from hsexp.workload.synthetic import SyntheticWorkload

P = {
    "eviction": "restart_point",
    "retention": "priced",
    "reservation": "promised",
    "states": "in_place",
    "waiting": "hit_first",
    "placement": "junction",
}

CASES: list[tuple[str, str, dict[str, Any], bool]] = [
    ("s0", "b63", {}, False),
    ("s1", "b108", {"headroom": 0.19}, False),
    ("s2", "b63", {}, False),
    ("s2", "b83", {"retention": "k2", "pinning": "k1"}, True),
    ("d0", "b63", {"pinning": "k1"}, False),
    ("s2", "b63", {"exact": True}, False),
    ("s3", "b63", {"placement": "junction", "eviction": "lru", "waiting": "hit_first"}, False),
    ("s2", "b63", P, False),
]

NEVER_COMPARED = ("start", "step", "end", "lookup")


@pytest.mark.parametrize(("organization", "budget", "policies", "isolated"), CASES)
def test_vllm_and_the_simulator_write_the_same_trace(
    organization: str, budget: str, policies: dict[str, Any], isolated: bool, tmp_path: Path
) -> None:
    chosen = settings(organization, budget, **policies)
    law = read_option("workload", "extension") | {"sharing": 1.0}
    workload = generate(
        SyntheticWorkload.parse(law), PoissonArrivals(kind="poisson", rate_per_s=3.0), seed=7
    )
    workload = isolate(workload) if isolated else workload
    device = DeviceConfig.parse(read_option("device", "a100_40gb"))

    config = vllm_config(chosen, tmp_path)
    config.additional_config |= {
        KEY: str(tmp_path / "engine.jsonl"),
        TRACE_KEY: str(tmp_path / "trace.arrow"),
    }
    scheduler = build_scheduler(chosen, config, RecordingScheduler)
    drive(scheduler, workload, StepClock.of(device.known_step_time), exact=chosen.exact)
    scheduler.shutdown()
    engine = Trace(read_trace_file(tmp_path / "trace.arrow"))
    simulated = simulate(
        workload,
        chosen.memory(),
        scheduler=SchedulerConfig.parse(read_option("scheduler", "v1") | {"fast_forward": False}),
        device=device,
        cap=chosen.admission.cap,
        max_model_tokens=MAX_MODEL_TOKENS,
        exact=chosen.exact,
        waiting=chosen.waiting,
        trace=TraceRecorder(),
    ).trace

    assert simulated is not None
    assert events(engine) == events(simulated)
    assert steps(engine) == steps(simulated)
    assert engine.memory == simulated.memory
    found, expected = episodes(engine), episodes(simulated)
    assert len(found) >= len(workload.requests)
    assert all(each.is_replayed for each in found)
    for name in ("id", "episode", "entry", "adopted_tokens", "computed", "visible"):
        assert [getattr(each, name) for each in found] == [getattr(each, name) for each in expected]


def events(trace: Trace) -> list[dict[str, Any]]:
    """What moved, for whom and why, in order; refusals of a request are counted."""
    kinds, found = [kind for kind in COLUMNS if kind not in NEVER_COMPARED], []
    for event in trace.rows(*kinds):
        values = event._asdict()
        for name in ("seq", "step", "time_ns"):
            values.pop(name, None)
        for name in ("keys", "boundary_keys"):
            if name in values:
                values[name] = len(values[name])
        if event.kind == "refuse":
            values = {"kind": "refuse", "request": event.request, "count": event.count}
            if found and found[-1]["kind"] == "refuse" and found[-1]["request"] == event.request:
                found[-1]["count"] += event.count
                continue
        found.append(values)
    return found


def steps(trace: Trace) -> list[tuple[int, ...]]:
    return [
        (event.decode_tokens, event.prefill_tokens, event.running, event.waiting)
        for event in trace.rows("step")
        for _ in range(event.count)
    ]
