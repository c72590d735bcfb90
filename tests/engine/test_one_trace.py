"""vLLM's scheduler over the memory core and the simulator write the same trace, event by event.

What moves, for whom and why is compared (`hsexp.trace.compare`). The simulator runs step by step,
since one that leaps publishes a decode's blocks some steps later.
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

from hsexp.config.base import parse_union
from hsexp.config.catalog import read_option
from hsexp.config.device import DeviceConfig
from hsexp.engine.recording import KEY, TRACE_KEY, RecordingScheduler
from hsexp.engine.settings import EngineSettings
from hsexp.sim.config import SchedulerConfig
from hsexp.sim.engine import simulate
from hsexp.sim.steptime import StepClock
from hsexp.trace import Trace, TraceRecorder
from hsexp.trace.compare import deeds
from hsexp.trace.episodes import Episode, episodes
from hsexp.trace.file import read_trace_file
from hsexp.workload import Workload, WorkloadConfig, build, generate, isolate
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

ARRIVALS = PoissonArrivals(kind="poisson", rate_per_s=3.0)

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


@pytest.mark.parametrize(("organization", "budget", "policies", "isolated"), CASES)
def test_vllm_and_the_simulator_write_the_same_trace(
    organization: str, budget: str, policies: dict[str, Any], isolated: bool, tmp_path: Path
) -> None:
    law = read_option("workload", "extension") | {"sharing": 1.0}
    workload = generate(SyntheticWorkload.parse(law), ARRIVALS, seed=7)
    chosen = settings(organization, budget, **policies)
    found = check_one_trace(chosen, isolate(workload) if isolated else workload, tmp_path)
    assert all(each.is_replayed for each in found)


@pytest.mark.parametrize("organization", ["s2", "d0"])
def test_so_they_do_where_conversations_leave_states_off_the_grid(
    organization: str, tmp_path: Path
) -> None:
    spec = parse_union(WorkloadConfig, read_option("workload", "conversations"), path="")
    workload = build(spec, ARRIVALS, seed=7)
    chosen = settings(organization, "b63", leaves="final")
    found = check_one_trace(chosen, workload, tmp_path)
    from_leaves = [each for each in found if each.adopted_tokens % chosen.layout.checkpoint_grid]
    assert from_leaves
    assert all(each.adopted_tokens > each.computed.joint for each in from_leaves)
    assert all(each.is_replayed or each in from_leaves for each in found)


def check_one_trace(chosen: EngineSettings, workload: Workload, tmp_path: Path) -> list[Episode]:
    """Both run the workload and write the same. Returns the episodes."""
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
    assert deeds(engine) == deeds(simulated)
    assert len(deeds(engine)) > 4000
    assert steps(engine) == steps(simulated)
    assert engine.memory == simulated.memory
    found, expected = episodes(engine), episodes(simulated)
    assert len(found) >= len(workload.requests)
    for name in ("id", "episode", "entry", "adopted_tokens", "computed", "visible"):
        assert [getattr(each, name) for each in found] == [getattr(each, name) for each in expected]
    return found


def steps(trace: Trace) -> list[tuple[int, ...]]:
    return [
        (event.decode_tokens, event.prefill_tokens, event.running, event.waiting)
        for event in trace.rows("step")
        for _ in range(event.count)
    ]
