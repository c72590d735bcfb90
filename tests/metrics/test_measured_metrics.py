"""What a measured run adds to the metrics, and what stays unknown where an engine is silent."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from toy_run import record

from hsexp.measure.metrics import summarize
from hsexp.measure.records import SAMPLE_COLUMNS

# Planned at 0.5 and 1.0 s; sent 0.1 and 0.2 s late.
SENT = {"sent_s": [0.6, 1.2], "num_retries": [0, 1], "output_digest": ["a", "b"]}


def measured(**fields):
    run = record()
    return replace(run, requests=run.requests.assign(**SENT), episode_s=4.5, **fields)


def test_the_ledger_s_timebase_is_the_episode():
    # Nine tokens: 3.5 s from the first planned request to the last token, 4.5 s of episode.
    metrics = summarize(measured())
    assert metrics["throughput_tok_per_s"] == 9 / 3.5
    assert metrics["ledger_throughput_tok_per_s"] == 2.0


def test_a_late_sender_is_told_and_shortens_no_latency():
    metrics = summarize(measured())
    assert metrics["ttft_mean_s"] == summarize(record())["ttft_mean_s"] == 1.25
    assert metrics["send_delay_mean_s"] == pytest.approx(0.15)
    assert metrics["send_delay_max_s"] == pytest.approx(0.2)
    assert metrics["planned_rate_per_s"] == pytest.approx(1 / 0.5)
    assert metrics["realised_rate_per_s"] == pytest.approx(1 / 0.6)
    assert metrics["num_retries"] == 1


def test_a_modelled_episode_adds_the_ledger_s_timebase_and_no_delay_of_sending():
    added = set(summarize(replace(record(), episode_s=4.5))) - set(summarize(record()))
    assert added == {"episode_s", "ledger_throughput_tok_per_s"}


def test_a_run_without_an_episode_has_none_of_these():
    names = set(summarize(measured())) - set(summarize(record()))
    assert {"episode_s", "ledger_throughput_tok_per_s", "send_delay_max_s"} <= names


def test_the_gauges_of_a_measured_run_are_its_poller_s():
    rows = [(0.01, 5, 1, 9, 0), (1.02, 7, 3, 4, 0), (2.0, 0, 0, 9, 1)]
    samples = pd.DataFrame(rows, columns=list(SAMPLE_COLUMNS))
    metrics = summarize(measured(samples=samples))
    assert (metrics["running_mean"], metrics["running_max"]) == (4.0, 7)
    assert metrics["waiting_median"] == 1.0


def test_gaps_that_the_client_saw_stand_for_those_of_the_steps():
    metrics = summarize(measured(token_gaps_s=np.array([0.1, 0.1, 0.4])))
    assert metrics["itl_mean_s"] == pytest.approx(0.2)
    assert metrics["itl_p50_s"] == 0.1


def test_what_a_silent_engine_does_not_tell_is_unknown_and_the_rest_is_there():
    run = record()
    told = ["request_id", "status", "reason", "prompt_tokens", "generated_tokens"]
    told += ["arrival_s", "first_token_s", "finish_s"]
    metrics = summarize(replace(run, requests=run.requests[told], steps=pd.DataFrame()))
    unknown = ["num_steps", "event_time_s", "k_records", "c_once_tokens", "h_tokens"]
    unknown += ["prefill_tokens", "submitted_tokens", "initial_prefill_tokens", "num_preemptions"]
    unknown += ["adopted_tokens_mean", "queue_p99_s", "running_mean", "replayed_tokens"]
    assert {name: metrics[name] for name in unknown} == dict.fromkeys(unknown)
    whole = summarize(run)
    for name in ("throughput_tok_per_s", "ttft_p99_s", "e2e_mean_s", "tpot_mean_s", "o_ctr_tokens"):
        assert metrics[name] == whole[name]
