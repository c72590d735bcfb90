"""Conversations: the laws they are drawn by, and what a turn shares with the turn before it."""

from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy import stats

from hsexp.config.base import ConfigError
from hsexp.config.catalog import read_option
from hsexp.sim.keys import KeyMaker
from hsexp.workload import Request, Workload, build, isolate
from hsexp.workload.arrivals import PoissonArrivals
from hsexp.workload.conversations import ConversationWorkload
from runners.vllm.tokens import output_token, prompt_tokens

VOCABULARY = 512


def law(**changes: Any) -> ConversationWorkload:
    return ConversationWorkload.parse(read_option("workload", "conversations") | changes)


def draw(seed: int = 0, rate: float = 3.0, **changes: Any) -> Workload:
    return build(law(**changes), PoissonArrivals(kind="poisson", rate_per_s=rate), seed)


def conversations(workload: Workload) -> list[list[Request]]:
    """The turns of each conversation, in order of arrival: they have one first message."""
    turns = defaultdict(list)
    for request in workload.requests:
        first_message = next(s for s in request.segments if s.end_tokens > 1000)
        turns[first_message.content_id].append(request)
    return list(turns.values())


# -- what a turn shares ----------------------------------------------------------------------------


def test_a_prompt_is_the_former_prompt_the_former_output_and_a_new_message() -> None:
    pairs = [pair for turns in conversations(draw()) for pair in pairwise(turns)]
    assert len(pairs) > 150
    for former, turn in pairs:
        assert turn.segments[: len(former.segments)] == former.segments
        assert former.segments[-1].end_tokens == former.prompt_tokens + former.output_tokens
        message, answer = turn.segments[len(former.segments) :]
        assert (message.end_tokens, message.generated) == (turn.prompt_tokens, False)
        assert (answer.end_tokens - turn.prompt_tokens, answer.generated) == (
            turn.output_tokens,
            True,
        )


@pytest.mark.parametrize("grid", [16, 512, 1792])
def test_the_keys_of_a_turn_begin_with_those_of_the_prompt_and_output_before_it(grid: int) -> None:
    maker = KeyMaker(block_size=16, checkpoint_grid=grid)
    for turns in conversations(draw()):
        for former, turn in pairwise(turns):
            before, after = maker.keys(former), maker.keys(turn)
            blocks = (former.prompt_tokens + former.output_tokens) // 16
            boundaries = (former.prompt_tokens + former.output_tokens) // grid
            assert (len(before.attention), len(before.checkpoints)) == (blocks, boundaries)
            assert list(after.attention[:blocks]) == list(before.attention)
            assert list(after.checkpoints[:boundaries]) == list(before.checkpoints)


def test_two_conversations_share_their_system_prompt_and_no_more() -> None:
    maker = KeyMaker(block_size=1, checkpoint_grid=512)
    one, other = (maker.keys(turns[-1]).attention for turns in conversations(draw())[:2])
    assert list(one[:1000]) == list(other[:1000])
    assert not set(one[1000:]) & set(other[1000:])


def test_without_a_system_prompt_conversations_share_nothing() -> None:
    workload = draw(system_tokens=0)
    firsts = {request.segments[0] for request in workload.requests}
    assert len(firsts) == 90


def test_isolated_turns_share_nothing() -> None:
    maker = KeyMaker(block_size=16, checkpoint_grid=512)
    seen: set[Any] = set()
    for request in isolate(draw()).requests:
        keys = set(maker.keys(request).attention)
        assert not keys & seen
        seen |= keys


# -- as tokens of a real engine --------------------------------------------------------------------


def test_the_tokens_of_a_prompt_begin_with_the_former_prompt_and_what_it_was_made_to_generate() -> (
    None
):
    for turns in conversations(draw())[:30]:
        for former, turn in pairwise(turns):
            token = output_token(former, VOCABULARY)
            assert token is not None and 3 <= token < VOCABULARY
            history = prompt_tokens(former, VOCABULARY) + [token] * former.output_tokens
            prompt = prompt_tokens(turn, VOCABULARY)
            assert prompt[: len(history)] == history
            assert len(prompt) == turn.prompt_tokens > len(history)


def test_the_messages_of_two_conversations_differ_in_their_first_tokens() -> None:
    prompts = [prompt_tokens(turns[0], VOCABULARY) for turns in conversations(draw())]
    assert len({tuple(prompt[:1000]) for prompt in prompts}) == 1
    assert len({tuple(prompt[1000:1004]) for prompt in prompts}) == len(prompts)


def test_other_workloads_let_the_engine_generate_what_it_will() -> None:
    plain = Request(request_id=0, arrival_s=0.0, prompt_tokens=40, output_tokens=3)
    assert output_token(plain, VOCABULARY) is None


# -- laws ------------------------------------------------------------------------------------------


def test_numbers_of_turns_are_geometric_and_end_at_the_largest() -> None:
    many = draw(num_conversations=4000, max_tokens=100_000)
    counts = np.bincount([len(turns) for turns in conversations(many)], minlength=7)[1:]
    # P(k) = 1/4 (3/4)^(k - 1) below six; what is left is at six.
    expected = [0.25 * 0.75**k for k in range(5)] + [0.75**5]
    assert stats.chisquare(counts, 4000 * np.array(expected)).pvalue > 0.01
    assert law().expected_turns == pytest.approx(np.arange(1, 7) @ expected)


def test_one_turn_each_is_a_workload_of_single_requests() -> None:
    workload = draw(turns_mean=1.0)
    assert len(workload.requests) == 90
    assert workload.requests[-1].arrival_s == pytest.approx(30.0)  # 90 / 3


def test_a_turn_arrives_an_exponential_time_after_the_arrival_of_the_turn_before_it() -> None:
    turns = conversations(draw(num_conversations=2000))
    gaps = [b.arrival_s - a.arrival_s for each in turns for a, b in pairwise(each)]
    assert stats.kstest(gaps, stats.expon(scale=10.0).cdf).pvalue > 0.01


def test_a_turn_does_not_wait_for_a_longer_answer_before_it() -> None:
    times = [
        [request.arrival_s for request in draw(output=output).requests]
        for output in (
            {"mean_tokens": 5, "shape": 2.5, "min_tokens": 4, "max_tokens": 10},
            {"mean_tokens": 500, "shape": 2.5, "min_tokens": 400, "max_tokens": 600},
        )
    ]
    assert times[0] == times[1]


def test_a_long_run_carries_the_rate_in_requests() -> None:
    times = [r.arrival_s for r in draw(num_conversations=3000, rate=6.0).requests]
    # In the middle of the run: from 200 s, many think times after the begin, to 1,400 s.
    in_the_middle = sum(200.0 <= time < 1400.0 for time in times)
    assert in_the_middle / 1200.0 == pytest.approx(6.0, rel=0.05)


def test_requests_are_in_order_of_arrival_and_numbered_by_it() -> None:
    requests = draw().requests
    assert [request.request_id for request in requests] == list(range(len(requests)))
    assert all(a.arrival_s <= b.arrival_s for a, b in pairwise(requests))


def test_a_conversation_ends_before_a_turn_that_exceeds_the_limit() -> None:
    cut, whole = draw(max_tokens=5100), draw(max_tokens=50_000)
    assert max(r.prompt_tokens + r.output_tokens for r in cut.requests) <= 5100
    assert 90 < len(cut.requests) < len(whole.requests)
    for kept, turns in zip(conversations(cut), conversations(whole), strict=True):
        assert sizes(kept) == sizes(turns)[: len(kept)]
        if len(kept) < len(turns):
            next_turn = turns[len(kept)]
            assert next_turn.prompt_tokens + next_turn.output_tokens > 5100


def sizes(turns: list[Request]) -> list[tuple[float, int, int]]:
    return [(turn.arrival_s, turn.prompt_tokens, turn.output_tokens) for turn in turns]


# -- one seed, one workload ------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_conversations_and_another_one_does_not() -> None:
    assert draw(7).digest == draw(7).digest
    assert len({draw(seed).digest for seed in range(20)}) == 20


def test_small_conversations_keep_their_digest() -> None:
    assert draw(1, num_conversations=4).digest == (
        "95f9b619140be635d92ac9d0a0f8e6a6327504541cfe418de0e393fb64fcf3cf"
    )


def test_whether_content_is_generated_is_part_of_the_digest() -> None:
    workload = draw(num_conversations=1, turns_mean=1.0)
    (request,) = workload.requests
    assert [str(s).endswith(":generated") for s in request.segments] == [False, False, True]


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"num_conversations": 0}, "workload.num_conversations must be greater than 0, got 0"),
        ({"turns_mean": 0.5}, "workload.turns_mean must be greater than or equal to 1, got 0.5"),
        ({"think_mean_s": 0}, "workload.think_mean_s must be greater than 0, got 0"),
        ({"max_tokens": 4000}, "workload max_tokens 4000 must hold every first turn: .* 5024 toge"),
        ({"sharing": 1.0}, r"workload.sharing is not a known setting here \(got 1.0\)"),
        (
            {"message": {"median_tokens": 8, "sigma": 1, "min_tokens": 9, "max_tokens": 8}},
            "workload.message min_tokens 9 must not exceed max_tokens 8",
        ),
        (
            {"output": {"mean_tokens": 8, "shape": -1, "min_tokens": 1, "max_tokens": 8}},
            "workload.output.shape must be greater than 0, got -1",
        ),
    ],
)
def test_a_law_that_makes_no_sense_is_refused_by_name(
    changes: dict[str, Any], refusal: str
) -> None:
    with pytest.raises(ConfigError, match=refusal):
        ConversationWorkload.parse(
            read_option("workload", "conversations") | changes, path="workload"
        )
