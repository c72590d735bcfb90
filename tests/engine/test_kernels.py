"""The GPU's kernels on a machine without a GPU: interpreted, compiled, and in a whole engine.

tests/gpu/test_kernel_checks.py checks them one by one. Here it runs in Triton's interpreter, in a
process of its own, since vLLM's CPU build has placeholders where Triton is.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_process import EngineProcess, settings
from small_models import VOCABULARY, save_model, tiny

HERE = Path(__file__).parent
INTERPRETER = {"TRITON_INTERPRET": "1", "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
COMPILER = INTERPRETER | {"TRITON_INTERPRET": "0", "TRITON_DEFAULT_FP_FUSION": "1"}


def python(*arguments: str, **environment: str) -> str:
    """Run a program to its end; its output."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | environment,
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout


def test_every_kernel_check_holds_in_tritons_interpreter() -> None:
    checks = HERE.parent / "gpu" / "test_kernel_checks.py"
    output = python("-m", "pytest", str(checks), "-q", "-p", "no:cacheprovider", **INTERPRETER)
    # All but stock's bfloat16 products, at four batch sizes.
    assert output.count("SKIPPED") == output.count("SKIPPED [4]") == 1, output


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Kernels compiled for the A100 and the H100: {architecture: {kernel: launches}}."""
    result = tmp_path_factory.mktemp("compiled") / "result.json"
    python(str(HERE / "compile_kernels.py"), str(result), "80", "90", **COMPILER)
    kernels: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return kernels


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_every_kernel_compiles_without_spilling_registers(
    architecture: str, compiled: dict[str, Any]
) -> None:
    launches = [launch for seen in compiled[architecture].values() for launch in seen]
    assert len(launches) == 2 * (2 + 1) + 3  # ours and stock's; gather, scatter, lines
    assert sum(launch["spilled_bytes"] for launch in launches) == 0


COUNTERPARTS = pytest.mark.parametrize(
    ("ours", "stock"),
    [
        ("_state_update_kernel", "_selective_scan_update_kernel"),
        ("_conv_update_kernel", "_causal_conv1d_update_kernel"),
    ],
)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@COUNTERPARTS
def test_a_paged_kernel_compiles_to_the_arithmetic_of_the_contiguous_one(
    ours: str, stock: str, architecture: str, compiled: dict[str, Any]
) -> None:
    kernels = compiled[architecture]
    for our_launch, stock_launch in zip(kernels[ours], kernels[stock], strict=True):
        assert our_launch["arithmetic"] == stock_launch["arithmetic"]
        assert sum(our_launch["arithmetic"].values()) > 10


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@COUNTERPARTS
def test_a_paged_state_is_found_after_as_many_loads_as_a_contiguous_one(
    ours: str, stock: str, architecture: str, compiled: dict[str, Any]
) -> None:
    """A row's place, then the state."""
    kernels = compiled[architecture]
    for our_launch, stock_launch in zip(kernels[ours], kernels[stock], strict=True):
        assert our_launch["load_chain"] == stock_launch["load_chain"] == 2


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("kernel", ["_transfer_states_kernel", "_carry_lines_kernel"])
def test_whole_states_and_lines_move_by_sixteen_bytes_once_their_place_is_loaded(
    kernel: str, architecture: str, compiled: dict[str, Any]
) -> None:
    for launch in compiled[architecture][kernel]:
        assert launch["widest_load_bytes"] == 16
        assert launch["load_chain"] == 2


def test_an_engine_with_the_gpus_kernels_gives_the_tokens_of_the_cpus(
    engines: EngineProcess, tmp_path: Path
) -> None:
    """Four requests that share two checkpoints of 32 tokens, cross boundaries at decode, and run
    with empty pages poisoned."""
    model = save_model(tmp_path / "model", tiny(4), dtype="float32")
    rng = random.Random(3)
    shared = [rng.randrange(3, VOCABULARY) for _ in range(64)]
    job = {
        "model": model,
        "dtype": "float32",
        "max_model_len": 512,
        "cap": 8,
        "token_budget": 128,
        "poison": True,
        "requests": [
            {
                "id": str(i),
                "prompt": shared + [rng.randrange(3, VOCABULARY) for _ in range(23 + 2 * i)],
                "max_tokens": 12,
                "add_at": [0, 4, 6, 6][i],
            }
            for i in range(4)
        ],
        "settings": settings(tiny(4), "s2", 200 * 16384, block_size=32, slot_bytes=4096),
    }
    source, target = tmp_path / "job.json", tmp_path / "result.json"
    source.write_text(json.dumps(job), encoding="utf-8")
    python(str(HERE / "interpreted_engine.py"), str(source), str(target), **INTERPRETER)
    gpu, cpu = json.loads(target.read_text(encoding="utf-8")), engines.run(job)
    assert gpu["kernel_path"] == "triton-fused"
    assert [output["cached"] for output in gpu["outputs"].values()] == [0, 64, 64, 64]
    for key, output in gpu["outputs"].items():
        assert output["tokens"] == cpu["outputs"][key]["tokens"]
        theirs = cpu["outputs"][key]["logprobs"]
        for ours, stock in zip(output["logprobs"], theirs, strict=True):
            for token in ours.keys() & stock.keys():
                assert ours[token] == pytest.approx(stock[token], abs=1e-4)
