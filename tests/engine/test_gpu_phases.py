"""The phases of `make test-gpu` at tiny shapes: real kernels in the interpreter, real engines."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DRIVER = Path(__file__).parents[1] / "gpu" / "run_phases.py"


def drive(folder: Path, *phases: int, tiny: bool = True) -> tuple[int, dict[str, Any]]:
    """Exit status, and verdicts by number."""
    size, limit = ["--tiny"] if tiny else [], ["--limit-s", "540"]
    numbers = map(str, phases)
    done = subprocess.run(
        [sys.executable, str(DRIVER), "--out", str(folder), *size, *limit, "--only", *numbers],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "VLLM_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    verdict = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))
    return done.returncode, {phase["phase"]: phase for phase in verdict["phases"]}


@pytest.mark.slow  # minutes in the interpreter
def test_machine_kernels_and_speed_are_judged_without_an_engine(tmp_path: Path) -> None:
    code, found = drive(tmp_path, 0, 1, 2)
    assert code == 0, found
    machine, kernels, speed = (found[number]["facts"] for number in range(3))
    assert machine["digests_wrong"] == [] and machine["digests_compared"] > 20
    assert machine["missing"] == {} and machine["copy_bytes_per_s"] > 0
    # Four checks for each of two models; whether a pool is large is not asked of a tiny one.
    assert (kernels["passed"], len(kernels["skipped"]), kernels["failed"]) == (8, 2, {})
    assert speed["verdict"] == "passed"


def test_without_a_gpu_the_phases_are_skipped_and_say_why(tmp_path: Path) -> None:
    code, found = drive(tmp_path, 0, 2, 3, 4, 5, tiny=False)
    assert code == 1, found
    assert {phase["status"] for phase in found.values()} == {"skipped"}
    assert {found[number]["reason"] for number in (0, 2, 3, 4)} == {"there is no CUDA device"}
    assert found[0]["facts"]["digests_wrong"] == []


@pytest.mark.slow  # minutes in the interpreter
def test_every_engine_serves_the_waves_and_agrees_with_the_others(tmp_path: Path) -> None:
    code, found = drive(tmp_path, 3)
    assert code == 0, found[3]["reason"]
    facts = found[3]["facts"]
    assert facts["served"] == ["stock", "s0", "s1", "s2", "d0", "s2 eager"]
    compared = {each["what"]: each for each in facts["comparisons"]}
    # Twelve requests in the roomy waves, twelve in the tight one.
    assert {each["requests"] for each in compared.values()} == {24}
    assert compared["s1 as s0"]["in_bits"] >= 12 and compared["s2 as s0"]["in_bits"] >= 12
    assert compared["s2 eager as s2"]["in_bits"] == 24


@pytest.mark.slow  # two servers
def test_a_campaign_is_recorded_and_replayed_and_gives_a_device_file(tmp_path: Path) -> None:
    code, found = drive(tmp_path, 4, 5)
    assert code == 0, [found[number]["reason"] for number in found]
    runs = found[4]["facts"]["runs"]
    assert sorted(run["organization"] for run in runs) == ["d0", "s2"]
    assert all(run["repeated"] and run["steps"] > 10 for run in runs)
    assert found[5]["facts"]["step_time"]["base_s"] > 0
    assert Path(found[5]["facts"]["device_file"]).is_file()


@pytest.mark.parametrize(
    ("gpu", "device"),
    [
        ("NVIDIA A100-PCIE-40GB", "a100_40gb"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA Imaginary 9000", None),
    ],
)
def test_the_campaign_finds_the_device_file_of_a_gpu(gpu: str, device: str | None) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import phase_campaign; "
        "print(phase_campaign.device_of(sys.argv[2]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(DRIVER.parent), gpu],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"{device}\n", done.stderr
