"""Campaign cells on real vLLM, over HTTP and in one process: measured, read back, balanced."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from hsexp.config.catalog import CONF
from hsexp.config.engine import LimitsConfig
from hsexp.config.launch import parse_launch
from hsexp.plan.cells import Cell
from hsexp.plan.planner import make_plan
from hsexp.trace.episodes import episodes
from runners.trial import Outcome
from runners.vllm.execute import execute

LIMITS = LimitsConfig(boot_s=300.0, stall_s=120.0, shutdown_s=30.0, port_tries=3)

SMALL = (
    "campaign=q1",
    "device=cpu",
    "model=falcon_h1_mini",
    "engine=vllm",
    "engine.num_warmup_requests=1",
    "workload.num_requests=8",
    "workload.num_contexts=1",
    "workload.output_mean_tokens=6",
    "budget=b63",
    "seeds=[42000]",
)
"""Eight prompts of some 3,365 tokens that begin with one context of 3,072."""


def cell(*overrides: str) -> Cell:
    changed = {override.partition("=")[0] for override in overrides}
    kept = [each for each in SMALL if each.partition("=")[0] not in changed]
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        launch = parse_launch(compose("config", [*kept, *overrides]))
    (made,) = make_plan(launch, engine="vllm").cells
    return made


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """S2 behind HTTP."""
    logs = tmp_path_factory.mktemp("http") / "logs"
    return execute(cell("organization=s2"), logs=logs, limits=LIMITS)


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """D0 without a server."""
    logs = tmp_path_factory.mktemp("inproc") / "logs"
    return execute(cell("organization=d0", "engine.transport=inproc"), logs=logs, limits=LIMITS)


@pytest.fixture(scope="module")
def in_other_orders(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """S2 without a server, under other orders of eviction and of waiting than the paper's."""
    logs = tmp_path_factory.mktemp("orders") / "logs"
    orders = ("eviction=lru", "waiting=hit_first", "admission.cap=2")
    chosen = cell("organization=s2", "engine.transport=inproc", *orders)
    return execute(chosen, logs=logs, limits=LIMITS)


@pytest.mark.parametrize("transport", ["served", "driven", "in_other_orders"])
def test_a_cell_gives_a_measured_row(transport: str, request: pytest.FixtureRequest) -> None:
    outcome: Outcome = request.getfixturevalue(transport)
    metrics, requests = outcome.metrics, outcome.requests
    assert metrics["num_finished"] == 8
    assert (requests["generated_tokens"] == requests["output_tokens"]).all()
    assert metrics["throughput_tok_per_s"] > metrics["ledger_throughput_tok_per_s"] > 0.0
    assert outcome.steps is not None
    assert (outcome.steps["step_s"] > 0.0).all()
    # Prompt tokens are adopted or computed; nothing was preempted in a roomy budget.
    covered = requests["adopted_tokens"] + requests["prefill_tokens"]
    assert (covered == requests["prompt_tokens"]).all()
    assert outcome.engine.data_kind == "measured"


def test_the_shared_context_is_reused_on_each_organization_s_grid(
    served: Outcome, driven: Outcome
) -> None:
    # 3,072 tokens are 6 boundaries of 512 for S2, and one of 1,792 for D0.
    assert served.requests["adopted_tokens"].max() == 3072
    assert driven.requests["adopted_tokens"].max() == 1792


def test_the_engine_says_what_runs(served: Outcome, driven: Outcome) -> None:
    assert served.engine.observed["pools"] == {"shared": {"num_pages": 193, "page_bytes": 131072}}
    assert set(driven.engine.observed["pools"]) == {"attention", "recurrent"}
    for outcome in (served, driven):
        engine = outcome.engine.observed["engine"]
        assert engine["kv_dtype"] == engine["ssm_dtype"] == "bfloat16"
        assert "model.safetensors" in outcome.engine.observed["checkpoint"]["sha256"]
        assert len(engine["plugin"]) == 16
    assert Path(served.engine.observed["log"]).parts[0] == "logs"


def test_the_engine_says_which_orders_run(served: Outcome, in_other_orders: Outcome) -> None:
    for outcome, eviction, waiting in [
        (served, "paper", "first_come"),
        (in_other_orders, "lru", "hit_first"),
    ]:
        engine = outcome.engine.observed["engine"]
        assert (engine["eviction"], engine["waiting"]) == (eviction, waiting)


def test_counters_have_the_names_of_a_simulated_run(served: Outcome, driven: Outcome) -> None:
    for name in ("preemptions", "refusals", "published_checkpoints", "lost_checkpoints"):
        assert served.metrics[name] is not None
    assert served.metrics["stranded_fraction"] is None
    assert driven.metrics["stranded_fraction"] is not None
    assert 0.0 < served.metrics["slab_occupancy"] < 1.0


# -- traces ----------------------------------------------------------------------------------------

TIGHT = (
    "trace=true",
    "workload.num_requests=16",
    "workload.num_contexts=3",
    "workload.output_mean_tokens=40",
    "arrivals.rate_per_s=10",
    "budget=bytes",
)
"""Three contexts that do not fit at once: requests are refused for a while, and entries lost."""


@pytest.mark.parametrize(
    "how",
    [
        ("organization=s2", "budget.bytes=8000000", "engine.transport=inproc"),
        ("organization=d0", "budget.bytes=10000000", "engine.transport=http"),
    ],
)
def test_the_trace_of_a_real_engine_agrees_with_its_record_and_is_replayed(
    how: tuple[str, ...], tmp_path: Path
) -> None:
    """Chunks, steps, requests and the memory's counters are counted in different places."""
    outcome = execute(cell(*TIGHT, *how), logs=tmp_path / "logs", limits=LIMITS)
    trace, requests, metrics = outcome.trace, outcome.requests, outcome.metrics
    assert trace is not None and outcome.steps is not None
    found = episodes(trace)
    assert len(found) >= 16 and all(each.is_replayed for each in found)
    adopted = {each.id: each.adopted_tokens for each in found if each.is_initial}
    assert adopted == dict(
        zip(requests["request_id"].astype(str), requests["adopted_tokens"], strict=True)
    )
    chunks, steps = trace.events("chunk"), trace.events("step")
    initial = chunks["episode"] == 0
    assert chunks[initial]["tokens"].sum() == requests["prefill_tokens"].sum()
    assert chunks[~initial]["tokens"].sum() == requests["replayed_tokens"].sum()
    assert chunks["tokens"].sum() == steps["prefill_tokens"].sum()
    for column in ("decode_tokens", "prefill_tokens", "running", "waiting"):
        assert steps[column].tolist() == outcome.steps[column].tolist()
    assert (steps["time_ns"] / 1e9).tolist() == pytest.approx(outcome.steps["start_s"].tolist())
    assert (steps["duration_ns"] / 1e9).tolist() == outcome.steps["step_s"].tolist()
    assert trace.events("refuse")["count"].sum() == metrics["refusals"] > 0
    lost = trace.events("lose")
    assert (lost["entry"] == "state").sum() == metrics["lost_checkpoints"] > 0
    assert lost[lost["entry"] == "attention"]["pages"].map(len).sum() == metrics["lost_blocks"] > 0
    published = trace.events("publish")["entry"].tolist()
    assert published.count("state") == metrics["published_checkpoints"]
    entered_s = trace.events("enter").set_index("id")["time_ns"] / 1e9
    times = requests.set_index(requests["request_id"].astype(str))
    assert (times["sent_s"] < entered_s[times.index]).all()
    assert (entered_s[times.index] < times["first_scheduled_s"]).all()


# -- conversations ---------------------------------------------------------------------------------

TALK = (
    "workload=conversations",
    "workload.num_conversations=2",
    "workload.turns_mean=100",  # all have three turns
    "workload.turns_max=3",
    "workload.system_tokens=0",
    "workload.first_message={median_tokens: 300, sigma: 0, min_tokens: 1, max_tokens: 300}",
    "workload.message={median_tokens: 50, sigma: 0, min_tokens: 1, max_tokens: 50}",
    "workload.output={mean_tokens: 300, shape: 1, min_tokens: 300, max_tokens: 300}",
    "workload.think_mean_s=16",
    "seeds=[42311]",
)
"""Prompts of 300, 650 and 1,000 tokens; each turn arrives 13 s or more after the one before."""


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(("organization=s2",), marks=pytest.mark.slow),
        ("organization=s0", "engine.transport=inproc"),
    ],
)
def test_a_turn_reuses_what_the_turn_before_it_generated(
    how: tuple[str, ...], tmp_path: Path
) -> None:
    outcome = execute(conversation(*how), logs=tmp_path / "logs", limits=LIMITS)
    requests = outcome.requests.sort_values("prompt_tokens")
    assert requests["prompt_tokens"].tolist() == [300, 300, 650, 650, 1000, 1000]
    # 512 tokens lie in the first answer, which ends at 600; the next boundary is in the third.
    assert requests["adopted_tokens"].tolist() == [0, 0, 512, 512, 512, 512]
    assert set(requests["status"]) == {"finished"}


def conversation(*overrides: str) -> Cell:
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        small = [each for each in SMALL if not each.startswith(("workload.", "seeds"))]
        launch = parse_launch(compose("config", [*small, *TALK, *overrides]))
    (made,) = make_plan(launch, engine="vllm").cells
    return made
