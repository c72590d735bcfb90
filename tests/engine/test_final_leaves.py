"""A finished request's last state in vLLM's scheduler: the next turn goes on from there.

Every step compares each output, each cached entry and each leaf with a replay from scratch
(`toy_core`). Blocks are 8 tokens and the checkpoint grid is 8; in D0 blocks are 2 tokens.
"""

import random
from pathlib import Path
from typing import Any

import pytest
from test_forks import ORGANIZATIONS, core_for_one, core_of, num_copies, steps_of
from toy_core import ToyCore

PROMPT = list(range(100, 113))

WAYS = [
    pytest.param({"states": states, "asynchronous": asynchronous}, id=f"{states}-{asynchronous}")
    for states in ("per_boundary", "in_place")
    for asynchronous in (False, True)
]


def talking(organization: str, folder: Path, **changes: Any) -> ToyCore:
    return core_of(organization, folder, **({"max_leaves": 0, "leaves": "final"} | changes))


def dialogue(core: ToyCore, request_id: str) -> list[int]:
    """Prompt and output of a finished request."""
    toy = core.requests[request_id]
    return [*toy.request.prompt_token_ids, *toy.delivered]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_a_turn_computes_the_last_token_of_the_turn_before_it_and_its_own_message(
    organization: str, way: dict[str, Any], tmp_path: Path
) -> None:
    core = talking(organization, tmp_path, **way)
    request_id = core.add(PROMPT, 9)
    core.run()
    for _ in range(4):
        message = [*dialogue(core, request_id), 7, 8]
        request_id = core.add(message, 5)
        assert sum(steps_of(core)) == 3 + 4
    core.assert_drained()


@pytest.mark.parametrize("way", WAYS)
def test_a_stop_token_that_a_step_in_flight_has_computed_is_in_the_leaf(
    way: dict[str, Any], tmp_path: Path
) -> None:
    """An asynchronous scheduler learns of it a step late, so that one token less is left."""
    core = talking("s2", tmp_path, **way)
    request_id = core.add(PROMPT, 30, stop_after=6)
    core.run()
    assert len(core.memory.branching.leaves) == 1
    core.add([*dialogue(core, request_id), 7, 8], 1)
    assert sum(steps_of(core)) == 3 - way["asynchronous"]
    core.assert_drained()


@pytest.mark.parametrize("way", WAYS)
def test_a_cancelled_request_leaves_no_leaf(way: dict[str, Any], tmp_path: Path) -> None:
    core = talking("s2", tmp_path, **way)
    request_id = core.add(PROMPT, 30)
    for _ in range(6):
        core.step()
    core.abort(request_id)
    core.run()
    assert len(core.memory.branching.leaves) == 0
    core.assert_drained()


def test_requests_of_one_prompt_do_not_wait_for_each_other_where_forking_is_off(
    tmp_path: Path,
) -> None:
    core = talking("s2", tmp_path)
    for _ in range(2):
        core.add(PROMPT[:7], 2)  # with forking the second one would wait for 6 tokens
    assert steps_of(core) == [14, 2]
    assert num_copies(core) == (0, 0)


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_samples_fork_beside_final_leaves(organization: str, tmp_path: Path) -> None:
    core = talking(organization, tmp_path, max_leaves=8)
    ids = [core.add(PROMPT[:7], 5) for _ in range(2)]
    assert steps_of(core)[0] == 6  # the second one waits for the prefix
    core.add([*dialogue(core, ids[1]), 7, 8], 3)
    assert sum(steps_of(core)) == 3 + 2
    core.assert_drained()


@pytest.mark.parametrize("states", ["per_boundary", "in_place"])
@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_a_leaf_without_room_for_its_copy_gives_way_to_the_next_turn(
    organization: str, states: str, tmp_path: Path
) -> None:
    core = core_for_one(
        organization, tmp_path, 30, max_leaves=0, leaves="final", states=states, token_budget=16
    )
    request_id = core.add(PROMPT, 9)
    core.run()
    assert len(core.memory.branching.leaves) == 1
    core.add([*dialogue(core, request_id), 7, 8], 5)
    core.run()
    core.assert_drained()


@pytest.mark.parametrize("seed", range(24))
def test_whatever_turns_come_every_output_is_a_replay_from_scratch(
    seed: int, tmp_path: Path
) -> None:
    """Turns of several conversations, in tight pools, some of them stopped or cancelled."""
    rng = random.Random(seed)
    organization, in_place = ORGANIZATIONS[seed % 4], seed // 4 % 2 == 1
    core = talking(
        organization,
        tmp_path,
        num_pages=rng.choice([32, 44, 56]),
        num_states=rng.choice([4, 6, 10]),
        token_budget=rng.choice([16, 32, 64]),
        asynchronous=seed % 3 == 0,
        states="in_place" if in_place else "per_boundary",
        eviction=rng.choice(["paper", "lru", "restart_point"]),
        placement=rng.choice(["chunk_ends", "junction"]),
        max_leaves=0 if in_place else rng.choice([0, 2]),
    )
    for _ in range(40):
        done = [key for key, toy in core.requests.items() if toy.request.is_finished()]
        before = dialogue(core, rng.choice(done)) if done and rng.random() < 0.7 else PROMPT[:5]
        prompt = [*before, *(rng.randrange(3, 500) for _ in range(rng.randrange(1, 8)))]
        num_output = rng.randrange(1, 12)
        if core.memory.never_fits(len(prompt) + num_output) is None:
            stop = rng.choice([None, None, rng.randrange(1, num_output + 1)])
            core.add(prompt, num_output, stop_after=stop)
        for _ in range(rng.randrange(8)):
            live = [key for key, toy in core.requests.items() if not toy.request.is_finished()]
            cancelled = [rng.choice(live)] if live and rng.random() < 0.05 else []
            if core.is_busy:
                core.step(*cancelled)
    core.run()
    assert sum(num_copies(core)) > 0
    core.assert_drained()
