"""Drifting popularity, and the named variants of the law of shared contexts."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from hsexp.config.base import ConfigError, parse_union
from hsexp.config.catalog import read_option
from hsexp.workload import Workload, WorkloadConfig, build
from hsexp.workload.arrivals import DrawnPoissonArrivals
from hsexp.workload.drifting import DriftingWorkload

ARRIVALS = DrawnPoissonArrivals(kind="poisson_drawn", rate_per_s=3.0)


def draw(name: str, seed: int = 0, **changes: Any) -> Workload:
    fields = read_option("workload", name) | {"sharing": 1.0} | changes
    return build(parse_union(WorkloadConfig, fields, path="workload"), ARRIVALS, seed)


def contexts(workload: Workload) -> list[int]:
    return [request.segments[0].content_id for request in workload.requests]


def test_every_rank_goes_to_the_next_context_after_so_many_requests() -> None:
    still = np.array(contexts(draw("drifting", drift_requests=300)))
    moving = np.array(contexts(draw("drifting", drift_requests=15)))
    assert ((moving - still) % 64).tolist() == [i // 15 for i in range(300)]


def test_the_most_popular_context_becomes_the_least_popular() -> None:
    ids = np.array(contexts(draw("drifting", num_requests=20_000, drift_requests=10_000)))
    before, after = (np.bincount(half, minlength=64) for half in (ids[:10_000], ids[10_000:]))
    assert before.argmax() == 0 and after.argmax() == 1
    weights = np.arange(1, 65) ** -1.5
    expected = 10_000 * weights / weights.sum()
    assert stats.chisquare(before, expected).pvalue > 0.01
    assert stats.chisquare(after, np.roll(expected, 1)).pvalue > 0.01


def test_a_drift_changes_contexts_and_nothing_else() -> None:
    fields = {"zipf_exponent": 1.5}
    for still, moved in zip(
        draw("contexts_64", **fields).requests, draw("drifting").requests, strict=True
    ):
        assert (still.arrival_s, still.prompt_tokens, still.output_tokens) == (
            moved.arrival_s,
            moved.prompt_tokens,
            moved.output_tokens,
        )
        assert [s.end_tokens for s in still.segments] == [s.end_tokens for s in moved.segments]


def test_who_does_not_share_does_not_drift() -> None:
    assert not any(request.segments for request in draw("drifting", sharing=0.0).requests)


def test_a_drift_of_no_requests_is_refused() -> None:
    fields = read_option("workload", "drifting") | {"sharing": 1.0, "drift_requests": 0}
    with pytest.raises(ConfigError, match=r"workload\.drift_requests must be gr.* 0, got 0"):
        DriftingWorkload.parse(fields, path="workload")


def test_a_small_drift_keeps_its_digest() -> None:
    assert draw("drifting", 1, num_requests=20).digest == (
        "95a71982ed1c3d61f418ccecceefff011dbe6305fe1203fcffbeb762e42aeafd"
    )


@pytest.mark.parametrize(("name", "number"), [("contexts_64", 64), ("contexts_256", 256)])
def test_many_contexts_are_as_many_as_their_name_says(name: str, number: int) -> None:
    ids = contexts(draw(name, num_requests=20_000))
    assert len(set(ids)) == number
    counts = np.bincount(ids, minlength=number)
    weights = np.arange(1, number + 1) ** -0.7
    assert stats.chisquare(counts, 20_000 * weights / weights.sum()).pvalue > 0.01


def lengths(name: str) -> list[tuple[float, float]]:
    """Mean prompt and output of some seeds."""
    workloads = [draw(name, seed).requests for seed in range(8)]
    return [
        (np.mean([r.prompt_tokens for r in each]), np.mean([r.output_tokens for r in each]))
        for each in workloads
    ]


def test_doubled_outputs_are_twice_as_long_behind_the_same_prompts() -> None:
    for (prompt, output), (same, doubled) in zip(
        lengths("extension_drawn"), lengths("double_outputs"), strict=True
    ):
        assert prompt == same
        assert doubled / output == pytest.approx(2.0, rel=0.02)  # short answers stay as they are


def test_long_prompts_have_a_private_part_of_1700_tokens_and_the_same_outputs() -> None:
    for (_, output), (prompt, same) in zip(
        lengths("extension_drawn"), lengths("long_prompts"), strict=True
    ):
        assert prompt == pytest.approx(3072 + 1700, abs=0.1)
        assert output == same


@pytest.mark.parametrize(
    "name", ["conversations", "nested", "drifting", "contexts_64", "long_prompts", "double_outputs"]
)
def test_no_request_exceeds_the_models_limit(name: str) -> None:
    changes = {} if name == "conversations" else {"sharing": 1.0}
    fields = read_option("workload", name) | changes
    spec = parse_union(WorkloadConfig, fields, path="workload")
    for seed in range(32):
        requests = build(spec, ARRIVALS, seed).requests
        assert max(r.prompt_tokens + r.output_tokens for r in requests) <= 8192
