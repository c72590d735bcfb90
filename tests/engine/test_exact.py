"""Real vLLM with `exact`: whatever happens to a request, it continues with the bits of its isolated
recomputation.

Each case is a treatment of the continuation campaign, on small models of 32-token grids: the
treatment happened (its own conditions and counters), the references are stable, and tokens,
logprobs and state bytes are equal in every request.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from engine_process import EngineProcess, settings
from small_models import VOCABULARY, save_model, tiny

from hsexp.engine.mini import SPECIAL_TOKENS
from hsexp.memory.geometry import ModelConfig
from runners.continuation.process import CheckProcess
from runners.continuation.prompts import Prompts

GRID = 32
DEPTH = 80
"""Tokens of the shared prefix: boundaries at 32 and 64, and 16 tokens beyond."""

TREATMENTS = ("hit", "batch", "eviction", "preemption", "retention", "isolation")


def exact_settings(organization: str, model: ModelConfig, *, exact: bool = True) -> dict[str, Any]:
    chosen = settings(
        model,
        organization,
        64 * 16384,
        block_size=GRID,
        slot_bytes=1024 * model.dtype_bytes,
        checkpoint_grid=GRID,
    )
    return chosen | {"exact": exact}


def job(treatment: str, chosen: dict[str, Any]) -> dict[str, Any]:
    return {
        "settings": chosen,
        "token_budget": 4 * GRID,
        "depth": DEPTH,
        "seed": 1,
        "treatment": treatment,
    }


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CheckProcess]:
    folder = tmp_path_factory.mktemp("checks")
    environment = {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "XDG_CACHE_HOME": str(folder),
    }
    with CheckProcess(environment, log=folder / "log", limit_s=300) as process:
        yield process


CASES = [
    *((organization, 2, treatment) for organization in ("s2", "d0") for treatment in TREATMENTS),
    ("s2", 2, "slabs"),
    ("s2", 2, "turns"),
    ("s0", 4, "batch"),
    ("s0", 4, "preemption"),
    ("s1", 2, "batch"),
    ("s1", 2, "preemption"),
    ("s3", 2, "batch"),
    ("s3", 2, "preemption"),
    ("s3", 2, "hit"),
]
"""Organization, bytes of an element (2: bfloat16, 4: float32), treatment."""


@pytest.mark.parametrize(("organization", "dtype_bytes", "treatment"), sorted(CASES))
def test_a_treated_request_continues_with_the_bits_of_its_isolated_recomputation(
    organization: str, dtype_bytes: Any, treatment: str, checks: CheckProcess
) -> None:
    outcome = checks.check(job(treatment, exact_settings(organization, tiny(dtype_bytes))))
    assert outcome["unmet"] == []
    requests = pd.DataFrame(outcome["requests"])
    assert (requests["adopted_tokens"] > 0).any()
    assert requests["stable_reference"].all()
    assert requests["equal_tokens"].all() and requests["equal_logprobs"].all()
    assert requests["num_states"].sum() > 0
    assert (requests["num_equal_states"] == requests["num_states"]).all()


def test_without_exact_the_same_checks_find_differences(checks: CheckProcess) -> None:
    outcome = checks.check(job("hit", exact_settings("s2", tiny(2), exact=False)))
    assert outcome["unmet"] == []
    requests = pd.DataFrame(outcome["requests"])
    assert requests["stable_reference"].all()
    assert (requests["num_equal_states"] < requests["num_states"]).any()
    assert not requests["equal_logprobs"].all()


# -- the same bits as unpatched vLLM ---------------------------------------------------------------


@pytest.fixture(scope="module")
def one_prompt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A job of one request: three whole chunks, a rest, and a boundary crossed by decoding."""
    folder: Path = tmp_path_factory.mktemp("exact")
    save_model(folder / "model", tiny(2), dtype="bfloat16")
    prompts = Prompts.draw(
        depth=DEPTH, grid=GRID, vocabulary=range(SPECIAL_TOKENS, VOCABULARY), seed=1
    )
    ask = prompts.members[3]
    assert (len(ask.prompt), ask.max_tokens) == (3 * GRID + GRID - 6, 16)
    return {
        "model": str(folder / "model"),
        "dtype": "bfloat16",
        "block_size": GRID,
        "max_model_len": 256,
        "cap": 8,
        "requests": [
            {"id": "0", "prompt": list(ask.prompt), "max_tokens": ask.max_tokens, "add_at": 0}
        ],
    }


@pytest.mark.parametrize("organization", ["s0", "s1", "s2", "d0"])
def test_organizations_of_one_grid_give_the_bits_that_unpatched_vllm_gives_a_lone_request(
    organization: str, one_prompt: dict[str, Any], engines: EngineProcess
) -> None:
    # Unpatched vLLM, alone, with a step budget of one grid interval, has the same chunks.
    stock = engines.run(one_prompt | {"settings": None, "token_budget": GRID})
    chosen = exact_settings(organization, tiny(2))
    ours = engines.run(one_prompt | {"settings": chosen, "token_budget": 4 * GRID})
    assert [list(step.values()) for step in ours["schedule"][:4]] == [[32], [32], [32], [26]]
    assert ours["outputs"]["0"]["logprobs"] == stock["outputs"]["0"]["logprobs"]
