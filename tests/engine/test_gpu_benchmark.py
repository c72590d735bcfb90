"""benchmarks/gpu_kernels.py on a machine without a GPU: what it launches, and what it says."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
BENCHMARK = HERE.parents[1] / "benchmarks" / "gpu_kernels.py"
INTERPRETER = {"TRITON_INTERPRET": "1", "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def measured(folder: Path, *seconds: str) -> tuple[int, dict[str, Any]]:
    """The exit status, and what was written."""
    result = folder / "result.json"
    done = run(str(HERE / "interpreted_benchmark.py"), str(result), *seconds, **INTERPRETER)
    assert done.returncode in (0, 1), done.stderr[-3000:]
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return done.returncode, found


def test_every_form_is_launched_and_compared_with_contiguous_and_padded_states(
    tmp_path: Path,
) -> None:
    code, found = measured(tmp_path)
    assert (code, found["verdict"], found["below"]) == (0, "passed", [])
    forms = Counter(row["form"] for row in found["rows"])
    # Two batches of four operations.
    assert forms["contiguous"] == forms["padded"] == 8
    assert forms["fused"] == forms["slots"] == forms["a launch a member"] == 2
    assert forms["pages"] == 4
    judged = [row for row in found["rows"] if row["is_judged"]]
    assert len(judged) == 8
    assert {row["to_contiguous"] for row in judged} == {row["to_padded"] for row in judged} == {1}
    assert {row["of_copy"] for row in judged} == {1}


def test_a_paged_form_that_is_slower_than_allowed_fails(tmp_path: Path) -> None:
    code, found = measured(tmp_path, "fused=1.03e-6")  # 1 / 1.03 < 0.98
    assert (code, found["verdict"]) == (1, "failed")
    assert {row["form"] for row in found["below"]} == {"fused"}
    assert found["worst_to_contiguous"] == pytest.approx(1 / 1.03)


def test_a_padded_stride_that_is_faster_than_pages_fails_too(tmp_path: Path) -> None:
    code, found = measured(tmp_path, "padded=0.9e-6")
    assert (code, found["worst_to_contiguous"]) == (1, 1)
    assert {row["form"] for row in found["below"]} == {"fused", "slots", "pages"}


def test_a_slow_form_that_is_not_judged_fails_nothing(tmp_path: Path) -> None:
    code, _ = measured(tmp_path, "a launch a member=1")
    assert code == 0


def test_without_a_gpu_the_benchmark_says_so_in_words_and_as_json(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    done = run(str(BENCHMARK), "--json", str(result), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == os.EX_UNAVAILABLE, done.stderr
    assert json.loads(result.read_text(encoding="utf-8"))["verdict"] == "skipped"
