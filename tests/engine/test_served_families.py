"""Real vLLM with other Mamba2 families, whose last groups lack layers: no organization changes a
token, whatever it evicts and preempts."""

from typing import Any

import pytest
from engine_process import EngineProcess, settings
from families import save_family
from waves import assert_same_outputs, requests_over

from hsexp.memory.geometry import ModelConfig
from hsexp.models.reading import read_model

GROUPS = {"bamba": [2, 2, 1, 0], "nemotron_h": [3, 2], "zamba2": [3, 2]}
"""Recurrent layers of each attention layer."""
PAGE = 32768
"""32 tokens in fp32."""
GRID = 96
"""vLLM's own block for these models: at 32-token steps the first whose KV covers a state."""


@pytest.fixture(scope="module", params=GROUPS)
def family(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    engines: EngineProcess,
) -> tuple[ModelConfig, dict[str, Any], dict[str, Any]]:
    """A model, requests over its checkpoint, and what unpatched vLLM makes of them."""
    folder = tmp_path_factory.mktemp("model") / request.param
    requests = requests_over(
        [0, 64, 96, 192, 200, 300], count=20, seed=11, every=[0, 0, 1, 3], most_tokens=40
    )
    for one in requests[7::8]:
        one["prompt"] = one["prompt"][:1]
    job = {
        "model": save_family(request.param, folder),
        "dtype": "float32",
        "block_size": 32,
        "max_model_len": 512,
        "cap": 8,
        "token_budget": 256,
        "requests": requests,
        "settings": None,
    }
    shape = read_model(str(folder))
    assert isinstance(shape, ModelConfig)
    return shape, job, engines.run(job)


def test_the_last_groups_lack_layers(family: tuple[ModelConfig, Any, Any]) -> None:
    shape = family[0]
    num_groups, places = shape.num_attention_layers, shape.composites_per_checkpoint
    assert GROUPS[shape.name] == [
        min(places, max(shape.num_recurrent_layers - group * places, 0))
        for group in range(num_groups)
    ]


@pytest.mark.parametrize("organization", ["s0", "s1", "s2", "s3", "d0"])
def test_the_same_schedule_gives_the_bits_of_unpatched_vllm(
    organization: str, family: tuple[ModelConfig, Any, Any], engines: EngineProcess
) -> None:
    shape, job, expected = family
    sizes = {"block_size": 16 if organization == "d0" else 32, "checkpoint_grid": GRID}
    chosen = settings(shape, organization, 2000 * PAGE, keep_idle_slabs=True, **sizes)
    result = engines.run(job | {"settings": chosen})
    assert result["schedule"] == expected["schedule"]
    assert result["outputs"] == expected["outputs"]
    assert sum(output["cached"] > 0 for output in expected["outputs"].values()) > 5


@pytest.mark.parametrize(
    ("organization", "pages"), [("s1", 80), ("s2", 70), ("s3", 66), ("d0", 60)]
)
def test_a_tight_pool_changes_no_token(
    organization: str,
    pages: int,
    family: tuple[ModelConfig, Any, Any],
    engines: EngineProcess,
) -> None:
    """The budget is too small for what eight requests want."""
    shape, job, expected = family
    chosen = settings(shape, organization, pages * PAGE, block_size=32, reserve_fraction=0.0)
    result = engines.run(job | {"settings": chosen, "poison": True})
    assert_same_outputs(result, expected)
    memory, counters = result["memory"], result["memory"]["counters"]
    assert counters["lost_checkpoints"] > 10 and counters["lost_blocks"] > 20
    assert counters["preemptions"] > 0 and counters["refusals"] > 10
    assert result["poisoned"]["pages"] > 100
    assert memory["live"] == 0 and memory["free"] == memory["usable"]
    assert result["left"] == [0, 0, 0]  # blocks, checkpoints and slots after a reset
