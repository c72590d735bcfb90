"""Placement of checkpoints in whole runs: who hits, with chunk ends, at junctions, at every n-th
boundary."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_engine import (
    ORGANIZATIONS,
    falcon_memory,
    play,
    play_falcon,
    request,
    toy_memory,
    workload_of,
)

SHARED, OWN, GRID = 200, 120, 96


def adopted(
    organization: str, placement: str, prompts: Sequence[tuple[int, int]], *, grid: int = GRID
) -> list[int]:
    """Cached tokens of requests that come one after the other to a memory with room for all.

    Args:
        prompts: shared and own tokens of each.
    """
    memory = toy_memory(
        organization, 4000, num_states=200, grid=grid, multiple=grid, placement=placement
    )
    assert memory.checkpoint_grid == grid
    record = play(
        [
            request(shared + own, 2, at=float(i), shared=shared)
            for i, (shared, own) in enumerate(prompts)
        ],
        memory,
        token_budget=2048,
    )
    return list(record.requests["adopted_tokens"])


@pytest.mark.parametrize("organization", ORGANIZATIONS)
@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        ("chunk_ends", [0, 0, 0, 0]),  # the only checkpoints are at 288, among own tokens
        ("junction", [0, 0, 192, 192]),  # as in vLLM, see tests/engine/test_stock_placement.py
        ("every", [0, 192, 192, 192]),
        ("dense", [0, 192, 192, 192]),
    ],
)
def test_requests_that_share_a_prefix_that_no_chunk_ends_with(
    placement: str, expected: list[int], organization: str
) -> None:
    assert adopted(organization, placement, [(SHARED, OWN)] * 4) == expected


@pytest.mark.parametrize("organization", ORGANIZATIONS)
@pytest.mark.parametrize("intervals", [2, 3, 7])
def test_a_prompt_of_whole_intervals_hits_when_it_comes_for_the_third_time(
    intervals: int, organization: str
) -> None:
    prompts = [(intervals * GRID, 0)] * 4
    depth = (intervals - 1) * GRID  # the last token is always computed
    assert adopted(organization, "junction", prompts) == [0, 0, depth, depth]
    assert adopted(organization, "chunk_ends", prompts) == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("shared", "own", "at_chunk_ends", "at_junctions"),
    [
        (1536, 64, 63, 63),  # the prefix ends with the last boundary of the prompt
        (1535, 65, 0, 62),  # a token less
        (1600, 600, 0, 62),
    ],
)
def test_the_cliff_of_chunk_ends_is_gone_at_junctions(
    shared: int, own: int, at_chunk_ends: int, at_junctions: int
) -> None:
    workload = workload_of(request(shared + own, 2, at=2.0 * i, shared=shared) for i in range(64))
    hits = {}
    for placement in ("chunk_ends", "junction"):
        record = play_falcon(workload, falcon_memory("s2", "b108", placement=placement))
        tokens = record.requests["adopted_tokens"]
        hits[placement] = int((tokens > 0).sum())
        assert set(tokens) <= {0, shared // 512 * 512}
    assert hits == {"chunk_ends": at_chunk_ends, "junction": at_junctions}


@given(
    organization=st.sampled_from(ORGANIZATIONS),
    grid=st.sampled_from([16, 24]),
    shared=st.lists(st.integers(0, 90), min_size=2, max_size=4),
    own=st.lists(st.integers(1, 40), min_size=3, max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_hits_grow_with_the_shared_length_from_the_third_request_on(
    organization: str, grid: int, shared: list[int], own: list[int]
) -> None:
    """Whatever the requests have of their own, all but the first two hit all that is shared."""
    found = []
    for length in sorted(shared):
        prompts = [(length, each) for each in own]
        hits = adopted(organization, "junction", prompts, grid=grid)
        assert hits[2:] == [length // grid * grid] * (len(own) - 2)
        found.append(hits[2])
    assert found == sorted(found)


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_a_preempted_request_finds_its_junction_again(organization: str) -> None:
    """Its own attention is cached deeper than its states, so that its replay stops there."""
    memory = toy_memory(organization, 48, num_states=7, placement="junction")
    requests = [request(20 + i, 30, at=0.02 * i, shared=16) for i in range(6)]
    record = play(requests, memory, token_budget=16)
    assert record.counters["preemptions"] > 0
    assert list(record.requests["generated_tokens"]) == [30] * 6
    memory.check_integrity()
