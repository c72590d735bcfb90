"""Faults that others reported, as far as the memory alone can show them.

Prefix caching: vllm #34587, test_a_chunk_end_inside_a_block_is_not_stored_under_the_blocks_key;
sglang #31833, test_requests_packed_in_one_step_keep_their_own_states; vllm #32118,
test_a_first_chunk_of_one_token_starts_from_nothing; vllm #56524, sglang #24717, every test of
test_toy_model.py, whose pages are wiped when they change hands; vllm #57580,
test_a_checkpoint_of_a_step_that_was_taken_back_is_invisible; sglang #22493,
test_a_resumed_request_goes_on_where_it_was; sglang #24380,
test_a_checkpoint_without_its_attention_is_no_hit; LMCache #2863, test_kv_without_a_state_is_no_hit;
qwen3.8-Flash-DGX #2, test_blocks_and_checkpoints_are_counted_on_their_own_grids; vllm #25780,
test_unique_prompts_adopt_only_what_they_computed_themselves; vllm #48532,
test_a_prefix_loses_its_end_before_its_start.

Pools: vllm #42571, test_a_page_named_twice_in_one_release_raises_and_is_queued_once; dynamo #13398,
test_two_references_are_dropped_in_one_release_and_queue_the_page_once; vllm-ascend #16024,
test_an_impossible_number_of_pages_is_refused_and_moves_nothing; sglang #16067,
test_a_refused_admission_changes_nothing; imp #1115, test_two_hundred_requests_leave_no_page_behind;
sglang #34676, test_a_state_that_misses_one_page_moves_nothing; sglang #38836,
test_a_sentinel_is_no_page_to_free_or_to_hold.

The others are below, in test_steps.py and test_engine_faults.py of the engine, and in
test_liveness.py and test_conservation.py of the simulator.
"""

import pytest
from toy_memory import NATIVE_ORDER, admit, leave_cached, state_of, toy_memory, toy_sequence


def test_an_allocation_never_evicts_what_its_own_request_has_hit(organization: str) -> None:
    """vllm #42948: the pages of a long request are taken from the head of the queue, where its own
    prefix lies if that is the oldest entry."""
    order = NATIVE_ORDER.model_copy(update={"idle_slab": "tail"})
    memory = toy_memory(
        organization, 28 if organization == "s0" else 48, num_states=8, release_order=order
    )
    leave_cached(memory, "first", 17, content="X")
    for i in range(2):  # newer entries behind it
        leave_cached(memory, i, 17, content=i)
    again = toy_sequence(memory, "again", 128, content="X", shared=16)
    assert admit(memory, again, 128) == 16
    hit_blocks, hit_state = list(again.blocks), state_of(again)
    # The longest first chunk for which there is room.
    assert any(memory.extend(again, 16, end) for end in range(256, 16, -8))
    assert memory.cache.counters.lost_blocks > 0
    assert again.blocks[: len(hit_blocks)] == hit_blocks
    assert len(set(again.blocks)) == len(again.blocks)
    third = toy_sequence(memory, "third", 128, content="X", shared=16)
    hit = memory.lookup(third, 128)
    assert hit.tokens == 16 and hit.checkpoint is hit_state
    memory.check_integrity()


@pytest.mark.parametrize("shared_pool", ["s0", "s1", "s2"])
def test_a_state_is_allocated_from_a_pool_full_of_cached_attention(shared_pool: str) -> None:
    """sglang #34441: attention and state share the bytes, and the state's side asks only itself to
    evict: out of memory at 35 % use."""
    memory = toy_memory(shared_pool, 40)
    pool = memory.cache.attention_pool
    pages = pool.take(pool.num_free)
    for page in pages:
        pool.entries[page] = ("attention", page)
        memory.cache.block_index.add(("attention", page), page)
    pool.release(pages, "member")
    needed = memory.cache.states.pages_needed(1)
    state = memory.cache.states.allocate()
    assert pool.num_free == 40 - needed
    assert memory.cache.counters.lost_blocks == needed
    assert len(memory.cache.block_index) == 40 - needed
    memory.cache.states.release(state)
    assert pool.num_free == 40
