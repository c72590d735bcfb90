"""The central-arrival window on a run of six seconds that can be counted by hand."""

import itertools

import numpy as np
import pytest
from toy_run import A, record

from hsexp.measure.metrics import summarize
from hsexp.measure.poller import gauge
from hsexp.measure.window import Halves, Window, central_window, gauge_halves, output_tokens_within

# Arrivals at 0, 1, ..., 5 s: the window is (1, 4]. First tokens at 1, 2, ..., 6 s.
REQUESTS = [
    A
    | {"request_id": k, "arrival_s": float(k), "first_scheduled_s": float(k)}
    | {"first_token_s": k + 1.0, "finish_s": 7.0}
    for k in range(6)
]
# One step a second, two decode tokens each, ending at 1, 2, ..., 6 s.
RUNNING = [1, 2, 4, 6, 8, 0]
STEPS = [(float(k), 1, 1.0, 2, 0, running, 0) for k, running in enumerate(RUNNING)]


@pytest.fixture
def run():
    return record(REQUESTS, steps=STEPS)


def test_the_window_reaches_from_the_20th_to_the_80th_percentile_of_the_arrivals(run):
    assert central_window(run.requests["arrival_s"].to_numpy()) == Window(start_s=1.0, end_s=4.0)
    assert central_window(np.array([0.0, 10.0])) == Window(start_s=2.0, end_s=8.0)


def test_a_window_without_length_is_none():
    assert central_window(np.array([])) is None
    assert central_window(np.array([3.0, 3.0, 3.0])) is None


def test_tokens_count_in_the_window_in_which_they_are_generated(run):
    # Decode steps end at 2, 3 and 4 s: 6 tokens; first tokens come at 2, 3 and 4 s: 3 more.
    window = Window(start_s=1.0, end_s=4.0)
    assert output_tokens_within(run.requests, run.steps, window) == 9
    assert summarize(run)["central_throughput_tok_per_s"] == 3.0


def test_steps_of_one_stretch_count_one_by_one():
    # Four steps of 0.5 s from 1 s on, three tokens each: those that end at 2.0 and 2.5 s.
    run = record(REQUESTS[:1], steps=[(1.0, 4, 0.5, 3, 0, 1, 0)])
    assert output_tokens_within(run.requests, run.steps, Window(start_s=1.5, end_s=2.7)) == 6


def test_adjoining_windows_count_every_token_once(run):
    times = [0.0, 0.7, 1.0, 3.0, 4.5, 6.0]
    windows = [Window(start_s=a, end_s=b) for a, b in itertools.pairwise(times)]
    parts = [output_tokens_within(run.requests, run.steps, window) for window in windows]
    assert sum(parts) == 12 + 6


def test_the_drift_screen_compares_the_halves_of_the_window(run):
    # Samples at 2 s (4 running) and at 3 and 4 s (6 and 8).
    running = gauge_halves(gauge(run, "running"), Window(start_s=1.0, end_s=4.0))
    assert running == Halves(early=4.0, late=7.0)
    assert running.drift == 3.0 / 7.0
    metrics = summarize(run)
    assert metrics["central_running_early_mean"] == 4.0
    assert metrics["central_running_late_mean"] == 7.0
    assert metrics["central_waiting_late_mean"] == 0.0


def test_a_gauge_that_stays_at_zero_does_not_drift():
    assert Halves(early=0.0, late=0.0).drift == 0.0
    assert Halves(early=4.0, late=1.0).drift == -0.75


def test_a_half_without_a_sample_is_unknown(run):
    assert gauge_halves(gauge(run, "running"), Window(start_s=1.2, end_s=1.8)) is None


def test_a_run_without_a_window_has_no_central_metrics():
    metrics = summarize(record(REQUESTS[:1], steps=STEPS))
    assert metrics["central_throughput_tok_per_s"] is None
    assert metrics["central_waiting_early_mean"] is None
