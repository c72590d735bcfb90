"""Every metric against numbers that can be counted by hand."""

from dataclasses import replace

import numpy as np
import pytest
from toy_run import STEPS, A, B, record

from hsexp.measure.metrics import depth_metrics, percentile, summarize
from hsexp.measure.poller import poll


def test_two_requests_give_the_throughput_of_the_span_from_first_start_to_last_success():
    metrics = summarize(record())
    assert metrics["span_s"] == 3.5  # 0.5 to 4.0
    assert metrics["throughput_tok_per_s"] == 9 / 3.5
    assert metrics["requests_per_s"] == 2 / 3.5
    assert (metrics["num_requests"], metrics["num_finished"]) == (2, 2)
    assert (metrics["prompt_tokens"], metrics["output_tokens"]) == (35, 9)


def test_latencies_of_two_requests_are_those_on_the_clock():
    metrics = summarize(record())
    assert metrics["ttft_mean_s"] == 1.25  # 1.0 and 1.5
    assert metrics["ttft_p99_s"] == pytest.approx(1.495)
    assert metrics["e2e_mean_s"] == 3.0  # 3.0 and 3.0
    assert metrics["queue_p50_s"] == 0.25  # 0.0 and 0.5
    assert metrics["tpot_mean_s"] == pytest.approx((2.0 / 3 + 1.5 / 4) / 2)


def test_the_load_is_the_gaps_between_the_first_and_the_last_request_over_their_time():
    # Arrivals at 0.5, 1.0 and 2.5 s: two gaps in two seconds.
    third = B | {"request_id": 2, "arrival_s": 2.5, "first_scheduled_s": 2.5}
    metrics = summarize(record([A, B, third]))
    assert metrics["planned_rate_per_s"] == metrics["realised_rate_per_s"] == 1.0


def test_refused_requests_are_no_load_and_one_request_has_no_rate():
    blank = {"first_scheduled_s": np.nan, "first_token_s": np.nan, "finish_s": np.nan}
    refused = B | blank | {"request_id": 2, "status": "refused", "generated_tokens": 0}
    refused |= {"arrival_s": 9.0, "prefill_tokens": 0}
    two, one = summarize(record([A, B, refused])), summarize(record([A, refused]))
    assert two["planned_rate_per_s"] == two["realised_rate_per_s"] == 2.0
    assert one["planned_rate_per_s"] is one["realised_rate_per_s"] is None


def test_token_gaps_are_the_steps_that_each_token_waited_for():
    metrics = summarize(record())
    assert metrics["itl_mean_s"] == 0.5  # 0.25 0.25 0.5 0.5 0.5 0.5 1.0 over seven gaps
    assert metrics["itl_p50_s"] == 0.5
    assert metrics["itl_p99_s"] == pytest.approx(0.97)  # rank 5.94: 0.5 + 0.94 x 0.5


def test_work_counters_sum_over_steps_and_requests():
    metrics = summarize(record([A, B | {"replayed_tokens": 7, "num_preemptions": 1}]))
    assert metrics["prefill_tokens"] == 30  # submitted, as the steps count them
    assert metrics["initial_prefill_tokens"] == 30  # before a preemption
    assert metrics["decode_tokens"] == 7  # 1 + 2 x 2 + 2 x 1
    assert metrics["submitted_tokens"] == 37
    assert metrics["replayed_tokens"] == 7
    assert metrics["replayed_output_tokens"] == 0
    assert metrics["num_preemptions"] == 1
    assert metrics["num_steps"] == 6
    assert metrics["event_time_s"] == 3.5  # 1 + 1 + 2 x 0.5 + 2 x 0.25
    assert metrics["adopted_tokens_mean"] == 2.5


def test_replayed_outputs_are_summed_where_the_engine_tells_them_apart():
    run = record([A, B | {"replayed_tokens": 7, "num_preemptions": 1}])
    run.requests = run.requests.assign(replayed_output_tokens=[0, 3])
    assert summarize(run)["replayed_output_tokens"] == 3
    run.requests = run.requests.drop(columns="replayed_output_tokens")
    assert summarize(run)["replayed_output_tokens"] is None  # an older ledger: not told apart


def test_recorded_totals_count_prompts_once_and_outputs_as_they_come():
    # H = 10 + 20 prompt tokens + 4 + 5 outputs; a replay of seven tokens is recorded by nobody.
    metrics = summarize(record([A, B | {"replayed_tokens": 7, "num_preemptions": 1}]))
    assert (metrics["h_tokens"], metrics["o_ctr_tokens"]) == (39, 9)
    assert metrics["c_once_tokens"] == 30
    assert (metrics["k_records"], metrics["h_per_k_mean"]) == (6, 6.5)


def test_a_step_without_a_token_leaves_no_record():
    metrics = summarize(record(steps=[*STEPS, (4.0, 3, 0.1, 0, 0, 1, 0)]))
    assert (metrics["num_steps"], metrics["k_records"]) == (9, 6)


def test_outputs_of_an_unfinished_request_are_recorded_although_they_are_no_throughput():
    unfinished = B | {"status": "unfinished", "reason": "stopped", "finish_s": np.nan}
    metrics = summarize(record([A, unfinished]))
    assert (metrics["output_tokens"], metrics["o_ctr_tokens"]) == (4, 9)


def test_the_stranded_fraction_is_weighted_by_steps_and_absent_with_one_pool():
    metrics = summarize(record(stranded_byte_steps=30, pool_byte_steps=1000))
    assert metrics["stranded_fraction"] == 0.03
    assert summarize(record(stranded_byte_steps=0, pool_byte_steps=9))["stranded_fraction"] == 0.0
    assert summarize(record())["stranded_fraction"] is None


def test_slab_occupancy_is_used_slots_over_all_slots_and_absent_without_slabs():
    # Appendix E.1: 43 convolution states in 3 slabs of 16 slots.
    assert summarize(record(used_slot_steps=43, slab_slot_steps=48))["slab_occupancy"] == 43 / 48
    assert summarize(record(used_slot_steps=0, slab_slot_steps=0))["slab_occupancy"] is None
    assert summarize(record())["slab_occupancy"] is None


def test_the_poller_sees_whole_seconds_and_idle_as_zero():
    # At 0 s nothing runs yet; 1 s, 2 s, 3 s fall into the first three rows; at 4 s all is over.
    metrics = summarize(record())
    assert poll(record().steps, "running").tolist() == [0, 1, 2, 2, 0]
    assert poll(record().steps, "waiting").tolist() == [0, 1, 0, 0, 0]
    assert metrics["running_mean"] == 1.0
    assert metrics["running_max"] == 2
    assert metrics["running_median"] == 1.0
    assert (metrics["waiting_median"], metrics["waiting_max"]) == (0.0, 1)
    assert metrics["waiting_mean"] == 0.2


def test_a_simulated_poller_goes_on_until_the_end_of_the_episode():
    run = record()
    run.episode_s = 7.0
    metrics = summarize(run)
    assert metrics["running_mean"] == 5 / 8  # 0, 1, 2, 2 and four idle samples
    assert metrics["running_median"] == 0.0
    assert metrics["waiting_mean"] == 1 / 8


def test_an_idle_gap_between_two_stretches_is_polled_as_zero():
    steps = [(0.0, 1, 1.5, 1, 0, 3, 4), (3.5, 1, 1.0, 1, 0, 5, 6)]
    assert poll(record(steps=steps).steps, "running").tolist() == [3, 3, 0, 0, 5]


def test_a_refused_request_never_raises_throughput():
    refused = B | {"request_id": 2, "status": "refused", "reason": "too long"}
    refused |= {"generated_tokens": 0, "arrival_s": 0.0}
    refused |= dict.fromkeys(("first_scheduled_s", "first_token_s", "finish_s"), np.nan)
    refused |= {"prefill_tokens": 0, "adopted_tokens": 0}
    metrics = summarize(record([A, B, refused]))
    # It started first, so the span grows; its tokens and latencies do not exist.
    assert metrics["throughput_tok_per_s"] == 9 / 4.0
    assert metrics["requests_per_s"] == 2 / 4.0
    assert metrics["ttft_mean_s"] == 1.25
    assert (metrics["num_finished"], metrics["num_refused"]) == (2, 1)
    assert metrics["adopted_tokens_mean"] == 2.5


def test_an_unfinished_request_counts_as_such_and_its_tokens_do_not():
    unfinished = B | {"status": "unfinished", "reason": "stopped", "finish_s": np.nan}
    metrics = summarize(record([A, unfinished]))
    assert (metrics["num_finished"], metrics["num_unfinished"]) == (1, 1)
    assert metrics["output_tokens"] == 4
    assert metrics["span_s"] == 3.0


def test_without_a_success_rates_and_latencies_are_unknown_rather_than_zero():
    nothing = dict.fromkeys(("first_scheduled_s", "first_token_s", "finish_s"), np.nan)
    refused = A | nothing | {"status": "refused", "reason": "too long", "generated_tokens": 0}
    metrics = summarize(record([refused], steps=[]))
    unknown = ["span_s", "throughput_tok_per_s", "requests_per_s", "adopted_tokens_mean"]
    unknown += [f"{name}_p99_s" for name in ("ttft", "tpot", "itl", "e2e", "queue")]
    unknown += ["running_mean", "running_max", "waiting_median", "waiting_max"]
    assert {metrics[name] for name in unknown} == {None}
    assert (metrics["output_tokens"], metrics["num_steps"]) == (0, 0)


def test_a_one_token_output_has_no_token_interval():
    one = A | {"generated_tokens": 1, "finish_s": 1.5}
    metrics = summarize(record([one], steps=STEPS[:1]))
    assert metrics["tpot_mean_s"] is None
    assert metrics["itl_mean_s"] is None
    assert metrics["ttft_p99_s"] == 1.0


def test_a_preemption_is_the_one_long_gap_between_regular_ones():
    # Steps of 1 s end at 1..6; tokens at 1, 2, (preempted, replayed), 5, 6: gaps 1, 3, 1.
    request = A | {"arrival_s": 0.0, "first_scheduled_s": 0.0, "first_token_s": 1.0}
    request |= {"finish_s": 6.0, "num_preemptions": 1}
    metrics = summarize(record([request], steps=[(0.0, 6, 1.0, 1, 0, 1, 0)]))
    assert metrics["itl_mean_s"] == pytest.approx(5 / 3)
    assert metrics["itl_p50_s"] == 1.0
    assert metrics["itl_p99_s"] == pytest.approx(2.96)  # rank 1.98: 1 + 0.98 x 2


def test_two_preemptions_are_two_long_gaps():
    # Steps of 1 s end at 1..9; tokens at 1, 2, (preempted) 5, (preempted) 8, 9: gaps 1, 3, 3, 1.
    request = A | {"arrival_s": 0.0, "first_scheduled_s": 0.0, "first_token_s": 1.0}
    request |= {"finish_s": 9.0, "generated_tokens": 5, "num_preemptions": 2}
    metrics = summarize(record([request], steps=[(0.0, 9, 1.0, 1, 0, 1, 0)]))
    assert metrics["itl_mean_s"] == 2.0
    assert metrics["itl_p50_s"] == 2.0  # between 1 and 3
    assert metrics["itl_p99_s"] == 3.0


def test_a_prefill_step_of_its_own_lengthens_the_gap_that_it_falls_into():
    # A's first token ends the first step, its others end steps 2 and 4: gaps 1.0 and 3.0 + 0.5.
    request = A | {"generated_tokens": 3, "arrival_s": 0.0, "first_scheduled_s": 0.0}
    request |= {"first_token_s": 1.0, "finish_s": 5.5}
    rows = [(0.0, 1, 1.0, 0, 10), (1.0, 1, 1.0, 1, 0), (2.0, 1, 3.0, 0, 9), (5.0, 1, 0.5, 1, 0)]
    metrics = summarize(record([request], steps=[(*row, 1, 0) for row in rows]))
    assert metrics["itl_mean_s"] == 2.25
    assert metrics["itl_p50_s"] == 2.25
    assert metrics["itl_p99_s"] == pytest.approx(1.0 + 0.99 * 2.5)


def test_a_chunk_of_tokens_counts_by_tokens():
    # Two steps between first and last token, but four gaps: they add up to last - first.
    request = A | {"generated_tokens": 5, "first_token_s": 2.5}
    metrics = summarize(record([request]))
    assert metrics["itl_mean_s"] == 0.25  # 1.0 s over four gaps
    assert metrics["tpot_mean_s"] == 0.25


def test_without_a_step_table_the_gaps_are_the_mean_interval():
    metrics = summarize(record([A, B], steps=[]))
    assert metrics["itl_mean_s"] == pytest.approx(3.5 / 7)
    assert metrics["itl_p99_s"] == pytest.approx(2.0 / 3)


@pytest.mark.parametrize("seed", range(20))
def test_token_gaps_equal_those_of_a_token_by_token_replay(seed):
    rng = np.random.default_rng(seed)
    rows, now = [], 0.0
    for _ in range(30):
        now += float(rng.choice([0.0, 0.0, 0.3]))  # a stall before some rows
        steps, duration = int(rng.integers(1, 5)), float(rng.uniform(0.01, 0.2))
        rows.append((now, steps, duration, 1, 0, 1, 0))
        now += steps * duration
    ends = np.concatenate([start + d * np.arange(1, n + 1) for start, n, d, *_ in rows])
    requests, gaps = [], []
    for request_id in range(8):
        first, last = np.sort(rng.integers(0, len(ends), 2))
        times = {"first_token_s": ends[first], "finish_s": ends[last]}
        times |= {"arrival_s": 0.0, "first_scheduled_s": 0.0}
        requests.append(
            A | times | {"request_id": request_id, "generated_tokens": last - first + 1}
        )
        gaps.extend(np.diff(ends[first : last + 1]))
    metrics = summarize(record(requests, steps=rows))
    assert metrics["itl_mean_s"] == pytest.approx(np.mean(gaps))
    assert metrics["itl_p50_s"] == pytest.approx(np.percentile(gaps, 50))
    assert metrics["itl_p99_s"] == pytest.approx(np.percentile(gaps, 99))


def test_percentiles_follow_the_linear_rule_and_never_exceed_the_maximum():
    assert percentile(np.arange(1.0, 101.0), 99) == pytest.approx(99.01)  # rank 98.01 of 0..99
    assert percentile(np.array([7.0]), 99) == 7.0
    assert percentile(np.array([1.0, 2.0, 4.0]), 99) == pytest.approx(3.96)  # rank 1.98


@pytest.mark.parametrize("percent", [0.0, 37.0, 50.0, 99.0, 100.0])
def test_a_counted_percentile_equals_that_of_the_repeated_values(percent):
    rng = np.random.default_rng(3)
    values, counts = rng.integers(0, 9, 40).astype(float), rng.integers(1, 6, 40)
    repeated = np.percentile(np.repeat(values, counts), percent)
    assert percentile(values, percent, counts) == pytest.approx(repeated)


@pytest.mark.parametrize("column", ["first_scheduled_s", "first_token_s", "finish_s"])
def test_a_finished_request_without_a_time_is_refused_by_name(column):
    with pytest.raises(ValueError, match=rf"request 1 finished.*{column}"):
        summarize(record([A, B | {column: np.nan}]))


def test_a_first_token_before_the_arrival_is_refused():
    with pytest.raises(ValueError, match="request 0 finished, but its arrival_s"):
        summarize(record([A | {"first_scheduled_s": -1.0, "first_token_s": -0.5}, B]))


def test_counters_join_the_metrics_and_may_not_contradict_them():
    assert summarize(record(lost_checkpoints=3, num_preemptions=0))["lost_checkpoints"] == 3
    with pytest.raises(ValueError, match="num_preemptions is 2, but the tables give 0"):
        summarize(record(num_preemptions=2))


def test_counts_are_plain_integers_and_times_plain_floats():
    metrics = summarize(record())
    assert {type(value) for value in metrics.values()} == {int, float, type(None)}


# Depths at entry and at the first admission, of one request in each class.
DEPTHS = [(0, 0), (8, 8), (0, 8), (8, 16), (16, 8)]


def traced(*depths):
    requests = [A | {"request_id": i, "adopted_tokens": at} for i, (_, at) in enumerate(depths)]
    run = record(requests)
    columns = {"entry_joint_tokens": [entry for entry, _ in depths]}
    columns |= {"attention_tokens": [16] * len(depths), "recurrent_tokens": [24] * len(depths)}
    return replace(run, requests=run.requests.assign(**columns))


CLASSES = ("stays_zero", "equal", "from_zero", "deeper", "shallower")


def test_every_admitted_request_is_in_exactly_one_class_of_depth():
    for place, depths in enumerate(DEPTHS):
        metrics = depth_metrics(traced(depths).requests)
        found = [metrics[f"depth_{name}_fraction"] for name in CLASSES]
        assert found == [float(place == other) for other in range(5)], depths


def test_depths_are_means_over_the_admitted_requests_alone():
    requests = traced(*DEPTHS, (0, 0)).requests
    requests.loc[5, "first_scheduled_s"] = np.nan  # refused, and never looked up
    metrics = depth_metrics(requests)
    assert [metrics[f"depth_{name}_fraction"] for name in CLASSES] == [0.2] * 5
    assert metrics["adopted_tokens_mean"] == 8.0  # (0 + 8 + 8 + 16 + 8) / 5
    assert metrics["entry_joint_mean"] == 6.4  # (0 + 8 + 0 + 8 + 16) / 5
    assert (metrics["attention_depth_mean"], metrics["recurrent_depth_mean"]) == (16.0, 24.0)
