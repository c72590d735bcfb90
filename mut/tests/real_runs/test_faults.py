"""What goes wrong with a real engine is a reason with the end of a log, and leaves no process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fake_runs import fake_run, launch, living, seeds_plan, wait_until_gone, write_script

from hsexp.ledger import Ledger
from runners.vllm import faults
from runners.vllm.faults import RunFault

PROGRAM = Path(__file__).with_name("fake_runs.py")

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"

CASES: list[tuple[dict[str, Any], type[RunFault], str]] = [
    ({"boot": "ValueError: no such model"}, faults.BootFailed, "no such model"),
    ({"boot": OOM}, faults.OutOfMemory, "Tried to allocate"),
    ({"boot": "RuntimeError: No CUDA GPUs are available"}, faults.GpuMissing, "No CUDA GPUs"),
    ({"boot": "hang", "limits": {"boot_s": 0.5}}, faults.BootTimeout, "within 0.5 s"),
    ({"ports_taken": 3}, faults.PortTaken, "Address already in use"),
    ({"die_after_tokens": 5}, faults.EngineDied, "the fake engine has died"),
    (
        {"stall_after_tokens": 5, "limits": {"stall_s": 0.4}},
        faults.EngineStalled,
        "while [123] requests are outstanding",
    ),
    (
        {"refuse": [400, "prompt is too long"]},
        faults.RequestRefused,
        "HTTP 400: prompt is too long",
    ),
    ({"short": 1}, faults.ShortOutput, r"request \d ended with \d of \d output tokens"),
    ({"other_prompt": True}, faults.PromptChanged, "the engine computed others"),
    ({"drop": 9}, faults.ConnectionLost, r"request \d lost 2 connections"),
    ({"labels": {"headroom": "0.19"}}, faults.KnobDiffers, "headroom is 0.19, asked for 0.0"),
    ({"no_end": True}, faults.RecordTorn, "record has no end"),
    (
        {"slow_end_s": 3.0, "limits": {"shutdown_s": 0.3}},
        faults.RecordTorn,
        "did not end within 0.3 s",
    ),
]


@pytest.mark.parametrize(
    ("script", "kind", "reason"),
    CASES,
    ids=[f"{kind.__name__}-{next(iter(s))}" for s, kind, _ in CASES],
)
def test_a_fault_has_its_kind_and_its_reason_and_leaves_no_process(
    tmp_path: Path, script: dict[str, Any], kind: type[RunFault], reason: str
) -> None:
    run = fake_run(tmp_path, **script)
    with pytest.raises(kind, match=reason):
        run.outcome()
    assert run.living() == []


def test_the_end_of_the_log_stands_in_the_notes(tmp_path: Path) -> None:
    run = fake_run(tmp_path, boot="first line\nValueError: no such model")
    with pytest.raises(faults.BootFailed) as caught:
        run.outcome()
    (note,) = caught.value.__notes__
    assert note.splitlines()[1:] == ["first line", "ValueError: no such model"]


def test_a_port_that_another_program_took_is_given_up_for_the_next_one(tmp_path: Path) -> None:
    run = fake_run(tmp_path, ports_taken=2)
    assert run.outcome().metrics["num_finished"] == 3
    assert Path(f"{run.script}.starts").read_text() == "xxx"


def test_a_server_that_fails_as_it_dies_has_died(tmp_path: Path) -> None:
    # Like vLLM, whose front end refuses for a moment after its engine's death.
    run = fake_run(tmp_path, refuse=[500, "EngineCore encountered an issue"], die_after_s=0.8)
    with pytest.raises(faults.EngineDied, match="exit 13"):
        run.outcome()


def test_logs_that_cannot_be_written_fail_the_run_by_name(tmp_path: Path) -> None:
    run = fake_run(tmp_path)
    (tmp_path / "logs").write_text("no folder")
    with pytest.raises(OSError, match="logs"):
        run.outcome()


# -- a campaign ------------------------------------------------------------------------------------


def test_a_campaign_goes_on_behind_a_fault_and_repeats_the_cell_at_the_next_launch(
    tmp_path: Path,
) -> None:
    run = fake_run(tmp_path, ports_taken=3)  # the first cell finds no port, the second one does
    plan = seeds_plan(run.cell, 1, 2)
    launch(tmp_path / "ledger", plan, run.script)
    attempts = Ledger.read(tmp_path / "ledger").attempts().set_index("seed")
    assert attempts["status"].to_dict() == {1: "failed", 2: "ok"}
    assert attempts["reason"][1].startswith("PortTaken: the engine ended while booting (exit 1)")
    assert "OSError: [Errno 98] Address already in use" in attempts["traceback"][1]
    launch(tmp_path / "ledger", plan, run.script)
    ledger = Ledger.read(tmp_path / "ledger")
    assert ledger.attempts()["status"].tolist() == ["failed", "ok", "ok"]
    assert ledger.frame()["seed"].tolist() != []
    assert len(ledger.step_table(plan.cells[1].cell_id)) == 12


def test_a_killed_campaign_leaves_no_engine_behind(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, str(PROGRAM), str(tmp_path)])
    script = tmp_path / "script.json"
    pids, ready = Path(f"{script}.pids"), tmp_path / "ledger" / "logs"
    while not (pids.exists() and list(ready.glob("*/engine.jsonl"))):
        assert process.poll() is None
        time.sleep(0.05)
    assert len(living(script)) == 2
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert wait_until_gone(script) == []


def test_a_script_reports_what_it_is_asked_for(tmp_path: Path) -> None:
    # Guards the tests above: a wrong label is the only reason for KnobDiffers.
    run = fake_run(tmp_path)
    write_script(run.script, run.cell, labels={"cap": "7", "pinning": "k3"})
    with pytest.raises(faults.KnobDiffers, match="cap is 7, asked for 63; pinning is k3"):
        run.outcome()
