"""Real vLLM on a GPU: paged states give the bits of contiguous ones, eager and in CUDA graphs.

Two layers with Falcon-H1-7B's states in bfloat16, 512-token blocks; eight prompts that share 512
tokens, first alone, then together, long enough that two of them cross a boundary at decode.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_process import settings
from small_models import VOCABULARY, save_model

from hsexp.config.catalog import read_option
from hsexp.memory.geometry import ModelConfig

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def job(device_name: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if device_name != "cuda":
        pytest.skip("the interpreter runs kernels, not engines")
    shape = read_option("model", "falcon_h1_7b")
    model = ModelConfig.parse(shape | {"num_attention_layers": 2, "num_recurrent_layers": 2})
    folder = tmp_path_factory.mktemp("falcon")
    rng = random.Random(3)
    shared = [rng.randrange(3, VOCABULARY) for _ in range(512)]
    suffixes = [20, 29, 38, 500, 505, 56, 65, 74]  # 512 + 500 + 24 tokens pass 1,024
    prompts = [
        shared + [rng.randrange(3, VOCABULARY) for _ in range(suffix)] for suffix in suffixes
    ]
    return {
        "folder": str(folder),
        "model": save_model(folder / "model", model, dtype="bfloat16"),
        "waves": [prompts[:1], prompts[1:3], prompts[3:]],
        "settings": {
            name: settings(model, name, 80_000_000, block_size=512, slot_bytes=32768)
            for name in ("s0", "s1", "s2")
        },
    }


def serve(job: dict[str, Any], organization: str, *, eager: bool) -> dict[str, Any]:
    """One engine in a process of its own."""
    folder = Path(job["folder"])
    source, target = folder / "job.json", folder / "result.json"
    chosen = {"settings": job["settings"][organization], "eager": eager}
    source.write_text(json.dumps(job | chosen), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(HERE / "serve_waves.py"), str(source), str(target)],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    return result


@pytest.fixture(scope="module", params=[True, False], ids=["eager", "graphs"])
def contiguous(job: dict[str, Any], request: pytest.FixtureRequest) -> tuple[bool, Any]:
    """S0's outputs, whose states are contiguous, and whether they came without graphs."""
    result = serve(job, "s0", eager=request.param)
    assert result["kernel_path"] is None
    assert [output["cached"] for output in result["outputs"]] == [0] + 7 * [512]
    return request.param, result["outputs"]


@pytest.mark.parametrize("organization", ["s1", "s2"])
def test_paged_states_give_the_bits_of_contiguous_ones_on_a_gpu(
    organization: str, job: dict[str, Any], contiguous: tuple[bool, Any]
) -> None:
    eager, expected = contiguous
    result = serve(job, organization, eager=eager)
    assert result["kernel_path"] == "triton-fused"
    assert result["outputs"] == expected
