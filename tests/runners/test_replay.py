"""Replaying a run: what the simulator did itself it repeats, and any change is found."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pyarrow.compute as pc
import pytest
from hydra import compose, initialize_config_dir
from small_launches import SMALL, carried_out

from analysis.errors import AnalysisError
from hsexp.config.catalog import CONF
from hsexp.config.launch import parse_launch
from hsexp.measure.records import RunRecord
from hsexp.plan.planner import make_plan
from hsexp.plan.run import RunConfig
from hsexp.sim.engine import simulate
from hsexp.trace import Trace, TraceRecorder
from hsexp.workload import build
from runners.replay import Replay, main, replay


@pytest.fixture(scope="module", params=["s0", "s2", "d0"])
def config(request: pytest.FixtureRequest) -> RunConfig:
    overrides = ["campaign=q6", "workload.num_requests=40", "budget=b63", "seeds=[42000]"]
    overrides.append(f"organization={request.param}")
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        plan = make_plan(parse_launch(compose("config", overrides)), engine="sim")
    return RunConfig.parse(plan.cells[0].config)


@pytest.fixture(scope="module")
def record(config: RunConfig) -> RunRecord:
    return simulate(
        build(config.workload, config.arrivals, config.seed),
        config.memory(),
        scheduler=config.scheduler,
        device=config.device,
        cap=config.admission.cap,
        max_model_tokens=config.model.max_model_tokens,
    )


def steps_of(record: RunRecord) -> pd.DataFrame:
    """One row a step, as an engine records them."""
    stretches = record.steps.reset_index(drop=True)
    steps = stretches.loc[stretches.index.repeat(stretches["num_steps"])]
    place = steps.groupby(level=0).cumcount()
    return steps.assign(start_s=steps["start_s"] + place * steps["step_s"]).reset_index(drop=True)


def repeat(
    config: RunConfig,
    record: RunRecord,
    *,
    steps: Callable[[pd.DataFrame], pd.DataFrame] = lambda steps: steps,
    sent: Callable[[pd.Series], pd.Series] = lambda times: times,
    **counters: int,
) -> Replay:
    requests = record.requests.assign(sent_s=sent(record.requests["arrival_s"]))
    return replay(config, requests, steps(steps_of(record)), record.counters | counters)


def test_a_run_is_repeated_step_by_step(config: RunConfig, record: RunRecord) -> None:
    found = repeat(config, record)
    assert found.repeated
    assert found.num_steps == record.steps["num_steps"].sum()
    assert (found.num_delayed, found.largest_delay_s, found.difference) == (0, 0.0, None)


def test_requests_that_were_sent_earlier_than_they_were_seen_are_found(
    config: RunConfig, record: RunRecord
) -> None:
    # 40 ms: more than the steps in which nothing but decodes is computed.
    found = repeat(config, record, sent=lambda times: (times - 0.04).clip(lower=0.0))
    assert found.repeated
    assert found.num_delayed > 0
    assert found.largest_delay_s == pytest.approx(0.04, abs=0.04)


def test_a_step_that_took_other_tokens_is_named(config: RunConfig, record: RunRecord) -> None:
    def one_more(steps: pd.DataFrame) -> pd.DataFrame:
        changed = steps["prefill_tokens"].to_numpy(copy=True)
        changed[7] += 1
        return steps.assign(prefill_tokens=changed)

    found = repeat(config, record, steps=one_more)
    assert not found.repeated
    assert found.num_equal_steps == 7
    assert found.difference is not None and found.difference.startswith("step 7 (decode_tokens,")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda steps: steps[:-1], "the record ends and the replay does not"),
        (lambda steps: pd.concat([steps, steps[-1:]]), "the replay ends and the record does not"),
    ],
)
def test_a_run_of_another_length_is_not_repeated(
    change: Callable[[pd.DataFrame], pd.DataFrame],
    reason: str,
    config: RunConfig,
    record: RunRecord,
) -> None:
    found = repeat(config, record, steps=change)
    assert not found.repeated
    assert found.difference is not None and reason in found.difference


def test_a_counter_that_differs_is_named(config: RunConfig, record: RunRecord) -> None:
    lost = record.counters["lost_blocks"]
    found = repeat(config, record, lost_blocks=lost + 1)
    assert found.different_counters == (f"lost_blocks: measured {lost + 1}, replayed {lost}",)
    assert not found.repeated


def test_a_traced_run_is_repeated_event_by_event(config: RunConfig, record: RunRecord) -> None:
    run = simulate(
        build(config.workload, config.arrivals, config.seed),
        config.memory(),
        scheduler=config.scheduler.model_copy(update={"fast_forward": False}),
        device=config.device,
        cap=config.admission.cap,
        max_model_tokens=config.model.max_model_tokens,
        trace=TraceRecorder(),
    )
    assert run.trace is not None
    requests = run.requests.assign(sent_s=run.requests["arrival_s"])
    found = replay(config, requests, steps_of(run), run.counters, run.trace)
    assert found.repeated
    assert found.num_equal_events == found.num_events
    assert found.num_events is not None and found.num_events > 400

    published = pc.and_(
        pc.equal(run.trace.table["kind"], "publish"), pc.equal(run.trace.table["entry"], "state")
    )
    tokens, field = run.trace.table["tokens"], run.trace.table.schema.field("tokens")
    deeper = pc.if_else(published, pc.add(tokens, 1), tokens).cast(field.type)
    place = run.trace.table.schema.get_field_index("tokens")
    other = Trace(run.trace.table.set_column(place, field, deeper))
    found = replay(config, requests, steps_of(run), run.counters, other)
    assert found.difference is None and not found.different_counters
    assert not found.repeated


def test_every_counter_of_the_memory_is_compared(config: RunConfig, record: RunRecord) -> None:
    names = asdict(config.memory().cache.counters)
    wrong = {name: record.counters[name] + 1 for name in names}
    assert len(repeat(config, record, **wrong).different_counters) == len(names)


def test_simulated_runs_are_no_measured_ones(tmp_path: Path) -> None:
    folder = tmp_path / "q6"
    carried_out("campaign=q6", *SMALL, f"ledger={folder}")
    with pytest.raises(AnalysisError, match="its runs are not measured serving runs"):
        main([f"ledger={folder}"])
    with pytest.raises(AnalysisError, match="ledger= is required"):
        main([])
