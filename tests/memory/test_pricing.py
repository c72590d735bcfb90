"""Priced retention: what an admission may take from proven restart points.

S0 counts everything in equal pages of 3,296 bytes. A prompt of 17 tokens needs three blocks and a
state, four pages. A restart point at 8 is a block and a state, two pages, and saves 8 tokens; a
prefill token costs a second. With N requests running and 8 tokens of output each, a slot is worth
8 step / (N (N + 1)) seconds.
"""

import random

import pytest
from toy_memory import (
    EVICTIONS,
    RANKED,
    admit,
    check_price,
    compute,
    leave_cached,
    leave_free,
    run_steps,
    snapshot,
    toy_memory,
    toy_sequence,
)

from hsexp.config.base import ConfigError, parse_union
from hsexp.config.catalog import read_option
from hsexp.memory import Hit, HybridMemory, Refusal, SequenceMemory
from hsexp.memory.policies.eviction.ranked import Ranking
from hsexp.memory.policies.pricing import Price, PricedRetention
from hsexp.memory.policies.retention import DemandedRetention, RetentionConfig
from hsexp.memory.standing import StandingRefusal


def with_two_contexts(price: float, *, free: int, **settings: object) -> HybridMemory:
    """S0: X and Y are proven at 8 tokens, X was hit first. One request runs. `free` pages cache
    nothing."""
    memory = toy_memory("s0", 30, eviction="restart_point", price=price, **settings)  # type: ignore[arg-type]
    for content in ("X", "Y"):
        leave_cached(memory, content, 9, content=content)
        memory.enter(toy_sequence(memory, f"{content} again", 9, content=content), 9)
    compute(memory, "runs", 5, content="Z")
    leave_free(memory, free + 4, 0)
    return memory


def waiting(memory: HybridMemory, content: str = "W", num_tokens: int = 17) -> SequenceMemory:
    sequence = toy_sequence(memory, "waits", num_tokens, content=content)
    memory.enter(sequence, num_tokens)
    return sequence


def refusal_of(memory: HybridMemory, sequence: SequenceMemory) -> Refusal | None:
    num_tokens = sequence.num_prompt_tokens
    hit = memory.lookup(sequence, num_tokens)
    return memory.refusal(sequence, hit, num_tokens, nothing_runs=False)


def ranking_of(memory: HybridMemory) -> Ranking:
    assert isinstance(memory.cache.prefixes, Ranking)
    return memory.cache.prefixes


def broken(memory: HybridMemory) -> set[str]:
    found = ranking_of(memory).found
    return {key[1] for key, restart in found.items() if restart.broken}  # type: ignore[index]


# Value for a page: share 2 of 6 arrivals (by weight about a third) x 8 s / 2 pages = 1.3 s.
# Price for a page with one request running: 8 step / 2 / 4 pages = 1 step.
CHEAP, DEAR = 0.5, 4.0


def test_a_slot_that_is_worth_less_than_the_restart_points_is_refused_and_changes_nothing() -> None:
    memory = with_two_contexts(CHEAP, free=3)
    before = snapshot(memory)
    refusal = refusal_of(memory, waiting(memory))
    assert refusal is not None
    assert (refusal.need, refusal.headroom, refusal.free) == (4, 0, 3)
    assert snapshot(memory) == before and not broken(memory)


def test_a_slot_that_fits_into_what_nobody_needs_is_never_priced() -> None:
    memory = with_two_contexts(CHEAP, free=4)
    assert refusal_of(memory, waiting(memory)) is None


def test_a_slot_that_is_worth_more_takes_the_restart_points_that_it_needs_and_no_other() -> None:
    memory = with_two_contexts(DEAR, free=3)
    sequence = waiting(memory)
    assert refusal_of(memory, sequence) is None
    assert not broken(memory)  # not before it is admitted
    admit(memory, sequence, 17)
    assert broken(memory) == {"X"}
    run_steps(memory, sequence, 8, 16, 17)
    assert memory.lookup(toy_sequence(memory, "next", 9, content="Y"), 9).tokens == 8
    assert memory.lookup(toy_sequence(memory, "next", 9, content="X"), 9).tokens == 0


def test_it_takes_several_if_it_must() -> None:
    memory = with_two_contexts(DEAR, free=1)
    sequence = waiting(memory)
    assert refusal_of(memory, sequence) is None
    admit(memory, sequence, 17)
    assert broken(memory) == {"X", "Y"}


def test_more_running_requests_make_a_slot_worth_less() -> None:
    memory = with_two_contexts(DEAR, free=3)
    for number in range(3):  # 8 x 4 / (4 x 5) / 4 pages = 0.4 s
        memory.cache.sequences[f"runs {number}"] = toy_sequence(memory, number)
    assert refusal_of(memory, waiting(memory)) is not None


def test_longer_outputs_make_a_slot_worth_more() -> None:
    memory = with_two_contexts(CHEAP, free=3)
    sequence = waiting(memory)
    assert refusal_of(memory, sequence) is not None
    price = memory.retention
    assert isinstance(price, Price)
    price.on_finish(200)  # the mean of 8 and 200 is 104
    assert refusal_of(memory, sequence) is None


def test_the_output_of_a_request_is_what_it_generated_and_a_cancelled_prefill_has_none() -> None:
    memory = toy_memory("s0", 30, eviction="restart_point", price=1.0)
    price = memory.retention
    assert isinstance(price, Price)
    sequence = toy_sequence(memory, "a", 9)
    admit(memory, sequence, 9)
    run_steps(memory, sequence, 8, 9, 10, 11)
    memory.release(sequence, 11)  # the third token is sampled from the last step
    assert (price._output_tokens, price._num_outputs) == (8 + 3, 2)
    cancelled = toy_sequence(memory, "b", 17, content="Y")
    admit(memory, cancelled, 17)
    run_steps(memory, cancelled, 8)
    memory.release(cancelled, 8)
    assert price._num_outputs == 2


def test_while_nothing_runs_everything_can_be_taken() -> None:
    memory = with_two_contexts(CHEAP, free=3)
    sequence = waiting(memory)
    hit = memory.lookup(sequence, 17)
    assert memory.refusal(sequence, hit, 17, nothing_runs=False) is not None
    assert memory.refusal(sequence, hit, 17, nothing_runs=True) is None


def test_a_hit_is_not_kept_from_the_request_that_hits_it() -> None:
    """It needs two blocks and a state beside the two pages of its hit."""
    for free, is_admitted in ((3, True), (2, False)):
        memory = with_two_contexts(CHEAP, free=free)
        sequence = waiting(memory, "X")
        assert memory.lookup(sequence, 17).tokens == 8
        assert (refusal_of(memory, sequence) is None) == is_admitted


def test_an_unproven_restart_point_is_never_kept() -> None:
    memory = toy_memory("s0", 30, eviction="restart_point", price=CHEAP)
    leave_cached(memory, "X", 9)
    compute(memory, "runs", 5, content="Z")
    leave_free(memory, 4, 0)
    assert memory.cache.checkpoint_index.oldest
    assert refusal_of(memory, waiting(memory)) is None


def test_a_running_request_grows_into_what_an_admission_may_not_take() -> None:
    memory = with_two_contexts(CHEAP, free=0)
    assert refusal_of(memory, waiting(memory)) is not None
    running = memory.cache.sequences["runs"]
    assert memory.extend(running, 5, 9)  # a block and a state
    assert broken(memory) == set() and len(ranking_of(memory).found) < 3


@pytest.mark.parametrize("eviction", RANKED)
def test_a_slab_is_kept_with_the_restart_point_in_it(eviction: str) -> None:
    memory = toy_memory("s2", 30, eviction=eviction, price=0.01)
    for content in ("X", "Y"):
        leave_cached(memory, content, 9, content=content)
        memory.enter(toy_sequence(memory, f"{content} again", 9, content=content), 9)
    price = memory.retention
    assert isinstance(price, Price)
    sequence = waiting(memory)
    hit = memory.lookup(sequence, 17)
    # Two states of three members, two blocks, one slab.
    assert price.permit(hit, memory.admission_need(hit, 17)).kept == [2 * 3 + 2 + 1]
    check_price(memory, hit, memory.admission_need(hit, 17))


def test_what_two_restart_points_share_is_freed_by_the_last_of_them() -> None:
    """X at 8 and at 16, with different demand: the state at 8, a block that both need, and a block
    and a state of the deeper one."""
    memory = toy_memory("s0", 30, eviction="restart_point", price=1000.0)
    leave_cached(memory, "a", 17)
    for number in range(3):
        memory.enter(toy_sequence(memory, f"short {number}", 9), 9)
    memory.enter(toy_sequence(memory, "long", 17), 17)
    price = memory.retention
    assert isinstance(price, Price)
    sequence = waiting(memory)
    hit = memory.lookup(sequence, 17)
    permit = price.permit(hit, memory.admission_need(hit, 17))
    assert permit.kept == [0]
    assert [(restart.tokens, pages) for restart, pages in permit.permitted] == [
        (8, [1]),
        (16, [3]),
    ]


# -- random play -----------------------------------------------------------------------------------

PLAY_PAGES = {"s0": 26, "s1": 60, "s2": 56, "s3": 52, "d0": 90}


@pytest.mark.parametrize("eviction", RANKED)
@pytest.mark.parametrize("price", [2.0, 1000.0])
def test_what_an_admission_counts_on_is_what_it_could_take(
    organization: str, eviction: str, price: float
) -> None:
    """Requests of four contexts come, run, are preempted and finish; states are pinned."""
    rng = random.Random(f"{organization} {eviction} {price}")
    memory = toy_memory(
        organization, PLAY_PAGES[organization], num_states=14, eviction=eviction, price=price,
        pinning=1, protected=0.3,
    )  # fmt: skip
    waiting: list[SequenceMemory] = []
    running: dict[int | str, int] = {}
    seen: set[str] = set()
    for number in range(300):
        memory.cache.step += 1
        action = rng.random()
        if action < 0.2:
            waiting.append(
                toy_sequence(
                    memory,
                    number,
                    rng.choice((9, 18, 27)),
                    content=rng.choice("ABCD"),
                    shared=rng.choice((8, 16, 24)),
                )
            )
            memory.enter(waiting[-1], waiting[-1].num_prompt_tokens)
        elif action < 0.5 and waiting:
            sequence = waiting[0]
            num_tokens = sequence.num_prompt_tokens
            hit = memory.lookup(sequence, num_tokens)
            seen |= kinds_of_permit(memory, hit, memory.admission_need(hit, num_tokens))
            before = snapshot(memory)
            refused = memory.refusal(sequence, hit, num_tokens, nothing_runs=not running)
            assert snapshot(memory) == before
            if refused is None:
                memory.admit(sequence, hit)
                running[sequence.request_id] = hit.tokens
                del waiting[0]
        elif running:
            name = rng.choice(list(running))
            sequence, computed = memory.cache.sequences[name], running[name]
            end = computed + rng.randint(1, 8)
            if action > 0.97:
                memory.preempt(sequence, computed)
                waiting.insert(0, sequence)
                del running[name]
            elif end > sequence.num_prompt_tokens + 12:
                memory.release(sequence, computed)
                del running[name]
            elif memory.extend(sequence, computed, end):
                running[name] = end
            else:
                memory.preempt(sequence, computed)
                waiting.insert(0, sequence)
                del running[name]
        elif memory.pinning.num_pins:
            memory.unpin_all()
        memory.check_integrity()
    assert ("kept" if price == 2.0 else "permitted") in seen


def kinds_of_permit(memory: HybridMemory, hit: Hit, need: list[int]) -> set[str]:
    check_price(memory, hit, need)
    assert isinstance(memory.retention, Price)
    permit = memory.retention.permit(hit, need)
    kinds = {"kept": max(permit.kept) > 0, "permitted": bool(permit.permitted)}
    return {kind for kind, holds in kinds.items() if holds}


# -- a refusal that stands -------------------------------------------------------------------------


def test_a_refusal_of_the_price_ends_when_demand_changes() -> None:
    memory = with_two_contexts(CHEAP, free=3)
    sequence = waiting(memory)
    hit = memory.lookup(sequence, 17)
    refusal = memory.refusal(sequence, hit, 17, nothing_runs=False)
    assert refusal is not None and refusal.by_price
    standing = StandingRefusal(
        memory.cache, sequence, hit, 17, losses_matter=False, by_price=refusal.by_price
    )
    assert standing.stands(sequence)
    memory.enter(toy_sequence(memory, "new", 9, content="V"), 9)
    assert not standing.stands(sequence)


def test_a_refusal_of_the_price_ends_when_a_restart_point_is_lost() -> None:
    memory = with_two_contexts(CHEAP, free=3)
    sequence = waiting(memory)
    hit = memory.lookup(sequence, 17)
    standing = StandingRefusal(memory.cache, sequence, hit, 17, losses_matter=False, by_price=True)
    memory.cache.attention_pool.take(4)
    assert not standing.stands(sequence)


def test_a_refusal_for_want_of_pages_outlives_a_change_of_ranks() -> None:
    memory = with_two_contexts(CHEAP, free=3)
    sequence = waiting(memory)
    num_tokens = 4 * memory.cache.attention_pool.spec.num_pages * memory.block_size
    hit = memory.lookup(sequence, 17)
    refusal = memory.refusal(sequence, hit, num_tokens, nothing_runs=False)
    assert refusal is not None and not refusal.by_price
    assert refusal.free == memory.cache.attention_pool.num_free
    standing = StandingRefusal(
        memory.cache, sequence, hit, num_tokens, losses_matter=False, by_price=refusal.by_price
    )
    memory.enter(toy_sequence(memory, "new", 9, content="V"), 9)
    assert standing.stands(sequence)


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("eviction", [name for name in EVICTIONS if name not in RANKED])
def test_a_price_is_refused_by_name_beside_an_order_without_ranks(eviction: str) -> None:
    with pytest.raises(ValueError, match=f"retention toy needs an order .* got {eviction}"):
        toy_memory("s0", 20, eviction=eviction, price=1.0)


@pytest.mark.parametrize("name", ["off", "k2"])
def test_retention_that_has_no_price_has_the_values_that_it_had(name: str) -> None:
    option = parse_union(RetentionConfig, read_option("retention", name), path="retention")
    assert isinstance(option, DemandedRetention)
    assert "kind" not in option.model_dump()


def test_an_unknown_kind_of_retention_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"retention .*'demanded', 'priced'"):
        parse_union(RetentionConfig, {"kind": "free", "name": "free"}, path="retention")


def test_the_price_of_the_paper_is_that_of_its_device() -> None:
    option = parse_union(RetentionConfig, read_option("retention", "priced"), path="retention")
    assert isinstance(option, PricedRetention)
    step_time = read_option("device", "a100_40gb")["step_time"]
    assert option.step_s == step_time["base_s"]
    assert option.prefill_token_s == step_time["prefill_token_s"]


def test_a_memory_passes_its_order_of_eviction_to_its_price() -> None:
    memory = toy_memory("d0", 30, num_states=8, eviction="replay_length", price=1.0)
    assert isinstance(memory.retention, Price)
    assert memory.retention._ranking is memory.cache.prefixes
