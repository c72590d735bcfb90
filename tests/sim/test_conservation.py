"""Requests, tokens and pages are conserved in every run, and a run that loses some is an error."""

from collections.abc import Callable

import pandas as pd
import pytest
from hypothesis import given, settings
from toy_cases import ToyCase, toy_cases
from toy_engine import (
    ORGANIZATIONS,
    falcon_memory,
    falcon_workload,
    play,
    play_falcon,
    request,
    toy_memory,
)

from hsexp.measure.records import RunRecord
from hsexp.memory import HybridMemory
from hsexp.sim.balance import Imbalance, check_balance


def total(table: pd.DataFrame, column: str) -> int:
    return int(table[column].sum())


def step_total(record: RunRecord, column: str) -> int:
    return int((record.steps["num_steps"] * record.steps[column]).sum())


# -- identities ----------------------------------------------------------------------------------


@given(toy_cases())
@settings(max_examples=200, deadline=None)
def test_pages_and_tokens_and_requests_balance_under_any_pressure(case: ToyCase) -> None:
    memory = case.new_memory()
    record = case.run(memory)  # checks its balance itself
    memory.check_integrity()
    requests = record.requests
    finished = requests[requests["status"] == "finished"]
    refused = requests[requests["status"] == "refused"]
    assert len(finished) + len(refused) == len(requests)
    assert [pool.num_free for pool in memory.cache.pools] == [
        p.spec.num_usable for p in memory.cache.pools
    ]
    assert not memory.cache.sequences and not memory.pinning.num_pins

    assert (finished["generated_tokens"] == finished["output_tokens"]).all()
    assert not refused[["generated_tokens", "prefill_tokens", "replayed_tokens"]].any(axis=None)
    assert step_total(record, "prefill_tokens") == (
        total(requests, "prefill_tokens") + total(requests, "replayed_tokens")
    )
    undisturbed = finished[finished["num_preemptions"] == 0]
    assert (
        undisturbed["adopted_tokens"] + undisturbed["prefill_tokens"]
        == undisturbed["prompt_tokens"]
    ).all()

    # A token comes from a decode or from the end of a prefill. Each finished request ended one
    # prefill, and each preemption cut off at most one that had ended.
    ended_prefills = total(requests, "generated_tokens") - step_total(record, "decode_tokens")
    assert 0 <= ended_prefills - len(finished) <= total(requests, "num_preemptions")


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_decodes_and_first_tokens_are_all_tokens_when_none_is_preempted(organization: str) -> None:
    memory = falcon_memory(organization, "b108", headroom=0.35)
    record = play_falcon(falcon_workload(3, num_requests=60, rate=1.0), memory)
    assert total(record.requests, "num_preemptions") == 0
    assert step_total(record, "decode_tokens") + 60 == total(record.requests, "generated_tokens")


def test_a_token_generated_before_a_preemption_is_replayed_and_not_generated_again() -> None:
    # S0, 6 pages: the second is preempted after its first token (see test_scheduler.py). Its replay
    # of 1 token ends one more prefill: 4 + 3 decodes, 2 + 1 ended prefills, 2 * 5 tokens.
    record = play([request(4, 5), request(4, 5)], toy_memory("s0", 6))
    assert step_total(record, "decode_tokens") == 7
    assert step_total(record, "prefill_tokens") == 4 + 4 + 1
    assert total(record.requests, "generated_tokens") == 10


@given(toy_cases(max_shared=0))
@settings(max_examples=100, deadline=None)
def test_recomputation_of_unique_prompts_is_no_hit(case: ToyCase) -> None:
    """Adopted tokens count the first admission; what a request finds of itself is a replay."""
    record = case.run(case.new_memory())
    assert not record.requests["adopted_tokens"].any()


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_unique_prompts_share_nothing_although_requests_are_preempted(organization: str) -> None:
    record = play_falcon(falcon_workload(5, sharing=0.0), falcon_memory(organization, "b63"))
    assert not record.requests["adopted_tokens"].any()
    if organization == "d0":
        assert total(record.requests, "num_preemptions") > 0
        assert total(record.requests, "replayed_tokens") > 0


# -- the check itself ----------------------------------------------------------------------------


def preempting_run() -> tuple[RunRecord, HybridMemory]:
    """A finished request, one that was preempted, and a refused one."""
    memory = toy_memory("s0", 6)
    return play([request(4, 5), request(4, 5), request(60, 2)], memory), memory


def test_a_run_that_balances_passes() -> None:
    check_balance(*preempting_run())


@pytest.mark.parametrize(
    ("row", "column", "value", "complaint"),
    [
        (0, "status", "unfinished", "requests finished or refused: 2, expected 3"),
        (0, "generated_tokens", 4, "generated_tokens of request 0: 4, expected 5"),
        (0, "prefill_tokens", 3, "adopted_tokens + prefill_tokens of request 0: 3, expected 4"),
        (1, "prefill_tokens", 5, "adopted_tokens + prefill_tokens of request 1: 5, expected 4"),
        (0, "replayed_tokens", 1, "replayed_tokens of request 0: 1, expected 0"),
        (2, "replayed_tokens", 1, "replayed_tokens of request 2: 1, expected 0"),
        (1, "replayed_tokens", 2, "prefill tokens of the steps: 9, expected 10"),
        (1, "replayed_output_tokens", 2, "replayed_output_tokens of request 1: 2, expected 1"),
        (1, "num_preemptions", 2, "preemptions of the memory: 1, expected 2"),
        (2, "generated_tokens", 2, "generated_tokens of request 2: 2, expected 0"),
    ],
)
def test_a_request_table_that_does_not_balance_is_named(
    row: int, column: str, value: object, complaint: str
) -> None:
    record, memory = preempting_run()
    record.requests.loc[row, column] = value
    with pytest.raises(Imbalance) as caught:
        check_balance(record, memory)
    assert complaint in str(caught.value)


def lose_a_step(record: RunRecord, memory: HybridMemory) -> None:
    record.steps = record.steps.drop(index=1)


def invent_decodes(record: RunRecord, memory: HybridMemory) -> None:
    record.steps.loc[1, "decode_tokens"] += 1  # a stretch of 4 steps: 11 decodes of 10 tokens


def forget_decodes(record: RunRecord, memory: HybridMemory) -> None:
    record.steps.loc[1, "decode_tokens"] -= 1


def leak_a_page(record: RunRecord, memory: HybridMemory) -> None:
    memory.cache.attention_pool.take(1)


def leave_one_running(record: RunRecord, memory: HybridMemory) -> None:
    memory.cache.sequences[7] = object()  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        (lose_a_step, "steps out of sequence: 1, expected 0"),
        (invent_decodes, "tokens generated but not decoded: -1, expected one for each of 2"),
        (forget_decodes, "tokens generated but not decoded: 7, expected one for each of 2"),
        (leak_a_page, "free pages of pool shared: 5, expected 6"),
        (leave_one_running, "live requests in memory: 1, expected 0"),
    ],
)
def test_steps_or_memory_that_do_not_balance_are_named(
    fault: Callable[[RunRecord, HybridMemory], None], complaint: str
) -> None:
    record, memory = preempting_run()
    fault(record, memory)
    with pytest.raises(Imbalance) as caught:
        check_balance(record, memory)
    assert complaint in str(caught.value)


def test_a_page_that_leaks_during_a_run_fails_the_run() -> None:
    memory = toy_memory("s0", 12)
    memory.cache.attention_pool.take(1)
    with pytest.raises(Imbalance, match="free pages of pool shared: 11, expected 12"):
        play([request(4, 5)], memory)
