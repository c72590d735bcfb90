"""Real vLLM with a small Granite-4-H: three recurrent layers for each attention layer.

The counterpart of `test_real_model.py`, where an attention layer has one. A checkpoint is three
composites here; each recurrent layer has its own pages or its own part of a slot.
"""

from typing import Any

import pytest
from engine_process import EngineProcess, settings
from small_models import save_model, tiny_granite
from waves import assert_same_outputs, requests_over

ORGANIZATIONS = ("s0", "s1", "s2", "d0")
PAGE = 32768
"""32 tokens in fp32."""


def chosen(organization: str, num_pages: int, **changes: Any) -> dict[str, Any]:
    fields = {"block_size": 32, "slot_bytes": PAGE // 2} | changes
    return settings(tiny_granite(4), organization, num_pages * PAGE, **fields)


@pytest.fixture(scope="module")
def granite(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A job without requests."""
    return {
        "model": save_model(tmp_path_factory.mktemp("granite"), tiny_granite(4), dtype="float32"),
        "dtype": "float32",
        "block_size": 32,
        "max_model_len": 512,
        "cap": 8,
        "token_budget": 256,
        "settings": None,
    }


# -- the same schedule: bit for bit ----------------------------------------------------------------

GRID = 96
"""vLLM's own block for this model: at 32-token steps the first whose KV covers a state."""


@pytest.fixture(scope="module")
def stock(granite: dict[str, Any], engines: EngineProcess) -> tuple[dict[str, Any], Any]:
    """Requests that unpatched vLLM serves, with four groups of two layers."""
    requests = requests_over(
        [0, 96, 192, 200, 300], count=14, seed=11, every=[0, 0, 1, 3, 8], most_tokens=60
    )
    job = granite | {"requests": requests}
    return job, engines.run(job)


# In pages of 96 tokens an SSM state leaves a third of its page unused, in those of 32 it takes two.
@pytest.mark.parametrize(
    ("organization", "block_size"),
    [("s0", GRID), ("s0", 32), ("s1", GRID), ("s1", 32), ("s2", GRID), ("s2", 32), ("d0", 16)],
)
def test_the_same_schedule_gives_the_bits_of_unpatched_vllm(
    organization: str, block_size: int, stock: tuple[dict[str, Any], Any], engines: EngineProcess
) -> None:
    job, expected = stock
    sizes = {"block_size": block_size, "checkpoint_grid": GRID, "keep_idle_slabs": True}
    result = engines.run(job | {"settings": chosen(organization, 2000, **sizes)})
    assert result["schedule"] == expected["schedule"]
    assert result["outputs"] == expected["outputs"]
    assert sum(output["cached"] > 0 for output in expected["outputs"].values()) > 5


# -- other evictions: the same tokens --------------------------------------------------------------


@pytest.fixture(scope="module")
def stress(granite: dict[str, Any]) -> dict[str, Any]:
    requests = requests_over(
        [0, 64, 96, 128, 192, 320], count=40, seed=5, every=[0, 1, 2], most_tokens=40
    )
    return granite | {"cap": 12, "requests": requests, "poison": True}


@pytest.fixture(scope="module")
def roomy(stress: dict[str, Any], engines: EngineProcess) -> dict[str, Any]:
    """The same requests where nothing is evicted."""
    result = engines.run(stress | {"settings": chosen("s0", 2000, cap=12), "poison": False})
    counters = result["memory"]["counters"]
    assert counters["lost_checkpoints"] == counters["lost_blocks"] == counters["preemptions"] == 0
    return result


PLAIN = {"reserve_fraction": 0.0}
KEEPING = PLAIN | {"retention": "k2", "pinning": "k1", "headroom": 0.03}


@pytest.mark.parametrize(
    ("organization", "num_pages", "policies"),
    [
        ("s0", 130, PLAIN),
        ("s1", 130, PLAIN),
        ("s2", 110, PLAIN),
        ("d0", 115, PLAIN),
        ("s2", 120, KEEPING),
    ],
)
def test_a_tight_pool_changes_no_token(
    organization: str,
    num_pages: int,
    policies: dict[str, Any],
    stress: dict[str, Any],
    roomy: dict[str, Any],
    engines: EngineProcess,
) -> None:
    tight = chosen(organization, num_pages, cap=12, **policies)
    result = engines.run(stress | {"settings": tight})
    assert_same_outputs(result, roomy)
    counters, memory = result["memory"]["counters"], result["memory"]
    assert counters["lost_checkpoints"] > 20 and counters["lost_blocks"] > 20
    assert counters["preemptions"] > 3 and counters["refusals"] > 20
    assert sum(output["cached"] > 0 for output in result["outputs"].values()) > 3
    if policies is KEEPING:
        assert counters["retained_checkpoints"] > 5 and counters["pinned_checkpoints"] > 2
    if organization == "s2":
        assert counters["reclaimed_slabs"] > 0
        assert result["slabs"]["reused_beside_live"] > 5
        assert result["poisoned"]["slots"] > 50
    assert memory["live"] == 0 and memory["free"] == memory["usable"]
    assert result["left"] == [0, 0, 0]  # blocks, checkpoints and slots after a reset


# -- forks and exact runs --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def samples(granite: dict[str, Any]) -> dict[str, Any]:
    """Three greedy samples of each prompt, which cross boundaries apart from each other."""
    requests = requests_over([0, 40], count=4, seed=3, every=[0, 6], most_tokens=60)
    # vLLM takes no n > 1 at temperature 0.
    sampling = {"n": 3, "temperature": 1, "top_k": 1}
    return granite | {"requests": [request | {"sampling": sampling} for request in requests]}


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_samples_that_share_a_state_until_they_write_say_the_same(
    organization: str, samples: dict[str, Any], engines: EngineProcess
) -> None:
    result = engines.run(
        samples | {"settings": chosen(organization, 100) | {"max_leaves": 16}, "poison": True}
    )
    assert result["memory"]["copies"]["state"] >= 6
    for request in samples["requests"]:
        first, *others = result["outputs"][request["id"]]["samples"].values()
        assert len(first) == request["max_tokens"] and others == [first, first]


@pytest.mark.parametrize("organization", ["s0", "s2"])
def test_exact_runs_give_the_same_bits_in_a_tight_pool(
    organization: str, stress: dict[str, Any], engines: EngineProcess
) -> None:
    job = stress | {"requests": stress["requests"][:12], "poison": False}
    few = {"s0": 50, "s2": 40}[organization]
    roomy, tight = (
        engines.run(
            job | {"settings": chosen(organization, pages, cap=12, **PLAIN) | {"exact": True}}
        )
        for pages in (1000, few)
    )
    assert tight["memory"]["counters"]["preemptions"] > 0
    assert tight["memory"]["counters"]["lost_checkpoints"] > 0
    for key, output in roomy["outputs"].items():
        assert tight["outputs"][key]["tokens"] == output["tokens"]
        assert tight["outputs"][key]["logprobs"] == output["logprobs"]
