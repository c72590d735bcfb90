"""Exact continuation in the simulator: canonical chunks, and history token by token.

A step takes 10 ms, 1 ms a decode and 0.1 ms a prefill token; blocks and grid of S0 have 4 tokens.
"""

import pytest
from hypothesis import given, settings
from toy_cases import ToyCase, toy_cases
from toy_engine import falcon_memory, play, request, toy_memory

from hsexp.memory import Hit, Observer, SequenceMemory


def test_a_chunk_is_one_grid_interval_however_much_the_step_could_take() -> None:
    record = play([request(11, 1)], toy_memory("s0", 40), exact=True)
    assert record.steps["prefill_tokens"].tolist() == [4, 3]
    assert record.steps["num_steps"].tolist() == [2, 1]


def test_requests_share_a_step_as_long_as_whole_chunks_fit() -> None:
    # Budget 10: two chunks of 4; the third request waits although 2 tokens are left.
    requests = [request(8, 1), request(8, 1), request(8, 1)]
    record = play(requests, toy_memory("s0", 60), token_budget=10, exact=True)
    chunks = record.steps.loc[record.steps.index.repeat(record.steps["num_steps"])]
    assert chunks["prefill_tokens"].tolist() == [8, 8, 4, 4]


def test_every_boundary_of_a_prompt_leaves_a_checkpoint() -> None:
    exact, stock = (
        play([request(3365, 1)], falcon_memory("s2", "b63"), token_budget=2048, exact=mode)
        for mode in (True, False)
    )
    # 512, 1,024, ..., 3,072; a stock chunk leaves one at its end: 2,048 and 3,072.
    assert exact.counters["published_checkpoints"] == 6
    assert stock.counters["published_checkpoints"] == 2


class Admissions(Observer):
    def __init__(self) -> None:
        self.adopted: list[int] = []

    def on_adopt(self, sequence: SequenceMemory, hit: Hit) -> None:
        self.adopted.append(hit.tokens)


def test_history_is_computed_again_token_by_token_at_the_price_of_decodes() -> None:
    # 6 usable pages. Both prompts take a block and a state; at 4 tokens each needs two pages more.
    # The second, preempted after three tokens of output, finds no checkpoint: its prompt goes in
    # one chunk (10.2 ms), and then its history, a token a step for 1 ms each.
    requests = [request(2, 14), request(2, 5)]
    exact, stock = (play(requests, toy_memory("s0", 6), exact=mode) for mode in (True, False))
    replayed = exact.requests["replayed_output_tokens"].tolist()
    assert exact.requests["num_preemptions"].tolist() == [0, 1]
    assert replayed == stock.requests["replayed_output_tokens"].tolist() == [0, replayed[1]]
    assert replayed[1] > 0
    singles = exact.steps[exact.steps["prefill_tokens"] == 1]
    assert singles["num_steps"].sum() == replayed[1]
    assert (singles["step_s"] * 1e3 - 10.0 - singles["decode_tokens"]).tolist() == pytest.approx(
        [1.0] * len(singles)
    )


def test_a_step_shorter_than_the_grid_is_refused() -> None:
    with pytest.raises(ValueError, match="token_budget 3 must hold a chunk of one checkpoint grid"):
        play([request(6, 1)], toy_memory("s0", 20), cap=2, token_budget=3, exact=True)


@given(toy_cases())
@settings(max_examples=100, deadline=None)
def test_what_was_adopted_does_not_change_how_long_the_work_behind_it_is(case: ToyCase) -> None:
    """Every prefill chunk is a whole interval, the rest of a prompt, or one token of history."""
    memory = case.new_memory()
    grid = memory.checkpoint_grid
    engine = case.engine | {"exact": True, "cap": 1, "separate": False}
    record = play(case.workload(), memory, **engine)
    rests = {row.prompt_tokens % grid for row in record.requests.itertuples()}
    chunks = set(record.steps["prefill_tokens"].tolist())
    assert chunks <= {0, 1, grid} | rests
