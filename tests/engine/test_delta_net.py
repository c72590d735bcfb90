"""Real vLLM with a small Qwen3-Next, whose layers of gated delta net keep their states whole.

S0 and D0 serve it with vLLM's own kernels: each of the three recurrent layers of an attention
layer, of which the last one lacks one, has a table. vLLM's CPU kernels take bf16 alone.
"""

from pathlib import Path
from typing import Any

import pytest
from engine_process import EngineProcess, settings
from families import save_family
from waves import requests_over

from hsexp.memory.geometry import SizedModel
from hsexp.models.reading import read_model

PAGE = 16384
"""32 tokens in bf16."""
GRID = 160
"""vLLM's own block for this model: at 32-token steps the first whose KV covers a state."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "qwen3_next"
    save_family("qwen3_next", folder)
    return folder


@pytest.fixture(scope="module")
def shape(model: Path) -> SizedModel:
    read = read_model(str(model))
    assert isinstance(read, SizedModel)
    return read.model_copy(update={"recurrent_bytes": 2 * read.recurrent_bytes})  # in fp32


@pytest.fixture(scope="module")
def job(model: Path) -> dict[str, Any]:
    requests = requests_over(
        [0, 96, 160, 320, 330], count=20, seed=11, every=[0, 0, 1, 3], most_tokens=40
    )
    for one in requests[7::4]:
        one["prompt"] = one["prompt"][:1]
    return {
        "model": str(model),
        "dtype": "bfloat16",
        "block_size": 32,
        "max_model_len": 512,
        "cap": 8,
        "token_budget": 512,
        "requests": requests,
        "settings": None,
        "arguments": {"mamba_ssm_cache_dtype": "float32"},
    }


@pytest.fixture(scope="module")
def stock(job: dict[str, Any], engines: EngineProcess) -> dict[str, Any]:
    """Unpatched vLLM. There a one-token prompt continues whatever its state's page held before, so
    two of those have an engine of their own, all of whose pages are new."""
    result = engines.run(job)
    first = [one for one in job["requests"] if len(one["prompt"]) == 1]
    for one in first[1::2]:
        alone = engines.run(job | {"requests": [one | {"add_at": 0}]})
        result["outputs"] |= alone["outputs"]
    return result | {"one_token": [one["id"] for one in first]}


def assert_same_bits(result: dict[str, Any], stock: dict[str, Any]) -> None:
    """One-token prompts are in other batches than alone, but their first tokens are not."""
    assert result["schedule"] == stock["schedule"]
    for key, expected in stock["outputs"].items():
        output = result["outputs"][key]
        if key in stock["one_token"]:
            assert output["finished"] and output["tokens"][0] == expected["tokens"][0]
        else:
            assert output == expected


@pytest.mark.parametrize("states", ["per_boundary", "in_place"])
@pytest.mark.parametrize("organization", ["s0", "d0"])
def test_the_same_schedule_gives_the_bits_of_unpatched_vllm(
    organization: str,
    states: str,
    shape: SizedModel,
    job: dict[str, Any],
    stock: dict[str, Any],
    engines: EngineProcess,
) -> None:
    """Pages that hold nothing hold NaN: the first token of a prompt must not read its page."""
    sizes = {"block_size": 16 if organization == "d0" else 32, "checkpoint_grid": GRID}
    chosen = settings(shape, organization, 2000 * PAGE, states=states, **sizes)
    result = engines.run(job | {"settings": chosen, "poison": True})
    assert_same_bits(result, stock)
    assert sum(output["cached"] > 0 for output in stock["outputs"].values()) > 3
    assert result["left"] == [0, 0, 0]
    if states == "in_place":
        assert result["memory"]["copies"]["state"] > 10


@pytest.mark.parametrize("organization", ["s0", "d0"])
def test_exact_runs_give_the_same_bits_in_a_tight_pool(
    organization: str,
    shape: SizedModel,
    job: dict[str, Any],
    stock: dict[str, Any],
    engines: EngineProcess,
) -> None:
    """In bf16 a preempted request that is computed again in other chunks says something else."""
    few = {"s0": 160, "d0": 80}[organization]
    sizes = {"block_size": 32, "checkpoint_grid": GRID, "reserve_fraction": 0.0}
    roomy, tight = (
        engines.run(
            job
            | {"settings": settings(shape, organization, pages * PAGE, **sizes) | {"exact": True}}
            | {"poison": pages == few}
        )
        for pages in (2000, few)
    )
    memory, counters = tight["memory"], tight["memory"]["counters"]
    assert counters["preemptions"] > 1 and counters["lost_checkpoints"] > 10
    assert tight["poisoned"]["pages"] > 100
    for key, output in roomy["outputs"].items():
        assert tight["outputs"][key]["tokens"] == output["tokens"]
        assert tight["outputs"][key]["logprobs"] == output["logprobs"]
    for key in stock["one_token"][1::2]:
        assert tight["outputs"][key]["logprobs"] == stock["outputs"][key]["logprobs"]
    assert memory["live"] == 0 and memory["free"] == memory["usable"]
    assert tight["left"] == [0, 0, 0]  # blocks, checkpoints and slots after a reset


@pytest.mark.parametrize("organization", ["s0", "d0"])
def test_equal_requests_that_fork_a_state_say_the_same(
    organization: str, shape: SizedModel, job: dict[str, Any], engines: EngineProcess
) -> None:
    """The second and the third one of a prompt wait for the first, and copy its state."""
    prompts = requests_over([0, 40], count=3, seed=3, every=[0, 6], most_tokens=60)
    equal = [one | {"id": f"{one['id']}.{i}"} for one in prompts for i in range(3)]
    chosen = settings(shape, organization, 600 * PAGE, block_size=32) | {"max_leaves": 16}
    result = engines.run(job | {"requests": equal, "settings": chosen, "poison": True})
    assert result["memory"]["copies"]["state"] >= 6
    for one in prompts:
        first, *others = (result["outputs"][f"{one['id']}.{i}"]["tokens"] for i in range(3))
        assert len(first) == one["max_tokens"] and others == [first, first]
