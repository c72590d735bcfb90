"""Requests fork one another's state: vLLM's scheduler over a worker that computes exactly.

Every step compares each output, each cached entry and each leaf with a replay from scratch
(`toy_core`). Blocks are 8 tokens and the checkpoint grid is 8; in D0 blocks are 2 tokens.
"""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_core import ToyCore, toy_settings
from toy_memory import NATIVE_ORDER
from vllm.sampling_params import SamplingParams

from hsexp.engine.copies import Places
from hsexp.engine.forks import MAX_HIT, check_max_hit
from hsexp.memory import Copy

ORGANIZATIONS = ("s0", "s1", "s2", "d0")
PROMPT = list(range(100, 129))
"""29 tokens: the prefix of 28 ends off the grid, in D0 on a block."""


def core_of(
    organization: str, folder: Path, *, num_pages: int = 80, token_budget: int = 32, **changes: Any
) -> ToyCore:
    options = {name: changes.pop(name) for name in ("asynchronous", "policy") if name in changes}
    if organization == "s2":  # as in conf/organization: cached slabs do not go first
        order = NATIVE_ORDER.model_copy(update={"idle_slab": "like_state"})
        changes = {"release_order": order} | changes
    chosen = toy_settings(organization, num_pages, **({"max_leaves": 8} | changes))
    return ToyCore(chosen, folder, token_budget=token_budget, **options)


def steps_of(core: ToyCore) -> list[int]:
    """Run to the end; the tokens of each step."""
    steps = []
    while core.is_busy:
        steps.append(core.step())
    return [step for step in steps if step]


def num_copies(core: ToyCore) -> tuple[int, int]:
    copies = core.memory.branching.copies.num_done
    return copies["attention"], copies["state"]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_samples_compute_their_prompt_once(
    organization: str, asynchronous: bool, tmp_path: Path
) -> None:
    core = core_of(organization, tmp_path, asynchronous=asynchronous)
    for _ in range(3):
        core.add(PROMPT, 4)
    # The last boundary is at 24: the first sample goes there and to 28, which the others wait for.
    assert steps_of(core) == [24, 4, 3, 3, 3, 3]
    # The leaf keeps what is at 28, so each of the three copies the state, and the tail block of 4
    # tokens where there is one.
    assert num_copies(core) == (0 if organization == "d0" else 3, 3)
    core.assert_drained()


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_the_sample_that_leads_stops_at_its_junction_on_the_way(
    organization: str, asynchronous: bool, tmp_path: Path
) -> None:
    core = core_of(organization, tmp_path, asynchronous=asynchronous, placement="junction")
    core.add([*PROMPT[:20], *range(200, 209)], 1)  # leaves a checkpoint at 24 alone
    core.run()
    for _ in range(3):
        core.add(PROMPT, 4)
    # Attention is cached up to 20, the boundary before that is 16; then as without a junction.
    assert steps_of(core) == [16, 8, 4, 3, 3, 3, 3]
    core.add([*PROMPT[:20], *range(300, 309)], 1)
    assert sum(steps_of(core)) == 29 - 16
    core.assert_drained()


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_a_prefix_that_ends_on_the_grid_is_found_without_leaf_or_copy(
    organization: str, tmp_path: Path
) -> None:
    core = core_of(organization, tmp_path)
    for _ in range(3):
        core.add(PROMPT[:25], 3)
    assert steps_of(core) == [24, 3, 3, 3]
    assert num_copies(core) == (0, 0)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_every_step_of_a_beam_search_computes_one_token_a_beam(
    organization: str, asynchronous: bool, tmp_path: Path
) -> None:
    core = core_of(organization, tmp_path, asynchronous=asynchronous)
    core.add(PROMPT, 1)
    assert steps_of(core) == [24, 5]
    beams, pages, states = [PROMPT] * 3, 0, 0
    for prefix in range(29, 34):
        # Two heirs of the first beam and one of the last.
        beams = [[*beams[parent], 500 + i] for i, parent in enumerate((0, 0, -1))]
        for beam in beams:
            core.add(beam, 1)
        assert steps_of(core) == [3]
        # A leaf stays for further heirs, so that each of these copies: the state off the grid, the
        # tail off the block.
        pages += 3 * (prefix % core.memory.block_size > 0)
        states += 3 * (prefix % 8 > 0)
        assert num_copies(core) == (pages, states)
    core.assert_drained()


def test_prefixes_are_compared_by_content_and_salt(tmp_path: Path) -> None:
    core = core_of("s2", tmp_path)
    for prompt in (PROMPT[:6], PROMPT):  # less than a block, and more
        core.add(prompt, 2, salt="a")
        core.add(prompt, 2, salt="b")
        assert sum(steps_of(core)) == 2 * (len(prompt) + 1)
    assert num_copies(core) == (0, 0)
    core.add([*PROMPT[:28], 7], 2, salt="a")
    core.add([*PROMPT[:28], 8], 2, salt="a")
    # The boundary at 24 is cached; 4 tokens lead to the same prefix, whatever comes after it.
    assert sum(steps_of(core)) == 4 + 2 + 2


def test_waiting_for_a_prefix_keeps_nobody_else_waiting(tmp_path: Path) -> None:
    core = core_of("s2", tmp_path, token_budget=16)
    first, second = core.add(PROMPT, 2), core.add(PROMPT, 2)
    other = core.add(PROMPT[5:12], 2)
    core.step()
    running = [request.request_id for request in core.scheduler.running]
    assert running == [first]  # its chunk of 16 tokens fills the step
    core.step()
    running = [request.request_id for request in core.scheduler.running]
    assert running == [first, other]  # 8 tokens to the last boundary, and 7
    assert core.requests[second].request.num_computed_tokens == 0
    core.run()
    assert core.requests[second].request.num_preemptions == 0
    core.assert_drained()


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_when_the_first_sample_is_cancelled_another_one_leads(
    organization: str, steps: int, tmp_path: Path
) -> None:
    core = core_of(organization, tmp_path, token_budget=16)
    ids = [core.add(PROMPT, 3) for _ in range(3)]
    for _ in range(steps):
        core.step()
    core.abort(ids[0])
    core.run()
    assert [len(core.requests[each].delivered) for each in ids[1:]] == [3, 3]
    core.assert_drained()


def test_a_request_that_went_on_leaves_no_leaf_where_it_stood(tmp_path: Path) -> None:
    core = core_of("s2", tmp_path)
    core.add(PROMPT[:6], 8)
    gone = core.add(PROMPT[:6], 8)
    assert core.step() == 5
    core.abort(gone)
    assert core.step() == 1  # within its first block, so that it takes and publishes nothing
    core.add(PROMPT[:6], 8)
    core.run()
    assert not core.memory.branching.leaves
    core.assert_drained()


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_pruning_some_samples_leaves_the_others_alone_and_cancelling_all_frees_everything(
    organization: str, tmp_path: Path
) -> None:
    core = core_of(organization, tmp_path)
    ids = [core.add(PROMPT, 30) for _ in range(4)]
    for _ in range(8):
        core.step()
    core.abort(ids[0], ids[2])
    for _ in range(3):
        core.step()
    assert [len(core.requests[each].delivered) for each in (ids[1], ids[3])] == [9, 9]
    core.abort(ids[1], ids[3])
    core.run()
    core.assert_drained()


def test_an_evicted_leaf_is_computed_again_once(tmp_path: Path) -> None:
    core = core_of("s2", tmp_path, max_leaves=1)
    core.add(PROMPT, 1)
    core.run()
    core.add(PROMPT[:12], 1)  # its leaf is the only one that is kept now
    core.run()
    assert len(core.memory.branching.leaves) == 1
    for token in (1, 2, 3):
        core.add([*PROMPT, token], 1)
    # From the boundary at 24: 5 tokens to the prefix of 29, then one each.
    assert steps_of(core) == [5, 3]


def test_samples_that_come_later_find_what_the_first_one_left(tmp_path: Path) -> None:
    core = core_of("s2", tmp_path)
    core.add(PROMPT[:7], 5, num_samples=2)
    steps = [core.step() for _ in range(3)]
    assert steps == [6, 1, 1]  # nobody waits, but it was said that others come
    core.add(PROMPT[:7], 5, num_samples=2)
    assert core.step() == 1 + 1  # the second one needs its last token only
    core.run()
    core.assert_drained()


def test_a_request_that_reads_no_cache_neither_waits_nor_leads(tmp_path: Path) -> None:
    core = core_of("s2", tmp_path, token_budget=64)
    for _ in range(2):
        core.add(PROMPT, 1, skip_reading=True)
    assert sum(steps_of(core)) == 2 * 29
    assert not core.memory.branching.leaves


def test_a_leaf_is_not_used_while_a_block_before_it_is_computed_again(tmp_path: Path) -> None:
    # D0: 6 blocks of 2 tokens before the leaf at 12, which is nothing but a state. Another request
    # evicts the blocks, and one computes them again in the step in which the last is admitted.
    core = core_of("d0", tmp_path, num_pages=16, num_states=10, token_budget=64)
    core.add(PROMPT[:12], 1)
    core.run()
    core.add(list(range(200, 228)), 5)
    core.run()
    assert len(core.memory.branching.leaves) == 1
    core.add([1, 2, 3], 1)  # so that the worker takes the last one first
    core.run()
    core.add([*PROMPT[:12], 7, 8], 2)
    core.add([*PROMPT[:12], 9], 2)
    core.run()
    core.assert_drained()


# -- drafts ----------------------------------------------------------------------------------------


def test_a_request_starts_from_the_deepest_leaf_within_its_prompt(tmp_path: Path) -> None:
    core = core_of("s2", tmp_path)
    for length in (11, 13):
        core.add(PROMPT[:length], 1)
        core.run()
    core.add(PROMPT[:16], 1)
    assert steps_of(core) == [3]
    core.add(PROMPT[:12], 1)  # of the leaf at 13 it has not all tokens
    assert steps_of(core) == [1]
    core.add([*PROMPT[:12], 7, 8], 1)
    assert steps_of(core) == [2]  # from the leaf that was just left at 12
    core.add(PROMPT[:20], 1)
    assert steps_of(core) == [4]  # the boundary at 16 is deeper


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_a_request_reads_no_more_of_the_cache_than_it_says(
    organization: str, tmp_path: Path
) -> None:
    core = core_of(organization, tmp_path)
    for length in (16, 21):
        core.add(PROMPT[:length], 1)
        core.run()
    for max_hit, computed in ((23, 8), (21, 8), (20, 13), (16, 13), (15, 29), (0, 29)):
        for _ in range(2):  # none leads or waits: the second one computes the same
            core.add(PROMPT, 2, max_hit=max_hit)
        assert sum(steps_of(core)) == 2 * (computed + 1), max_hit
        core.scheduler.reset_prefix_cache()
        for length in (16, 21):
            core.add(PROMPT[:length], 1)
            core.run()


@pytest.mark.parametrize("limit", [-1, 1.0, "3", True])
def test_a_limit_that_is_no_number_of_tokens_is_refused(limit: Any) -> None:
    check_max_hit(SamplingParams(extra_args={MAX_HIT: 3}))
    with pytest.raises(ValueError, match="hsexp_max_hit must be a number of tokens, got"):
        check_max_hit(SamplingParams(extra_args={MAX_HIT: limit}))


@pytest.mark.parametrize("num_accepted", range(5))
@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_a_pass_of_drafts_goes_on_from_every_accepted_length(
    organization: str, num_accepted: int, tmp_path: Path
) -> None:
    """As `hsexp.engine.speculation` does it: a request that ends with what is certain, and one that
    ends with 4 drafts, from a leaf or a boundary before both."""
    core = core_of(organization, tmp_path, token_budget=64)
    sizes = core.memory.block_size, 8

    def run_pass(known: list[int], start: int, salt: str) -> None:
        before, end = num_copies(core), len(known)
        core.add(known, 1, salt=salt)
        core.add([*known, 900, 901, 902, 903], 1, salt=salt, max_hit=end)
        steps = steps_of(core)
        # A boundary that the first one reaches is waited for: one step more, as crossing it takes.
        starts = start, max(start, end // 8 * 8)
        assert sum(steps) == (end - starts[0]) + (end + 4 - starts[1])
        assert len(steps) == 1 + sum(start < boundary < end + 4 for boundary in range(0, 64, 8))
        copied = [now - then for now, then in zip(num_copies(core), before, strict=True)]
        assert copied == [sum(each % size > 0 for each in starts) for size in sizes]

    for length in range(17, 34):
        known, salt = list(range(100, 100 + length)), str(length)
        core.add(known[:-1], 1, salt=salt)
        core.run()
        run_pass(known, length - 1, salt)
        accepted = length + num_accepted
        leaf = accepted if num_accepted in (0, 4) else length
        run_pass([*known, *range(900, 900 + num_accepted), 800], max(leaf, accepted // 8 * 8), salt)
    core.assert_drained()


# -- the last resort -------------------------------------------------------------------------------


def core_for_one(organization: str, folder: Path, num_tokens: int, **changes: Any) -> ToyCore:
    """The smallest pool that lets a request of so many tokens finish when it runs alone."""
    for num_pages in range(2, 80):
        core = core_of(organization, folder, num_pages=num_pages, num_states=2, **changes)
        if core.memory.never_fits(num_tokens) is None:
            return core
    raise AssertionError("80 pages are not enough")


@pytest.mark.parametrize("pinning", [None, 1])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_forks_that_wait_get_their_turn_in_a_pool_that_holds_one(
    organization: str, asynchronous: bool, pinning: int | None, tmp_path: Path
) -> None:
    core = core_for_one(
        organization, tmp_path, 40, asynchronous=asynchronous, pinning=pinning, token_budget=16
    )
    ids = [core.add(PROMPT, 12, num_samples=4) for _ in range(4)]
    ids += [core.add([*PROMPT[:27], token], 12) for token in (1, 2)]
    core.run()  # ... which sees that none of them waits for ever
    assert [len(core.requests[each].delivered) for each in ids] == [12] * 6
    core.assert_drained()


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_a_leaf_without_room_for_its_copy_gives_way_to_who_would_start_from_it(
    organization: str, tmp_path: Path
) -> None:
    # To go on from the leaf at 29 takes what is there and a copy of state and tail, more than the
    # pool has; from the first token on it does not.
    core = core_for_one(organization, tmp_path, 30)
    core.add(PROMPT, 1)
    core.run()
    assert len(core.memory.branching.leaves) == 1
    core.add([*PROMPT, 5], 1)
    core.run()
    assert num_copies(core) == (0, 0)
    core.assert_drained()


def test_exact_continuation_forks_nothing(tmp_path: Path) -> None:
    chosen = toy_settings("s2", 80, max_leaves=8).model_copy(update={"exact": True})
    core = ToyCore(chosen, tmp_path)
    for _ in range(3):
        core.add(PROMPT, 1)
    core.run()
    assert core.scheduler.kv_cache_manager.forks is None
    assert not core.memory.branching.leaves and num_copies(core) == (0, 0)


@pytest.mark.parametrize("seed", range(24))
def test_whatever_happens_every_output_is_a_replay_from_scratch(seed: int, tmp_path: Path) -> None:
    """Samples and beams of three contexts, tenants, priorities, cancellations, tight pools."""
    rng = random.Random(seed)
    organization = ORGANIZATIONS[seed % 4]
    core = core_of(
        organization,
        tmp_path,
        num_pages=rng.choice([14, 20, 30]),
        num_states=rng.choice([4, 6, 10]),
        token_budget=rng.choice([16, 32, 64]),
        max_leaves=rng.choice([1, 2, 8]),
        asynchronous=seed % 3 == 0,
        policy=rng.choice(["fcfs", "fcfs", "priority"]),
        headroom=rng.choice([0.0, 0.1]),
        pinning=rng.choice([None, 1]),
        retention=rng.choice([None, 2]) if organization == "s2" else None,
    )
    contexts = [[rng.randrange(3, 500) for _ in range(44)] for _ in range(3)]
    for _ in range(25):
        prompt = rng.choice(contexts)[: rng.randrange(1, 44)]
        count = rng.choice([1, 2, 4])
        for _ in range(count):
            last = [rng.randrange(3, 500)] if rng.random() < 0.3 else []
            fits = core.memory.never_fits(len(prompt) + 12) is None
            if fits:
                core.add(
                    prompt + last,
                    rng.choice([1, 1, 3, 12]),
                    salt=rng.choice([None, None, "a"]),
                    priority=rng.randrange(2),
                    num_samples=count if rng.random() < 0.5 else 1,
                )
        for _ in range(rng.randrange(5)):
            live = [key for key, toy in core.requests.items() if not toy.request.is_finished()]
            cancelled = [rng.choice(live)] if live and rng.random() < 0.15 else []
            if core.is_busy:
                core.step(*cancelled)
        if rng.random() < 0.05:
            core.scheduler.reset_prefix_cache()
    core.run()
    assert sum(num_copies(core)) > 0
    core.assert_drained()


def test_a_copied_page_may_be_the_source_of_a_later_copy_of_its_step() -> None:
    pages = torch.arange(8, dtype=torch.int8).reshape(4, 2)
    chain = [
        Copy(kind="attention", request_id="a", source=(at,), target=(at + 1,), num_tokens=1, step=1)
        for at in (1, 2)
    ]
    Places(pages={"attention": [pages], "state": []}, lines=[]).carry_out(chain)
    assert pages.tolist() == [[0, 1], [2, 3], [2, 3], [2, 3]]
