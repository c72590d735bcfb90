"""The summary of a run: each metric is one formula, in one place, over the record's two tables.

Only finished requests count in throughput and latencies, so that a failure never raises a rate; a
quantity without any value is None. Percentiles are those of one run, by NumPy's linear rule:
campaigns average them over seeds and never pool requests of several runs (Section 4.1).
"""

from collections.abc import Mapping
from functools import cache
from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hsexp.measure.poller import TIME_TOLERANCE_S, gauge
from hsexp.measure.records import REQUEST_COLUMNS, STEP_COLUMNS, RunRecord
from hsexp.measure.window import Halves, central_window, gauge_halves, output_tokens_within

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Metric = float | int | None


def summarize(record: RunRecord) -> dict[str, Metric]:
    """Every metric of a ledger row, and the record's own counters.

    Times in seconds, rates per second. `None` where there is nothing to measure.

    Raises:
        ValueError: the record contradicts itself (a finished request without its times or out of
            order, a counter that differs from the table's total).
    """
    requests, steps = record.requests, record.steps
    has_steps = "num_steps" in steps
    finished = (requests["status"] == "finished").to_numpy(dtype=bool)
    num_refused = int((requests["status"] == "refused").sum())
    num_finished = int(finished.sum())
    done = _Times(requests, finished)
    span = request_span_s(_floats(requests, "arrival_s"), done.finish_s)
    output_tokens = int(done.generated.sum())
    metrics: dict[str, Metric] = {
        "num_requests": len(requests),
        "num_finished": num_finished,
        "num_refused": num_refused,
        "num_unfinished": len(requests) - num_finished - num_refused,
        "prompt_tokens": _total(requests, "prompt_tokens"),
        "output_tokens": output_tokens,
        "span_s": span,
        "throughput_tok_per_s": rate_per_s(output_tokens, span),
        "requests_per_s": rate_per_s(num_finished, span),
        **_distribution("ttft", times_to_first_token_s(done)),
        **_distribution("tpot", output_intervals_s(done)),
        **_distribution("itl", *_token_gaps(done, record)),
        **_distribution("e2e", end_to_end_s(done)),
        **_distribution("queue", queueing_s(done)),
        **submitted_tokens(requests, steps),
        **recorded_totals(requests, steps),
        "num_steps": _known_total(steps, "num_steps"),
        "event_time_s": float(_step_seconds(steps).sum()) if has_steps else None,
        "num_preemptions": _known_total(requests, "num_preemptions"),
        **_gauge("running", gauge(record, "running").samples),
        **_gauge("waiting", gauge(record, "waiting").samples),
        **central_metrics(record),
        "stranded_fraction": stranded_fraction(record.counters),
        "slab_occupancy": slab_occupancy(record.counters),
        **depth_metrics(requests),
        **load_rates(requests),
        **episode_metrics(record, output_tokens),
        **sending_metrics(record),
    }
    return _with_counters(metrics, record.counters)


@cache
def metric_names() -> tuple[str, ...]:
    """Names of the metrics of every run, in the order of a ledger row; counters of the memory and
    of an episode are left out, because not every run has them."""
    requests, steps = (
        pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in columns.items()})
        for columns in (REQUEST_COLUMNS, STEP_COLUMNS)
    )
    return tuple(summarize(RunRecord(requests=requests, steps=steps)))


# -- state depths --------------------------------------------------------------------------------


def depth_metrics(requests: pd.DataFrame) -> dict[str, Metric]:
    """Mean depths at first admission and the change since queue entry (Section 4.5, Table C-2).

    Fractions of admitted requests by (Jenter, Jadopt): both zero; equal; newly reusable; deeper;
    shallower. They add up to 1. A run that was not traced has only the mean Jadopt.
    """
    if "adopted_tokens" not in requests:
        return {"adopted_tokens_mean": None}
    admitted = requests[requests["first_scheduled_s"].notna().to_numpy()]
    jadopt: dict[str, Metric] = {"adopted_tokens_mean": _mean(_ints(admitted, "adopted_tokens"))}
    if "entry_joint_tokens" not in admitted:
        return jadopt
    entry, adopted = _ints(admitted, "entry_joint_tokens"), _ints(admitted, "adopted_tokens")
    return jadopt | {
        "attention_depth_mean": _mean(_ints(admitted, "attention_tokens")),
        "recurrent_depth_mean": _mean(_ints(admitted, "recurrent_tokens")),
        "entry_joint_mean": _mean(entry),
        "depth_stays_zero_fraction": _mean((entry == 0) & (adopted == 0)),
        "depth_equal_fraction": _mean((entry > 0) & (adopted == entry)),
        "depth_from_zero_fraction": _mean((entry == 0) & (adopted > 0)),
        "depth_deeper_fraction": _mean((entry > 0) & (adopted > entry)),
        "depth_shallower_fraction": _mean(adopted < entry),
    }


# -- throughput ----------------------------------------------------------------------------------


def request_span_s(arrival_s: Floats, success_s: Floats) -> float | None:
    """First request start to last successful response (Section 4.1).

    Args:
        arrival_s: starts of all requests, failed ones too.
        success_s: ends of the finished ones.
    """
    return float(success_s.max() - arrival_s.min()) if success_s.size else None


def rate_per_s(count: int, span_s: float | None) -> float | None:
    """Completed output tokens, or requests, over the span (Section 4.1)."""
    return None if span_s is None or span_s <= 0.0 else count / span_s


# -- latency of finished requests ----------------------------------------------------------------


class _Times:
    """Times and lengths of the finished requests, checked once."""

    def __init__(self, requests: pd.DataFrame, finished: NDArray[np.bool_]) -> None:
        self.arrival_s = _floats(requests, "arrival_s")[finished]
        self.first_scheduled_s = (
            _floats(requests, "first_scheduled_s")[finished]
            if "first_scheduled_s" in requests
            else None
        )
        self.first_token_s = _floats(requests, "first_token_s")[finished]
        self.finish_s = _floats(requests, "finish_s")[finished]
        self.generated = _ints(requests, "generated_tokens")[finished]
        self.num_preemptions = (
            _ints(requests, "num_preemptions")[finished]
            if "num_preemptions" in requests
            else np.zeros(self.generated.size, dtype=np.int64)
        )
        order = [
            name
            for name in ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s")
            if getattr(self, name) is not None
        ]
        for earlier, later in pairwise(order):
            # NaN compares false, so a missing time is caught here as well.
            ordered = getattr(self, earlier) <= getattr(self, later) + TIME_TOLERANCE_S
            if not ordered.all():
                index = int(np.flatnonzero(~ordered)[0])
                request_id = _ints(requests, "request_id")[finished][index]
                raise ValueError(
                    f"request {request_id} finished, but its {earlier} "
                    f"({getattr(self, earlier)[index]}) is not before its {later} "
                    f"({getattr(self, later)[index]})"
                )


def times_to_first_token_s(done: _Times) -> Floats:
    """TTFT: first token minus planned arrival, so that a late sender hides nothing (Table B-8)."""
    return done.first_token_s - done.arrival_s


def end_to_end_s(done: _Times) -> Floats:
    """E2E: last token minus planned arrival (Table B-8)."""
    return done.finish_s - done.arrival_s


def queueing_s(done: _Times) -> Floats:
    """Wait for the first admission: first schedule minus planned arrival. Empty if unknown."""
    if done.first_scheduled_s is None:
        return np.empty(0)
    return done.first_scheduled_s - done.arrival_s


def output_intervals_s(done: _Times) -> Floats:
    """TPOT, a request's mean output-token interval: (last - first) / (n - 1) (Table B-8).

    A one-token output has no TPOT.
    """
    several = done.generated > 1
    elapsed = (done.finish_s - done.first_token_s)[several]
    return np.asarray(elapsed / (done.generated[several] - 1), dtype=np.float64)


def _token_gaps(done: _Times, record: RunRecord) -> tuple[Floats, Ints]:
    if record.token_gaps_s is None:
        return token_gaps_s(done, record.steps)
    return record.token_gaps_s, np.ones(record.token_gaps_s.size, dtype=np.int64)


def token_gaps_s(done: _Times, steps: pd.DataFrame) -> tuple[Floats, Ints]:
    """ITL, the gaps between a request's output tokens, as distinct gaps and their counts.

    A running request gets one token at the end of every step, so a request whose token count equals
    the steps between its first and last token has one gap per step, as long as the step and the
    stall before it. Where prefill takes steps of its own, it has one gap per decoding step. Sum and
    number of gaps are exact for every request. The tables do not determine the single gaps in two
    cases:

    * preempted after its first token: the steps without a token are known in number, not in place.
      Gaps without a preemption count as the request's mean step, and the preemptions share the
      rest equally.
    * fewer steps than tokens (several tokens a step, or no step table): all its gaps are equal.
    """
    num_gaps = done.generated - 1
    first, last = _step_index(done.first_token_s, steps), _step_index(done.finish_s, steps)
    elapsed_steps = last - first
    elapsed_s = done.finish_s - done.first_token_s
    steady = (num_gaps > 0) & (elapsed_steps == num_gaps)
    stalled = (num_gaps > 0) & (elapsed_steps > num_gaps)
    waited_s, waited = _gaps_around_prefill(done, stalled & (done.num_preemptions == 0), steps)
    stalled &= ~waited
    bunched = (num_gaps > 0) & (elapsed_steps < num_gaps)

    step_gaps, step_counts = _step_gaps(first[steady], last[steady], steps)
    regular_s = elapsed_s[stalled] / elapsed_steps[stalled]
    num_stalls = np.clip(done.num_preemptions[stalled], 1, num_gaps[stalled])
    num_regular = num_gaps[stalled] - num_stalls
    stall_s = (elapsed_s[stalled] - num_regular * regular_s) / num_stalls
    equal_s = elapsed_s[bunched] / num_gaps[bunched]
    gaps = np.concatenate((step_gaps, waited_s, regular_s, stall_s, equal_s))
    once = np.ones(waited_s.size, dtype=np.int64)
    counts = np.concatenate((step_counts, once, num_regular, num_stalls, num_gaps[bunched]))
    return gaps[counts > 0], counts[counts > 0]


def _step_index(time_s: Floats, steps: pd.DataFrame) -> Ints:
    """Number of steps that have ended by each time, a step that ends exactly then included."""
    if steps.empty:
        return np.zeros(time_s.size, dtype=np.int64)
    start, duration = _floats(steps, "start_s"), _floats(steps, "step_s")
    num_steps = _ints(steps, "num_steps")
    end = start + num_steps * duration
    row = np.minimum(np.searchsorted(end, time_s - TIME_TOLERANCE_S), end.size - 1)
    inside = np.rint((time_s - start[row]) / duration[row])
    before = np.cumsum(num_steps) - num_steps
    return np.asarray(
        before[row] + np.clip(inside, 1, num_steps[row]).astype(np.int64), dtype=np.int64
    )


def _step_gaps(first: Ints, last: Ints, steps: pd.DataFrame) -> tuple[Floats, Ints]:
    """Gap and number of tokens of each step row, for requests with a token in every step of
    (first, last]. The first step of a row carries the stall since the row before."""
    if steps.empty:
        return np.empty(0), np.empty(0, dtype=np.int64)
    start, duration = _floats(steps, "start_s"), _floats(steps, "step_s")
    num_steps = _ints(steps, "num_steps")
    after = np.cumsum(num_steps)
    before = after - num_steps
    stall = np.zeros(start.size)
    stall[1:] = start[1:] - (start + num_steps * duration)[:-1]

    def tokens_until(step: Ints) -> Ints:
        return _overlap(step, first) - _overlap(step, last)

    until_first = tokens_until(before + 1)
    leading = until_first - tokens_until(before)
    others = tokens_until(after) - until_first
    return np.concatenate((duration + stall, duration)), np.concatenate((leading, others))


def _gaps_around_prefill(
    done: _Times, candidates: NDArray[np.bool_], steps: pd.DataFrame
) -> tuple[Floats, NDArray[np.bool_]]:
    """Every gap of the candidates that got a token in each decoding step, and their mask."""
    found = np.zeros(candidates.size, dtype=bool)
    if not candidates.any():
        return np.empty(0), found
    decoding = steps[steps["decode_tokens"] > 0]
    num_steps = _ints(decoding, "num_steps")
    within = np.arange(num_steps.sum()) - np.repeat(np.cumsum(num_steps) - num_steps, num_steps) + 1
    ends = np.repeat(_floats(decoding, "start_s"), num_steps)
    ends = ends + within * np.repeat(_floats(decoding, "step_s"), num_steps)
    gaps = [np.empty(0)]
    for index in np.flatnonzero(candidates):
        first_s, finish_s = done.first_token_s[index], done.finish_s[index]
        low, high = np.searchsorted(
            ends, np.array([first_s, finish_s]) + TIME_TOLERANCE_S, side="right"
        )
        if high - low == done.generated[index] - 1:
            found[index] = True
            gaps.append(np.diff(ends[low:high], prepend=first_s))
    return np.concatenate(gaps), found


def _overlap(step: Ints, origin: Ints) -> Ints:
    """Sum over origins of max(step - origin, 0), for each step."""
    ordered = np.sort(origin)
    below = np.searchsorted(ordered, step)
    totals = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(ordered)))
    return np.asarray(below * step - totals[below], dtype=np.int64)


# -- work and state ------------------------------------------------------------------------------


def submitted_tokens(requests: pd.DataFrame, steps: pd.DataFrame) -> dict[str, Metric]:
    """Tokens submitted in all steps, by phase (Appendix C.3, Tables C-4 and E-9).

    `initial` is the prompt before a request's first preemption; `replayed` is everything that is
    prefilled after a preemption: prompt, and outputs generated before (`replayed_output`, None
    where the engine does not tell them apart).
    """
    prefill, decode = _step_total(steps, "prefill_tokens"), _step_total(steps, "decode_tokens")
    return {
        "submitted_tokens": None if prefill is None or decode is None else prefill + decode,
        "prefill_tokens": prefill,
        "initial_prefill_tokens": _known_total(requests, "prefill_tokens"),
        "replayed_tokens": _known_total(requests, "replayed_tokens"),
        "replayed_output_tokens": _known_total(requests, "replayed_output_tokens"),
        "decode_tokens": decode,
    }


def recorded_totals(requests: pd.DataFrame, steps: pd.DataFrame) -> dict[str, Metric]:
    """The recorded counters over the whole run, and quantities derived from them (Appendix B.4).

    H counts a prompt token when it is first computed and an output token when it is generated, so
    that replays add nothing; O_ctr counts outputs; K counts steps that carry a token.
    """
    o_ctr = _total(requests, "generated_tokens")
    if "prefill_tokens" not in requests or "num_steps" not in steps:
        unknown = ("h_tokens", "c_once_tokens", "k_records", "h_per_k_mean")
        return {"o_ctr_tokens": o_ctr, **dict.fromkeys(unknown)}
    h = _total(requests, "prefill_tokens") + o_ctr
    carries = (_ints(steps, "prefill_tokens") + _ints(steps, "decode_tokens")) > 0
    k = int(_ints(steps, "num_steps")[carries].sum())
    return {
        "h_tokens": h,
        "o_ctr_tokens": o_ctr,
        "c_once_tokens": once_recorded_input_tokens(h, o_ctr),
        "k_records": k,
        "h_per_k_mean": h / k if k else None,
    }


def once_recorded_input_tokens(h_tokens: int, o_ctr_tokens: int) -> int:
    """C_once = H - O_ctr (Appendix B.4): input recorded once, not a measure of executed prefill."""
    return h_tokens - o_ctr_tokens


def stranded_fraction(counters: Mapping[str, float | int | None]) -> float | None:
    """Free bytes of one pool while the other is exhausted, over the bytes of both, by steps (B.4).

    The denominator runs over all steps; that reading is inferred from the size of the published
    values (E.12). None, not zero, for an organization with one pool, which has no such counters.
    """
    return _share(counters, "stranded_byte_steps", "pool_byte_steps")


def slab_occupancy(counters: Mapping[str, float | int | None]) -> float | None:
    """Slots in use over the slots of all allocated slabs, by steps. None without slabs."""
    return _share(counters, "used_slot_steps", "slab_slot_steps")


def _share(counters: Mapping[str, float | int | None], part: str, whole: str) -> float | None:
    above, below = counters.get(part), counters.get(whole)
    return above / below if above is not None and below else None


# -- central-arrival window ----------------------------------------------------------------------


def central_metrics(record: RunRecord) -> dict[str, Metric]:
    """Output rate in the window of the planned arrivals, and the drift screen (B.4, E.9)."""
    requests, steps = record.requests, record.steps
    window = central_window(_floats(requests, "arrival_s"))
    halves: dict[str, Halves | None] = {"running": None, "waiting": None}
    throughput = None
    if window is not None:
        halves = {name: gauge_halves(gauge(record, name), window) for name in halves}
        if not steps.empty:
            throughput = rate_per_s(output_tokens_within(requests, steps, window), window.length_s)
    metrics: dict[str, Metric] = {"central_throughput_tok_per_s": throughput}
    for name, half in halves.items():
        metrics[f"central_{name}_early_mean"] = None if half is None else half.early
        metrics[f"central_{name}_late_mean"] = None if half is None else half.late
    return metrics


# -- offered load --------------------------------------------------------------------------------


def load_rates(requests: pd.DataFrame) -> dict[str, Metric]:
    """Requests per second of the load, as planned and as sent.

    Both count the gaps between the first and the last request over the time between them. They are
    equal for a load that is sent as planned; a simulated load always is. Arrivals in bursts carry
    more than their `rate_per_s`, see `BurstArrivals`. Refused requests are not sent.
    """
    sent = "sent_s" if "sent_s" in requests else "arrival_s"
    load = requests[((requests["status"] != "refused") & requests[sent].notna()).to_numpy()]
    return {
        "planned_rate_per_s": _mean_rate(_floats(load, "arrival_s")),
        "realised_rate_per_s": _mean_rate(_floats(load, sent)),
    }


def _mean_rate(times_s: Floats) -> float | None:
    return rate_per_s(times_s.size - 1, float(np.ptp(times_s))) if times_s.size else None


# -- the ledger's episode, and measured runs only ------------------------------------------------


def episode_metrics(record: RunRecord, output_tokens: int) -> dict[str, Metric]:
    """The ledger's timebase (Appendix G.3); empty if the episode is not known."""
    if record.episode_s is None:
        return {}
    return {
        "episode_s": record.episode_s,
        "ledger_throughput_tok_per_s": rate_per_s(output_tokens, record.episode_s),
    }


def sending_metrics(record: RunRecord) -> dict[str, Metric]:
    """The delays of sending, of a measured run with an episode; else empty."""
    requests = record.requests
    if record.episode_s is None or "sent_s" not in requests:
        return {}
    was_sent = requests[requests["sent_s"].notna().to_numpy()]
    planned, sent = _floats(was_sent, "arrival_s"), _floats(was_sent, "sent_s")
    return {
        **_distribution("send_delay", sent - planned),
        "send_delay_max_s": float((sent - planned).max()) if sent.size else None,
        "num_retries": _total(requests, "num_retries"),
    }


# -- statistics of one run -----------------------------------------------------------------------


def percentile(values: Floats, percent: float, counts: Ints | None = None) -> float:
    """Linear-rule percentile of values that occur `counts` times each (once without counts).

    Equal to `np.percentile(np.repeat(values, counts), percent)` without the repetition.
    """
    if counts is None:
        return float(np.percentile(values, percent))
    order = np.argsort(values)
    ordered, upper_rank = values[order], np.cumsum(counts[order])
    rank = (int(upper_rank[-1]) - 1) * percent / 100.0
    low, high = ordered[np.searchsorted(upper_rank, [np.floor(rank), np.ceil(rank)], "right")]
    return float(low + (high - low) * (rank - np.floor(rank)))


def _distribution(name: str, values: Floats, counts: Ints | None = None) -> dict[str, Metric]:
    keys = (f"{name}_mean_s", f"{name}_p50_s", f"{name}_p99_s")
    if not values.size:
        return dict.fromkeys(keys)
    mean = float(np.average(values, weights=counts))
    return dict(
        zip(
            keys,
            (mean, percentile(values, 50.0, counts), percentile(values, 99.0, counts)),
            strict=True,
        )
    )


def _gauge(name: str, samples: Ints) -> dict[str, Metric]:
    return {
        f"{name}_mean": _mean(samples),
        f"{name}_median": float(np.median(samples)) if samples.size else None,
        f"{name}_max": int(samples.max()) if samples.size else None,
    }


def _mean(values: NDArray[np.generic]) -> float | None:
    return float(values.astype(np.float64).mean()) if values.size else None


def _with_counters(
    metrics: dict[str, Metric], counters: Mapping[str, float | int | None]
) -> dict[str, Metric]:
    for name in metrics.keys() & counters.keys():
        if metrics[name] != counters[name]:
            raise ValueError(
                f"counter {name} is {counters[name]}, but the tables give {metrics[name]}"
            )
    return metrics | dict(counters)


def _floats(frame: pd.DataFrame, column: str) -> Floats:
    return frame[column].to_numpy(dtype=np.float64)


def _ints(frame: pd.DataFrame, column: str) -> Ints:
    return frame[column].to_numpy(dtype=np.int64)


def _total(frame: pd.DataFrame, column: str) -> int:
    return int(_ints(frame, column).sum())


def _known_total(frame: pd.DataFrame, column: str) -> int | None:
    return _total(frame, column) if column in frame else None


def _step_total(steps: pd.DataFrame, column: str) -> int | None:
    if "num_steps" not in steps:
        return None
    return int((_ints(steps, "num_steps") * _ints(steps, column)).sum())


def _step_seconds(steps: pd.DataFrame) -> Floats:
    return _ints(steps, "num_steps") * _floats(steps, "step_s")
