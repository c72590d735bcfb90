"""What a real run measures, against a scripted server whose times and tokens are known."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from fake_runs import FakeRun, fake_run

from runners.trial import Outcome


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[FakeRun, Outcome]:
    """A run in which nothing is special: 4, 3 and 5 output tokens, one a chunk."""
    run = fake_run(tmp_path_factory.mktemp("plain"))
    return run, run.outcome()


ONE_BY_ONE = ["arrival_s,input_tokens,output_tokens", *["0.0,5,2"] * 10, ""]
"""Ten requests at once, of two tokens each."""


def test_a_run_is_an_ordinary_measured_outcome(plain: tuple[FakeRun, Outcome]) -> None:
    _, outcome = plain
    metrics, requests = outcome.metrics, outcome.requests
    assert (metrics["num_requests"], metrics["num_finished"], metrics["output_tokens"]) == (
        3,
        3,
        12,
    )
    assert metrics["throughput_tok_per_s"] == pytest.approx(12 / metrics["span_s"])
    assert requests["generated_tokens"].tolist() == [4, 3, 5]
    assert requests["prefill_tokens"].tolist() == [5, 6, 7]
    assert requests["num_retries"].tolist() == [0, 0, 0]
    assert (requests["sent_s"] >= requests["arrival_s"]).all()
    assert metrics["prefill_tokens"] == 18 and metrics["decode_tokens"] == 9
    assert metrics["num_steps"] == 12
    engine = outcome.engine
    assert (engine.engine, engine.data_kind, engine.time_model) == (
        "vllm",
        "measured",
        "wall clock",
    )


def test_the_request_span_and_the_episode_are_two_timebases(plain: tuple[FakeRun, Outcome]) -> None:
    metrics = plain[1].metrics
    # The poller sees an idle engine at a whole second: long after the last of the tokens.
    assert metrics["span_s"] < 0.5
    assert 1.0 < metrics["episode_s"] < 4.0
    assert metrics["ledger_throughput_tok_per_s"] == pytest.approx(12 / metrics["episode_s"])


def test_latencies_count_from_the_planned_time_also_behind_a_slow_server(tmp_path: Path) -> None:
    # Each request alone takes 2 x 20 ms; ten that come at once wait for each other.
    run = fake_run(tmp_path, trace=ONE_BY_ONE, one_at_a_time=True, token_s=0.02)
    metrics = run.outcome().metrics
    assert metrics["ttft_mean_s"] > 0.15
    assert metrics["e2e_p99_s"] > 0.38


def test_the_realised_rate_and_the_delay_of_the_sender_are_recorded(
    plain: tuple[FakeRun, Outcome],
) -> None:
    metrics = plain[1].metrics
    assert metrics["planned_rate_per_s"] == pytest.approx(2 / 0.04)
    assert metrics["realised_rate_per_s"] == pytest.approx(2 / 0.04, rel=0.9)
    assert 0.0 <= metrics["send_delay_mean_s"] <= metrics["send_delay_max_s"] < 1.0


def test_a_chunk_of_tokens_counts_by_tokens(tmp_path: Path) -> None:
    # Chunks of 3: outputs of 4, 3 and 5 tokens come in 2, 1 and 2 chunks.
    outcome = fake_run(tmp_path, chunk=3, token_s=0.01).outcome()
    requests = outcome.requests
    assert requests["generated_tokens"].tolist() == [4, 3, 5]
    elapsed = (requests["finish_s"] - requests["first_token_s"]).sum()
    # 3 + 2 + 4 gaps add up to last minus first.
    assert outcome.metrics["itl_mean_s"] == pytest.approx(elapsed / 9)


def test_counters_are_those_of_the_run_without_its_warm_up(plain: tuple[FakeRun, Outcome]) -> None:
    # The fake engine has lost 2 checkpoints when its cache is emptied, and 5 in the end.
    metrics = plain[1].metrics
    assert metrics["lost_checkpoints"] == 3
    assert metrics["num_preemptions"] == 0


def test_what_a_shared_pool_does_not_have_is_unknown_and_no_zero(
    plain: tuple[FakeRun, Outcome],
) -> None:
    metrics = plain[1].metrics
    assert metrics["stranded_fraction"] is None
    assert metrics["slab_occupancy"] is None  # the fake engine keeps no slabs


def test_a_request_that_can_never_be_served_is_refused_as_in_a_simulation(tmp_path: Path) -> None:
    long = ["arrival_s,input_tokens,output_tokens", "0.0,5,4", "0.01,200000,4", ""]
    outcome = fake_run(tmp_path, trace=long).outcome()
    assert outcome.requests["status"].tolist() == ["finished", "refused"]
    assert outcome.requests["reason"][1] == "200004 tokens exceed the model's 131072"
    assert np.isnan(outcome.requests["sent_s"][1])
    assert outcome.metrics["num_refused"] == 1


def test_a_lost_connection_is_retried_once_and_recorded(tmp_path: Path) -> None:
    outcome = fake_run(tmp_path, drop=1).outcome()
    assert sorted(outcome.requests["num_retries"]) == [0, 0, 1]
    assert outcome.metrics["num_retries"] == 1
    assert outcome.requests["generated_tokens"].tolist() == [4, 3, 5]


def test_where_the_numbers_come_from_is_kept_without_a_path(plain: tuple[FakeRun, Outcome]) -> None:
    run, outcome = plain
    facts = outcome.engine.observed
    config = run.folder / "weights" / "config.json"
    digest = hashlib.sha256(config.read_bytes()).hexdigest()
    assert facts["checkpoint"] == {"name": "weights", "sha256": {"config.json": digest}}
    assert facts["pools"] == {"shared": {"num_pages": 772, "page_bytes": 131072}}
    assert facts["engine"]["organization"] == "s2"
    assert facts["config"]["admission"] == {"headroom": 0.0, "cap": 63}
    assert facts["environment"]["OMP_NUM_THREADS"] == "1"
    assert facts["hardware"]["cores"] >= 1
    own = json.dumps({key: value for key, value in facts.items() if key != "config"})
    assert str(run.folder) not in own


def test_logs_of_an_attempt_stay_beside_the_ledger(plain: tuple[FakeRun, Outcome]) -> None:
    run, outcome = plain
    folder = run.folder / outcome.engine.observed["log"]
    assert {path.name for path in folder.iterdir()} == {"server.log", "poller.csv"}
    header, *samples = (folder / "poller.csv").read_text().splitlines()
    assert header == "time_s,running,waiting,free_pages,preemptions"
    assert [line.split(",")[3] for line in samples] == ["9"] * len(samples)


def test_nothing_runs_any_more_behind_a_run(plain: tuple[FakeRun, Outcome]) -> None:
    run, _ = plain
    assert run.living() == []
