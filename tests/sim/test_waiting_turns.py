"""Turns that wait for the answer before them: when they arrive, and what they then find."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_engine import ORGANIZATIONS, hit_first, play, request, talk, toy_memory

from hsexp.memory.policies.waiting import FIRST_COME


def waiting(turns: list[Any], think_s: float, *, first: int = 0) -> list[Any]:
    """A session, of which every turn waits for the one before it."""
    return [
        turn | ({} if i == 0 else {"after": first + i - 1, "think_s": think_s})
        for i, turn in enumerate(turns)
    ]


def test_a_turn_arrives_a_think_time_after_the_end_of_the_turn_before_it() -> None:
    turns = waiting(talk([(4, 2, 0.0), (2, 1, 0.0)], 1), 0.1)
    table = play(turns, toy_memory("s1", 40)).requests
    # A prefill of 4 takes 10.4 ms, a decode 11 ms; 100 ms later the next turn comes.
    assert table.finish_s.iloc[0] == 0.0214
    assert table.arrival_s.tolist() == [0.0, 0.1214]
    assert table.first_scheduled_s.iloc[1] == 0.1214


def test_a_turn_without_a_think_time_joins_the_very_next_step() -> None:
    turns = waiting(talk([(4, 2, 0.0), (2, 1, 0.0)], 1), 0.0)
    table = play([*turns, request(4, 30)], toy_memory("s1", 40)).requests
    assert table.first_scheduled_s.iloc[1] == table.finish_s.iloc[0] == table.arrival_s.iloc[1]


def test_a_turn_follows_a_refused_one() -> None:
    turns = waiting([request(200, 2), request(4, 1)], 0.5)
    table = play(turns, toy_memory("s1", 40), max_model_tokens=100).requests
    assert table.status.tolist() == ["refused", "finished"]
    assert table.arrival_s.tolist() == [0.0, 0.5]


def test_a_slow_server_delays_the_later_turns_and_not_the_first_ones() -> None:
    def arrivals(cap: int) -> list[float]:
        sessions: list[Any] = []
        for content in range(4):
            turns = talk([(4, 8, 0.0), (4, 8, 0.0)], content)
            sessions += waiting(turns, 0.01, first=2 * content)
        arrived: list[float] = play(sessions, toy_memory("s1", 60), cap=cap).requests.arrival_s
        return list(arrived)

    wide, narrow = arrivals(4), arrivals(1)
    assert wide[::2] == narrow[::2] == [0.0] * 4
    assert max(wide[1::2]) < max(narrow[1::2])


@pytest.mark.parametrize("organization", ORGANIZATIONS)
@pytest.mark.parametrize("order", [FIRST_COME, hit_first(0.05)], ids=["first_come", "hit_first"])
@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(
        st.lists(
            st.tuples(st.integers(1, 12), st.integers(1, 9), st.sampled_from([0.0, 0.02, 0.3])),
            min_size=1,
            max_size=4,
        ),
        min_size=1,
        max_size=5,
    )
)
def test_leaping_over_quiet_steps_changes_no_time_of_a_turn_that_waits(
    organization: str, order: Any, lengths: list[list[tuple[int, int, float]]]
) -> None:
    requests: list[Any] = []
    for content, turns in enumerate(lengths):
        spoken = talk([(message, answer, 0.01 * content) for message, answer, _ in turns], content)
        for i, (turn, (_, _, think_s)) in enumerate(zip(spoken, turns, strict=True)):
            after = {} if i == 0 else {"after": len(requests) - 1, "think_s": think_s}
            requests.append(turn | after)
    leaping, walking = (
        play(
            requests,
            toy_memory(
                organization, 60, eviction="lru", leaves="off" if organization == "s3" else "final"
            ),
            fast_forward=fast_forward,
            waiting=order,
        )
        for fast_forward in (True, False)
    )
    assert leaping.requests.equals(walking.requests)
    assert (leaping.requests.arrival_s[1:] >= 0).all()
    for i, fields in enumerate(requests):
        if "after" in fields:
            before = leaping.requests.finish_s[fields["after"]]
            assert leaping.requests.arrival_s[i] == pytest.approx(before + fields["think_s"])
