"""Nested prefixes: paths through a tree, and what two of them share."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from hsexp.config.base import ConfigError
from hsexp.config.catalog import read_option
from hsexp.sim.keys import KeyMaker
from hsexp.workload import Workload, build, isolate
from hsexp.workload.arrivals import PoissonArrivals
from hsexp.workload.nested import NestedWorkload
from runners.vllm.tokens import prompt_tokens

ENDS = (900, 2000, 3300)


def law(**changes: Any) -> NestedWorkload:
    return NestedWorkload.parse(read_option("workload", "nested") | {"sharing": 1.0} | changes)


def draw(seed: int = 0, **changes: Any) -> Workload:
    return build(law(**changes), PoissonArrivals(kind="poisson", rate_per_s=3.0), seed)


def path(request: Any) -> tuple[int, ...]:
    return tuple(segment.content_id for segment in request.segments)


def common(one: Any, other: Any) -> int:
    """Leading items that two sequences share."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))


def test_a_request_has_one_context_of_each_level_and_a_suffix_of_its_own() -> None:
    for request in draw().requests:
        assert tuple(segment.end_tokens for segment in request.segments) == ENDS
        assert request.prompt_tokens > 3300


def test_two_prompts_share_exactly_the_levels_that_their_paths_do() -> None:
    requests = draw().requests[:60]
    maker = KeyMaker(block_size=1, checkpoint_grid=512)
    keys = [maker.keys(request).attention for request in requests]
    tokens = [prompt_tokens(request, 512) for request in requests]
    depths = set()
    for i in range(60):
        for j in range(i):
            depth = common(path(requests[i]), path(requests[j]))
            shared = ENDS[depth - 1]
            assert common(keys[i], keys[j]) == common(tokens[i], tokens[j]) == shared
            depths.add(depth)
    assert depths == {1, 2, 3}


def test_the_same_document_number_of_two_tenants_is_other_content() -> None:
    leaves = {path(request) for request in draw(num_requests=20_000).requests}
    assert len({leaf[-1] for leaf in leaves}) == len(leaves) == 128


def test_popularity_is_zipf_among_the_children_of_each_node() -> None:
    requests = draw(num_requests=20_000).requests
    for level, fan_out in [(1, 8), (2, 16)]:
        first = path(requests[0])[level - 1]  # the children of one node
        children = [path(r)[level] for r in requests if path(r)[level - 1] == first]
        counts = np.sort(np.unique(children, return_counts=True)[1])[::-1]
        weights = np.arange(1, fan_out + 1) ** -0.7
        expected = len(children) * weights / weights.sum()
        assert stats.chisquare(counts, expected).pvalue > 0.001


def test_who_does_not_share_shares_no_level_and_keeps_its_lengths() -> None:
    half, full = draw(sharing=0.5), draw()
    assert abs(sum(not r.segments for r in half.requests) - 150) < 35  # four standard deviations
    for one, other in zip(half.requests, full.requests, strict=True):
        assert one.segments in ((), other.segments)
        assert (one.arrival_s, one.prompt_tokens, one.output_tokens) == (
            other.arrival_s,
            other.prompt_tokens,
            other.output_tokens,
        )


def test_isolated_requests_share_no_level() -> None:
    maker = KeyMaker(block_size=16, checkpoint_grid=512)
    keys = [set(maker.keys(request).attention) for request in isolate(draw()).requests]
    assert sum(map(len, keys)) == len(set.union(*keys))


def test_lengths_have_the_means_of_their_laws() -> None:
    requests = draw(num_requests=20_000).requests
    # The gamma law's clip at 1,024 takes .1 %; 20,000 draws have a standard error of .45 %.
    assert np.mean([r.output_tokens for r in requests]) == pytest.approx(261.5, rel=0.015)
    suffixes = np.array([r.prompt_tokens - 3300 for r in requests])
    assert np.median(suffixes) == pytest.approx(100, abs=4)
    assert (suffixes.min(), suffixes.max()) == (5, 1500)


def test_the_same_seed_gives_the_same_requests_and_another_one_does_not() -> None:
    assert draw(7).digest == draw(7).digest
    assert len({draw(seed).digest for seed in range(20)}) == 20


def test_a_small_tree_keeps_its_digest() -> None:
    assert draw(1, num_requests=8).digest == (
        "8bb559b4a7305d544865d0ef75f266afca77e3bcbbcd506c42ec2fc1cda9924c"
    )


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"levels": []}, "workload.levels must not be empty"),
        ({"sharing": None}, "workload.sharing .* got None"),
        (
            {"levels": [{"tokens": 0, "fan_out": 2, "zipf_exponent": 0.7}]},
            "workload.levels.0.tokens must be greater than 0, got 0",
        ),
        (
            {"levels": [{"tokens": 5, "fan_out": 2, "zipf_exponent": -1.0}]},
            "workload.levels.0.zipf_exponent must be greater than or equal to 0, got -1.0",
        ),
    ],
)
def test_a_law_that_makes_no_sense_is_refused_by_name(
    changes: dict[str, Any], refusal: str
) -> None:
    fields = read_option("workload", "nested") | {"sharing": 1.0}
    with pytest.raises(ConfigError, match=refusal):
        NestedWorkload.parse(fields | changes, path="workload")
