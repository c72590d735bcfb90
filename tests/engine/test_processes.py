"""An engine core in a process of its own, and steps that overlap."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_process import EngineProcess, settings
from small_models import VOCABULARY, save_model, tiny
from toy_core import ToyCore, toy_settings
from toy_memory import GRID, ORGANIZATIONS

# -- another process -------------------------------------------------------------------------------
#
# With multiprocessing vLLM runs its engine core in a second process, and on a CPU the worker in a
# third. The plugin is active there through its entry point alone. Requests that come one after the
# other are scheduled as in one process, and every bit is the same. Others are taken when they reach
# the core, so that batches may differ.


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Twelve requests in turn and twelve together, over a shared prefix and under pressure."""
    model = save_model(tmp_path_factory.mktemp("processes"), tiny(4), dtype="float32")
    rng = random.Random(7)
    shared = [rng.randrange(3, VOCABULARY) for _ in range(320)]
    requests = [
        {
            "id": str(i),
            "prompt": shared[: 64 * (i % 6)] + [rng.randrange(3, VOCABULARY) for _ in range(20)],
            "max_tokens": 16,
            "add_at": 0,
        }
        for i in range(24)
    ]
    policies = {"retention": "k2", "pinning": "k1", "reserve_fraction": 0.0}
    return {
        "model": model,
        "dtype": "float32",
        "max_model_len": 512,
        "cap": 8,
        "token_budget": 256,
        "requests": requests,
        "in_turn": 12,
        "settings": settings(tiny(4), "s2", 60 * 16384, block_size=32, slot_bytes=4096, **policies),
    }


@pytest.fixture(scope="module")
def other_process() -> Iterator[EngineProcess]:
    process = EngineProcess(VLLM_ENABLE_V1_MULTIPROCESSING="1")
    yield process
    process.close()


def test_an_engine_core_in_another_process_gives_the_same_outputs(
    job: dict[str, Any], engines: EngineProcess, other_process: EngineProcess
) -> None:
    here, there = engines.run(job), other_process.run(job)
    assert "memory" in here and "memory" not in there
    assert here["memory"]["counters"]["lost_checkpoints"] > 10
    assert sum(output["cached"] > 0 for output in there["outputs"].values()) > 10
    for i, request in enumerate(job["requests"]):
        output, expected = (result["outputs"][request["id"]] for result in (there, here))
        if i < job["in_turn"]:
            assert output == expected
            continue
        assert output["tokens"] == expected["tokens"]
        for ours, theirs in zip(output["logprobs"], expected["logprobs"], strict=True):
            assert ours == pytest.approx(theirs, abs=1e-4)


# -- overlapping steps -----------------------------------------------------------------------------
#
# Asynchronous scheduling plans a step while the one before is computed: the last token of every
# decode is a placeholder then. vLLM's CPU platform switches it off. What it does to the memory is
# shown on vLLM's scheduler with two steps in flight: here, and under pressure in test_steps.py.


@pytest.fixture(params=ORGANIZATIONS)
def organization(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def run_one(core: ToyCore, prompt: list[int], num_output: int) -> int:
    """Serve one request. Returns how many tokens were scheduled for it."""
    before = core.num_scheduled_tokens
    request_id = core.add(prompt, num_output)
    core.run()
    assert core.requests[request_id].delivered == core.requests[request_id].expected
    return core.num_scheduled_tokens - before


def test_decodes_run_ahead_of_the_tokens_that_are_known(organization: str, tmp_path: Path) -> None:
    core = ToyCore(toy_settings(organization, 60), tmp_path, asynchronous=True)
    core.add(list(range(5)), 9)
    core.run()
    # The prompt's step and eight decodes, all but the first of them before the token was there.
    assert core.num_steps == 9
    assert core.num_steps_ahead == 8


def test_generated_tokens_are_cached_as_deep_as_without_overlap(
    organization: str, tmp_path: Path
) -> None:
    """The key of a boundary is known one step after the state is there."""
    prompt, num_output = list(range(100, 105)), 3 * GRID
    scheduled = []
    for asynchronous in (False, True):
        core = ToyCore(toy_settings(organization, 200), tmp_path, asynchronous=asynchronous)
        run_one(core, prompt, num_output)
        (first,) = core.requests.values()
        conversation = prompt + first.delivered + [7, 8, 9]
        scheduled.append(run_one(core, conversation, 1))
    # 5 + 24 + 3 tokens, of which 24 are found; the last token is computed in any case. Packed tails
    # are never cached, and they hold all that was generated.
    assert scheduled == ([32, 32] if organization == "s3" else [8, 8])


def test_the_step_after_an_unforeseen_end_leaves_no_trace(
    organization: str, tmp_path: Path
) -> None:
    """A stop token shows when the next step is in flight already: it writes into its own pages, and
    what comes after it finds them freed and nothing else touched."""
    core = ToyCore(toy_settings(organization, 60), tmp_path, asynchronous=True)
    for stop_after in range(1, 2 * GRID):
        core.add(list(range(stop_after, stop_after + 5)), 40, stop_after=stop_after)
        core.step()
    core.run()
    assert all(toy.delivered == toy.expected for toy in core.requests.values())
    core.assert_drained()


def test_a_prefill_that_is_preempted_in_flight_keeps_what_it_computes(
    organization: str, tmp_path: Path
) -> None:
    """A step that was sent to the worker is computed: only what was not sent is withdrawn."""
    core = ToyCore(
        toy_settings(organization, 60), tmp_path, token_budget=2 * GRID, asynchronous=True
    )
    request_id = core.add(list(range(50)), 3)
    core.step()
    core.step()
    assert core.requests[request_id].request.num_in_flight_tokens == 2 * GRID
    request = core.requests[request_id].request
    core.scheduler.running.remove(request)
    core.scheduler._preempt_request(request, 0.0)
    core.check()
    core.run()
    # 50 prompt tokens and two decodes, and nothing of the first 32 again.
    assert core.num_scheduled_tokens == 52
    assert core.requests[request_id].delivered == core.requests[request_id].expected
