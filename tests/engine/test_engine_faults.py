"""Faults that others reported in hybrid serving, on real vLLM and on its scheduler alone.

The list of those that the memory shows is in tests/memory/test_memory_faults.py.
"""

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from engine_process import EngineProcess, settings
from small_models import VOCABULARY, save_model, tiny
from toy_core import ToyCore, toy_settings
from toy_memory import GRID, ORGANIZATIONS
from vllm.v1.metrics.stats import PrefixCacheStats

from hsexp.memory import MemoryCounters, Observer
from hsexp.memory.checkpoint import Checkpoint
from hsexp.memory.observer import LossCause


@pytest.fixture(params=ORGANIZATIONS)
def organization(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


# -- on real vLLM: a model of two layers, blocks and checkpoints of 32 tokens ----------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("faults"), tiny(4), dtype="float32")


def words(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, VOCABULARY) for _ in range(count)]


def request(own_id: str, prompt: list[int], max_tokens: int, add_at: int = 0, **more: Any) -> Any:
    return {"id": own_id, "prompt": prompt, "max_tokens": max_tokens, "add_at": add_at} | more


class Real:
    """Serves requests with one organization, freed pages poisoned, and each of them cold."""

    _cold: ClassVar[dict[str, Any]] = {}

    def __init__(self, engines: EngineProcess, model: str, organization: str) -> None:
        self.engines, self.model, self.organization = engines, model, organization

    def serve(self, requests: list[Any], **more: Any) -> dict[str, Any]:
        return self._run(self.organization, requests, poison=True, **more)

    def cold(self, requests: list[Any]) -> dict[str, Any]:
        """Outputs of each request alone, with a cache that is of no use to the others."""
        alone = [
            request(one["id"], one["prompt"], one["max_tokens"], salt=one["id"]) for one in requests
        ]
        key = json.dumps(alone)
        if key not in self._cold:
            self._cold[key] = self._run("s0", alone, in_turn=len(alone))["outputs"]
        outputs: dict[str, Any] = self._cold[key]
        assert not any(output["cached"] for output in outputs.values())
        return outputs

    def _run(self, organization: str, requests: list[Any], **more: Any) -> dict[str, Any]:
        chosen = settings(
            tiny(4),
            organization,
            400 * 16384,
            block_size=32,
            slot_bytes=4096,
            checkpoint_grid=32,
            keep_idle_slabs=True,
        )
        job = {
            "model": self.model,
            "dtype": "float32",
            "max_model_len": 256,
            "cap": 8,
            "token_budget": 256,
            "requests": requests,
            "settings": chosen,
        }
        return self.engines.run(job | more)

    def assert_as_cold(self, requests: list[Any], result: dict[str, Any]) -> None:
        """Same tokens, and logprobs but for the last bits."""
        cold = self.cold(requests)
        for one in requests:
            output, expected = result["outputs"][one["id"]], cold[one["id"]]
            assert output["tokens"] == expected["tokens"]
            for ours, theirs in zip(output["logprobs"], expected["logprobs"], strict=True):
                for token in ours.keys() & theirs.keys():
                    assert ours[token] == pytest.approx(theirs[token], abs=1e-4)


@pytest.fixture
def real(engines: EngineProcess, model: str, organization: str) -> Real:
    return Real(engines, model, organization)


def test_every_request_of_a_packed_prefill_leaves_its_own_snapshot(real: Real) -> None:
    """sglang #31833, #37836: the second request's snapshot is of another one's chunk."""
    first, second = words(128, seed=1), words(64, seed=2)
    requests = [
        request("a", first + words(5, seed=3), 3),
        request("b", second + words(9, seed=4), 3),
        request("a again", first + words(7, seed=5), 12, add_at=8),
        request("b again", second + words(7, seed=6), 12, add_at=8),
    ]
    result = real.serve(requests)
    assert result["schedule"][0] == {"a": 128, "b": 64}  # both chunks in one step
    assert [output["cached"] for output in result["outputs"].values()] == [0, 0, 128, 64]
    real.assert_as_cold(requests, result)


def test_a_first_token_beside_decodes_starts_from_nothing(real: Real) -> None:
    """vllm #32118: a new request with one token in the step is taken for a decode and goes on from
    what lies in its slot; vllm #56524, sglang #24717: nobody cleared it. Here that is NaN."""
    requests = [
        request("before", words(70, seed=1), 2),
        request("decode", words(40, seed=2), 14, add_at=4),
        request("one", words(1, seed=3), 8, add_at=8),
        request("another", words(1, seed=4), 8, add_at=9),
    ]
    result = real.serve(requests)
    assert {"decode": 1, "one": 1} in result["schedule"]
    assert {"decode": 1, "one": 1, "another": 1} in result["schedule"]
    real.assert_as_cold(requests, result)


def test_a_prefill_beside_a_decode_leaves_its_snapshot(real: Real) -> None:
    """sglang #39342: a step of both kinds skips the write, and the slot is cached all the same."""
    prefix = words(64, seed=1)
    requests = [
        request("decode", words(20, seed=2), 20),
        request("prefill", prefix + words(9, seed=3), 3, add_at=3),
        request("hit", prefix + words(6, seed=4), 12, add_at=8),
    ]
    result = real.serve(requests)
    assert {"decode": 1, "prefill": 64} in result["schedule"]
    assert result["outputs"]["hit"]["cached"] == 64
    real.assert_as_cold(requests, result)


def test_a_batch_gives_the_same_bits_every_time(real: Real) -> None:
    """vllm #57267: four calls with the same batch, four outputs. The cache is reset in between."""
    prefix = words(96, seed=1)
    requests = [request(str(i), prefix + words(5 + i, seed=i), 10, add_at=2 * i) for i in range(6)]
    result = real.serve(requests, rounds=4)
    first = result["outputs"]
    assert sum(output["cached"] > 0 for output in first.values()) > 2
    assert result["repeated"] == [first, first, first]


def test_cancelling_one_of_several_samples_frees_them_all(real: Real) -> None:
    """vllm #14326: nothing is cancelled and all is leaked; #43509: one of them is freed."""
    sampling = {"n": 3, "temperature": 1.0, "seed": 5}
    requests = [
        request("siblings", words(70, seed=1), 40, sampling=sampling, cancel=9),
        request("other", words(50, seed=2), 12),
    ]
    result = real.serve(requests)
    assert not result["outputs"]["siblings"]["finished"] and result["outputs"]["other"]["finished"]
    memory = result["memory"]
    assert memory["live"] == 0 and memory["free"] == memory["usable"]
    assert result["left"] == [0, 0, 0]


def test_samples_of_one_prompt_are_those_of_requests_of_their_own(real: Real) -> None:
    prompt = words(70, seed=1)
    samples = request("samples", prompt, 12, sampling={"n": 3, "temperature": 1.0, "top_k": 1})
    output = real.serve([samples])["outputs"]["samples"]
    cold = real.cold([request("alone", prompt, 12)])["alone"]
    assert list(output["samples"].values()) == [cold["tokens"]] * 3


def test_logprobs_of_a_prompt_are_computed_although_it_is_cached(real: Real) -> None:
    prompt = words(100, seed=1)
    requests = [
        request("plain", prompt, 2),
        request("logprobs", prompt, 2, add_at=4, sampling={"prompt_logprobs": 1}),
        request("hit", prompt, 2, add_at=8),
    ]
    outputs = real.serve(requests)["outputs"]
    assert [outputs[key]["cached"] for key in ("plain", "logprobs", "hit")] == [0, 0, 96]
    assert len(outputs["logprobs"]["prompt_logprobs"]) == 99
    assert outputs["logprobs"]["tokens"] == outputs["plain"]["tokens"] == outputs["hit"]["tokens"]


# -- on vLLM's scheduler alone ---------------------------------------------------------------------


class Withdrawals(Observer):
    """Counts what is taken back because its step is not computed."""

    def __init__(self) -> None:
        self.lost: Counter[str] = Counter()

    def on_lose_blocks(self, pool: int, pages: Sequence[int], cause: LossCause) -> None:
        if cause == "withdrawn":
            self.lost["attention"] += len(pages)

    def on_lose_state(self, state: Checkpoint, cause: LossCause) -> None:
        if cause == "withdrawn":
            self.lost["checkpoint"] += 1


def test_a_step_that_is_taken_back_leaves_nothing_that_others_find(
    organization: str, tmp_path: Path
) -> None:
    """vllm #57580: a checkpoint is visible to others although its producer was preempted in the
    very step that was to compute it."""
    prompt = list(range(10 * GRID + 1))
    lost: Counter[str] = Counter()
    memory = toy_settings(organization, 400, num_states=100).memory()
    for spare in range(8):  # pages beside what the long request alone needs
        need = memory.max_need(len(prompt))
        core = ToyCore(
            toy_settings(organization, need[0] + spare, num_states=2 + spare),
            tmp_path,
            token_budget=GRID + 1,
            policy="priority",
        )
        withdrawals = Withdrawals()
        core.memory.cache.watch(withdrawals)
        # Eight tokens of the long prompt and one of the other request, whose boundary comes first.
        low = core.add(prompt, 1, priority=9)
        core.step()
        high = core.add([7], 12, priority=1)
        core.add([*prompt[: 9 * GRID], 5], 1, priority=9)
        core.run()
        lost += withdrawals.lost
        assert core.requests[high].request.num_preemptions == 0
        assert core.requests[low].request.num_preemptions > 0 or not withdrawals.lost
        assert all(toy.delivered == toy.expected for toy in core.requests.values())
        core.assert_drained()
    assert lost["attention"] > 0 and lost["checkpoint"] > 0


def test_recomputation_after_preemption_is_no_hit_of_another_request(
    organization: str, tmp_path: Path
) -> None:
    """vllm #25780: 32 % hits on random prompts."""
    pools = {"s0": 20, "s1": 36, "s2": 32, "s3": 32, "d0": 70}
    core = ToyCore(
        toy_settings(organization, pools[organization], num_states=6, pinning=1), tmp_path
    )
    manager = core.scheduler.kv_cache_manager
    manager.prefix_cache_stats = PrefixCacheStats()
    hits = queries = preempted_hits = 0
    for i in range(40):
        core.add(list(range(1000 * i, 1000 * i + 20)), 20)
    while core.is_busy:
        core.step()
        stats = manager.make_prefix_cache_stats()
        hits, queries = hits + stats.hits, queries + stats.queries
        preempted_hits += stats.preempted_hits
    assert core.memory.cache.counters.preemptions > 0 and queries == 40 * 20
    assert hits == 0
    assert preempted_hits > 0


def test_a_hit_whose_request_does_not_fit_takes_no_reference(
    organization: str, tmp_path: Path
) -> None:
    """sglang #16067, #21404: a state slot leaks whenever a matched request fails admission."""
    pools = {"s0": 14, "s1": 24, "s2": 22, "s3": 22, "d0": 40}
    core = ToyCore(
        toy_settings(organization, pools[organization], num_states=6, headroom=0.3), tmp_path
    )
    prompt = list(range(2 * GRID + 1))
    core.add(prompt, 1)
    core.run()
    running = core.add(list(range(500, 520)), 24)
    core.step()
    core.step()
    core.add([*prompt, *range(900, 950)], 1)
    num_refused = 0
    while running in core.scheduler.requests:
        before = core.memory.cache.counters.refusals
        core.step()
        if core.memory.cache.counters.refusals > before:
            num_refused += 1
            held = [
                s for q in core.memory.cache.sequences.values() for s in (q.state, q.superseded)
            ]
            for _, checkpoint in core.memory.cache.checkpoint_index:
                assert not checkpoint.refs or checkpoint in held
    assert num_refused > 5
    core.run()
    assert all(toy.delivered == toy.expected for toy in core.requests.values())
    core.assert_drained()


def test_whatever_fits_an_empty_engine_is_admitted_and_anything_else_refused(
    organization: str, tmp_path: Path
) -> None:
    """vllm #39866: an estimate above the real need keeps a prompt waiting for ever in an empty
    pool; BLIS #492: a check that is off by one block."""
    pools = {"s0": 8, "s1": 14, "s2": 13, "s3": 13, "d0": 26}
    core = ToyCore(
        toy_settings(organization, pools[organization], num_states=3, headroom=0.9), tmp_path
    )
    fits = []
    for num_tokens in range(1, 10 * GRID):
        try:
            core.add([num_tokens] * num_tokens, 1)
        except ValueError as error:
            assert "can never be served: needs" in str(error)
            fits.append(False)
            continue
        fits.append(True)
        core.run()
    assert fits == sorted(fits, reverse=True) and 3 * GRID < sum(fits) < 10 * GRID - 1
    assert all(toy.delivered == toy.expected for toy in core.requests.values())
    assert core.memory.cache.counters == MemoryCounters(
        published_checkpoints=core.memory.cache.counters.published_checkpoints,
        lost_checkpoints=core.memory.cache.counters.lost_checkpoints,
        lost_blocks=core.memory.cache.counters.lost_blocks,
        reclaimed_slabs=core.memory.cache.counters.reclaimed_slabs,
    )  # no preemption, no refusal
