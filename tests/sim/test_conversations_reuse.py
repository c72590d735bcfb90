"""What the simulated memory reuses of a former turn, on the paper's geometry."""

from itertools import pairwise
from typing import Any

import pytest
from cores import pure_only
from toy_engine import falcon_memory, play, play_falcon, talk, toy_memory

from hsexp.config.base import parse_union
from hsexp.config.catalog import read_option
from hsexp.memory.sequence import Hit
from hsexp.memory.standing import StandingRefusal
from hsexp.workload import Request, Segment, Workload, WorkloadConfig, build
from hsexp.workload.arrivals import PoissonArrivals


def conversations(rate: float = 1.0, **changes: Any) -> Workload:
    fields = read_option("workload", "conversations") | changes
    spec = parse_union(WorkloadConfig, fields, path="workload")
    return build(spec, PoissonArrivals(kind="poisson", rate_per_s=rate), seed=5)


def followers(workload: Workload) -> list[tuple[Request, Request]]:
    """Each turn that has one before it, with that one."""
    talks: dict[Segment, list[Request]] = {}
    for request in workload.requests:
        talks.setdefault(request.segments[0], []).append(request)
    return [pair for turns in talks.values() for pair in pairwise(turns)]


@pytest.mark.parametrize("states", ["per_boundary", "in_place"])
@pytest.mark.parametrize("organization", ["s0", "s1", "s2", "d0"])
def test_a_turn_restarts_at_the_last_token_that_the_turn_before_it_computed(
    organization: str, states: str
) -> None:
    workload = conversations(num_conversations=20, system_tokens=0, think_mean_s=60)
    memory = falcon_memory(organization, "b320", eviction="lru", states=states, leaves="final")
    record = play_falcon(workload, memory)
    table = record.requests.set_index("request_id")
    assert record.counters["lost_checkpoints"] == 0
    waited = 0
    for former, turn in followers(workload):
        if table.finish_s[former.request_id] > turn.arrival_s:
            continue
        computed = former.prompt_tokens + former.output_tokens - 1  # the last token is not
        assert table.adopted_tokens[turn.request_id] == computed
        waited += 1
    assert waited > 10


@pytest.mark.parametrize("states", ["per_boundary", "in_place"])
@pytest.mark.parametrize("organization", ["s0", "s1", "s2", "d0"])
def test_a_prompt_that_ends_with_the_leaf_computes_its_last_token(
    organization: str, states: str
) -> None:
    (turn,) = talk([(10, 6, 0.0)], 1)  # computes 15 tokens; the grid is 4, in D0 14
    memory = toy_memory(organization, 60, states=states, eviction="lru", leaves="final")
    again = {"prompt_tokens": 15, "output_tokens": 1, "arrival_s": 1.0}
    longer = {"prompt_tokens": 16, "output_tokens": 1, "arrival_s": 2.0}
    record = play([turn, turn | again, turn | longer], memory)
    # In place, output leaves no checkpoint at a boundary.
    grid, end = (14 if organization == "d0" else 4), (10 if states == "in_place" else 14)
    assert record.requests["adopted_tokens"].to_list()[1:] == [end // grid * grid, 15]


@pure_only
def test_a_refusal_with_a_leaf_is_tried_again_after_every_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """See `tests/memory/test_standing.py`: without the leaf the request may need less."""
    refused: list[tuple[Hit, bool]] = []

    class Watched(StandingRefusal):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            refused.append((self.hit, self.losses is not None))

    monkeypatch.setattr("hsexp.sim.scheduler.StandingRefusal", Watched)
    play_falcon(conversations(rate=4.5), falcon_memory("s2", "b63", leaves="final"))
    with_leaf = [losses for hit, losses in refused if hit.tokens % 512]
    assert with_leaf and all(with_leaf)


@pytest.mark.parametrize("organization", ["s0", "s1", "s2"])
def test_a_turn_restarts_where_the_output_before_it_crossed_its_last_boundary(
    organization: str,
) -> None:
    # 20 conversations without a system prompt, a minute between turns: nothing is evicted, since
    # nothing that is cached goes before a free page (in its own order S2 gives up idle slabs).
    workload = conversations(num_conversations=20, system_tokens=0, think_mean_s=60)
    record = play_falcon(workload, falcon_memory(organization, "b320", eviction="lru"))
    table = record.requests.set_index("request_id")
    assert record.counters["lost_checkpoints"] == 0
    in_the_answer = 0
    for former, turn in followers(workload):
        if table.finish_s[former.request_id] > turn.arrival_s:
            continue
        computed = former.prompt_tokens + former.output_tokens - 1  # the last token is not
        assert table.adopted_tokens[turn.request_id] == computed // 512 * 512
        in_the_answer += computed // 512 > former.prompt_tokens // 512
    assert in_the_answer > 10


def test_a_turn_that_arrives_before_the_end_of_the_former_one_reuses_what_there_is() -> None:
    """Nobody waits for the former turn: its answer is computed by both."""
    workload = conversations(num_conversations=20, system_tokens=0, think_mean_s=0.01)
    record = play_falcon(workload, falcon_memory("s2", "b320"))
    table = record.requests.set_index("request_id")
    assert set(table.status) == {"finished"}
    for former, turn in followers(workload):
        assert turn.arrival_s < table.finish_s[former.request_id]
        assert table.adopted_tokens[turn.request_id] <= former.prompt_tokens
