"""Latency-qualified goodput on four requests that can be counted by hand."""

import numpy as np
import pandas as pd
import pytest
from toy_run import A, record

from hsexp.measure.goodput import (
    Thresholds,
    goodput_tok_per_s,
    union_thresholds,
)


def requests(*times_and_tokens, **changes):
    """Requests that all arrive at 0, from (first token, last token, tokens)."""
    rows = [
        A
        | {"request_id": k, "arrival_s": 0.0, "first_scheduled_s": 0.0}
        | {"first_token_s": first, "finish_s": last, "generated_tokens": tokens}
        | changes
        for k, (first, last, tokens) in enumerate(times_and_tokens)
    ]
    return record(rows).requests


# E2E 2, 4, 10 s; TPOT 0.5, 1.0, 2.0 s.
COMPARATOR = requests((1.0, 2.0, 3), (1.0, 4.0, 4), (2.0, 10.0, 5))


def test_the_comparators_thresholds_are_percentiles_of_its_own_requests():
    assert union_thresholds([COMPARATOR], 50) == Thresholds(e2e_s=4.0, tpot_s=1.0)
    assert union_thresholds([COMPARATOR], 100) == Thresholds(e2e_s=10.0, tpot_s=2.0)


def test_the_unions_thresholds_see_the_requests_of_both_arms():
    other = requests((1.0, 20.0, 20), (1.0, 30.0, 30))  # TPOT 1.0 twice
    thresholds = union_thresholds([COMPARATOR, other], 50)
    assert thresholds == Thresholds(e2e_s=10.0, tpot_s=1.0)


def test_goodput_counts_the_tokens_of_requests_within_both_thresholds_over_the_whole_span():
    # 3 + 4 tokens of the first two in the span of all three, 10 s.
    assert goodput_tok_per_s(COMPARATOR, Thresholds(e2e_s=4.0, tpot_s=1.0)) == 0.7
    assert goodput_tok_per_s(COMPARATOR, Thresholds(e2e_s=9.0, tpot_s=0.9)) == 0.3
    assert goodput_tok_per_s(COMPARATOR, Thresholds(e2e_s=1.0, tpot_s=9.0)) == 0.0


def test_thresholds_that_all_meet_give_the_throughput():
    assert goodput_tok_per_s(COMPARATOR, union_thresholds([COMPARATOR], 100)) == 12 / 10.0


def test_a_one_token_output_is_judged_by_its_end_alone():
    table = requests((1.0, 1.0, 1), (1.0, 2.0, 3))
    assert union_thresholds([table], 100).tpot_s == 0.5
    assert goodput_tok_per_s(table, Thresholds(e2e_s=1.5, tpot_s=0.0)) == 0.5


def test_without_a_finished_request_goodput_is_unknown_and_thresholds_are_refused():
    nothing = requests((np.nan, np.nan, 0), status="refused", reason="too long")
    assert goodput_tok_per_s(nothing, Thresholds(e2e_s=1.0, tpot_s=1.0)) is None
    with pytest.raises(ValueError, match="finished requests with two output tokens"):
        union_thresholds([nothing], 99)


def test_the_span_begins_with_the_first_request_also_if_that_one_was_refused():
    late = requests((3.0, 4.0, 3), arrival_s=2.0, first_scheduled_s=2.0)
    refused = requests((np.nan, np.nan, 0), status="refused")  # at 0
    both = pd.concat([refused, late], ignore_index=True)
    assert goodput_tok_per_s(both, Thresholds(e2e_s=4.0, tpot_s=1.0)) == 3 / 4.0
