"""A server that runs for ever: nothing in the facade or the memory grows with the requests served.

vLLM's scheduler without a model serves 20,000 small requests over few pages: shared and private
prompts, evictions, preemptions, cancellations, retention, pinning and forks. Afterwards every
container that can be reached from the facade is as long as it was at the start.
"""

from collections.abc import Iterator, Sized
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from toy_core import toy_settings
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm_scheduler import build_scheduler, vllm_config

from hsexp.memory.policies.pinning import PinningConfig
from hsexp.memory.policies.retention import DemandedRetention

DEMAND_KEYS = 30
NUM_PAGES = {"s0": 24, "s1": 60, "s2": 36, "s3": 36, "d0": 60}
MAX_WAITING = 16


def lengths(owner: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, int]]:
    """Every container in our own objects, by the attributes that lead to it first."""
    seen = set() if seen is None else seen
    seen.add(id(owner))
    for name in _attributes(owner):
        value, where = getattr(owner, name), f"{path}.{name}"
        if isinstance(value, Sized) and not isinstance(value, str) and not _is_ours(value):
            yield where, len(value)
        for item in value if isinstance(value, tuple) else (value,):
            if _is_ours(item) and id(item) not in seen:
                yield from lengths(item, where, seen)


def _is_ours(value: Any) -> bool:
    return type(value).__module__.startswith("hsexp.")


def _attributes(owner: Any) -> list[str]:
    slots = [name for kind in type(owner).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*vars(owner)] if hasattr(owner, "__dict__") else slots


def requests(count: int, block_size: int, random: Random) -> Iterator[Request]:
    """Half of them with one of 8 contexts that reach over two checkpoints; some are equal."""
    hasher = get_request_block_hasher(block_size, sha256)
    for i in range(count):
        private = [1_000 + 10 * i + k for k in range(random.randrange(1, 9))]
        context = [100 * random.randrange(8)] * 17
        prompt = random.choice([context, context + private, private, private])
        yield Request(
            request_id=str(i),
            prompt_token_ids=prompt,
            sampling_params=SamplingParams(max_tokens=random.randrange(1, 20), ignore_eos=True),
            pooling_params=None,
            block_hasher=hasher,
        )


def serve(scheduler: Any, arriving: Iterator[Request], random: Random) -> int:
    """Serve all of them; in a tenth of the steps one is cancelled. Returns the steps."""
    steps = 0
    while True:
        for request in islice(arriving, max(MAX_WAITING - len(scheduler.waiting), 0)):
            scheduler.add_request(request)
        if not scheduler.has_unfinished_requests():
            return steps
        output = scheduler.schedule()
        ids = list(output.num_scheduled_tokens)
        sampled = [
            [7 + request.num_tokens] if request.num_computed_tokens >= request.num_tokens else []
            for request in map(scheduler.requests.get, ids)
        ]
        scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
                sampled_token_ids=sampled,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )
        steps += 1
        if scheduler.requests and random.random() < 0.1:
            chosen = random.choice(list(scheduler.requests))
            scheduler.finish_requests(chosen, RequestStatus.FINISHED_ABORTED)


@pytest.mark.parametrize(
    ("organization", "max_leaves", "count"),
    [
        ("s0", 0, 1_000),
        ("s1", 4, 1_000),
        ("s2", 0, 1_000),
        ("s2", 4, 20_000),
        ("s3", 0, 2_000),
        ("d0", 0, 1_000),
        ("d0", 4, 1_000),
    ],
)
def test_after_many_requests_everything_is_as_long_as_at_the_start(
    organization: str, max_leaves: int, count: int, tmp_path: Path
) -> None:
    chosen = toy_settings(organization, NUM_PAGES[organization], max_leaves=max_leaves).model_copy(
        update={
            "retention": DemandedRetention(name="k2", requesters=2, demand_keys=DEMAND_KEYS),
            "pinning": PinningConfig(
                name="k1", requesters=1, protected_fraction=0.5, demand_keys=DEMAND_KEYS
            ),
        }
    )
    scheduler = build_scheduler(chosen, vllm_config(chosen, tmp_path))
    manager, random = scheduler.kv_cache_manager, Random(1)
    before = dict(lengths(manager))

    serve(scheduler, requests(count, scheduler.hash_block_size, random), random)

    counters = manager.memory.cache.counters
    assert counters.preemptions > count / 100 and counters.lost_checkpoints > count / 10
    assert counters.refusals and counters.retained_checkpoints and counters.pinned_checkpoints
    manager.memory.check_integrity()
    assert manager.reset_prefix_cache()
    after = dict(lengths(manager))
    for policy in ("retention", "pinning"):
        assert after.pop(f".memory.{policy}.demand._requesters") == DEMAND_KEYS
    # What else may stay is bounded by the configuration.
    bounds = {
        ".memory.cache._blocks_ahead": NUM_PAGES[organization],  # of the last step
        ".memory.cache.states._active": NUM_PAGES[organization],  # slabs, some of them given up
        ".memory.cache.states._idle": NUM_PAGES[organization],
        ".memory.branching.leaves._kept": max_leaves,  # some of them evicted
        ".memory.branching.leaves._behind": max_leaves,
        ".memory.branching.copies.num_done": 2,  # kinds of copies
    }
    assert all(after.pop(path, 0) <= bound for path, bound in bounds.items())
    assert after == {path: before[path] for path in after}
    assert not scheduler.requests
