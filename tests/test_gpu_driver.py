"""The driver of `make test-gpu` with stub phases: deadlines, kills, verdicts, exit status."""

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT

from hsexp.config.catalog import read_option
from hsexp.engine.settings import EngineSettings
from hsexp.sim.config import SchedulerConfig
from hsexp.sim.scheduler import SimScheduler
from hsexp.workload import Request
from hsexp.workload.request import Segment

FOLDER = ROOT / "tests" / "gpu"

DRIVER = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from phase import Phase
from run_phases import drive, worst
given = json.loads(sys.argv[3])
chosen = [
    Phase(number=n, name=f"stub {n}", command=(sys.executable, "-c", text), deadline_s=deadline_s)
    for n, (text, deadline_s) in enumerate(given["phases"])
]
sys.exit(worst(drive(chosen, Path(sys.argv[2]), given["limit_s"])).severity)
"""

WRITES = "open(sys.argv[-1], 'w').write(json.dumps"
PASSES = f"import json, sys; {WRITES}({{'found': 7}}))"
SKIPS = f"import json, sys; {WRITES}({{'reason': 'no GPU'}})); sys.exit(69)"
FAILS = "import sys; print('what went wrong'); sys.exit(5)"
HANGS = "import time; time.sleep(60)"
SILENT = "pass"
HALF = "import sys; open(sys.argv[-1], 'w').write('{')"


def drive(
    folder: Path, *phases: tuple[str, float], limit_s: float = 60.0
) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
    """Exit status, verdict.json, and the printed lines."""
    given = json.dumps({"phases": phases, "limit_s": limit_s})
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(FOLDER), str(folder), given],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    verdict: dict[str, Any] = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))
    return done.returncode, verdict, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("program", "status", "code", "reason"),
    [
        (PASSES, "passed", 0, None),
        (SKIPS, "skipped", 1, "no GPU"),
        (HANGS, "late", 2, "killed at its deadline of 1 s"),
        (FAILS, "failed", 3, "what went wrong"),
        (SILENT, "failed", 3, "has written nothing"),
        (HALF, "failed", 3, "has written nothing"),
    ],
)
def test_a_phase_has_the_verdict_that_its_end_gives(
    program: str, status: str, code: int, reason: str | None, tmp_path: Path
) -> None:
    returned, verdict, lines = drive(tmp_path, (program, 1.0), limit_s=1.0)
    (phase,) = verdict["phases"]
    assert (returned, phase["status"], verdict["verdict"]) == (code, status, status)
    assert phase["reason"] is None if reason is None else reason in phase["reason"]
    assert json.loads((tmp_path / "phase-0.json").read_text(encoding="utf-8")) == phase
    assert lines == [{key: value for key, value in phase.items() if key != "facts"}]


def test_what_a_phase_has_written_is_in_its_verdict(tmp_path: Path) -> None:
    _, verdict, _ = drive(tmp_path, (PASSES, 5.0))
    assert verdict["phases"][0]["facts"] == {"found": 7}


def test_a_phase_that_hangs_or_fails_does_not_keep_the_next_from_running(tmp_path: Path) -> None:
    start = time.monotonic()
    code, verdict, _ = drive(
        tmp_path, (HANGS, 0.5), (FAILS, 1.0), (PASSES, 1.0), (SKIPS, 1.0), limit_s=3.5
    )
    assert time.monotonic() - start < 20
    statuses = [phase["status"] for phase in verdict["phases"]]
    assert statuses == ["late", "failed", "passed", "skipped"]
    assert (code, verdict["verdict"]) == (3, "failed")


def test_a_phase_gets_the_time_that_earlier_ones_have_left(tmp_path: Path) -> None:
    _, verdict, _ = drive(tmp_path, (PASSES, 20.0), (PASSES, 10.0), limit_s=30.0)
    first, second = (phase["granted_s"] for phase in verdict["phases"])
    assert first == pytest.approx(20, abs=0.1)
    assert 20 < second < 30


def test_the_whole_ends_at_its_limit_whatever_the_deadlines_say(tmp_path: Path) -> None:
    start = time.monotonic()
    code, verdict, _ = drive(tmp_path, (HANGS, 2.0), (PASSES, 50.0), limit_s=1.0)
    assert time.monotonic() - start < 20
    assert [phase["status"] for phase in verdict["phases"]] == ["late", "late"]
    assert "spent before it began" in verdict["phases"][1]["reason"]
    assert code == 2


def test_children_of_a_killed_phase_end_with_it_even_in_a_session_of_their_own(
    tmp_path: Path,
) -> None:
    pids = tmp_path / "pids"
    spawns = f"""
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
shell = f"{{sys.executable}} -c 'import time; time.sleep(60)' & echo $! >> {pids}; sleep 60"
children = [subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True),
            subprocess.Popen(["sh", "-c", shell], start_new_session=True)]
with open({str(pids)!r}, "a") as file:
    for child in children:
        print(child.pid, file=file)
time.sleep(60)
"""
    _, verdict, _ = drive(tmp_path / "out", (spawns, 3.0), (PASSES, 5.0), limit_s=8.0)
    assert [phase["status"] for phase in verdict["phases"]] == ["late", "passed"]
    known = [int(text) for text in pids.read_text(encoding="utf-8").split()]
    assert len(known) == 4
    assert [pid for pid in known if Path(f"/proc/{pid}").exists()] == []


def test_children_that_a_phase_leaves_behind_end_with_it(tmp_path: Path) -> None:
    leaves = f"""
import subprocess, sys
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
{PASSES}
"""
    code, _, _ = drive(tmp_path / "out", (leaves, 10.0))
    assert code == 0
    pid = int((tmp_path / "pid").read_text(encoding="utf-8"))
    assert not Path(f"/proc/{pid}").exists()


def test_a_killed_driver_has_said_what_was_found(tmp_path: Path) -> None:
    given = json.dumps({"phases": [(PASSES, 5.0), (HANGS, 50.0)], "limit_s": 60.0})
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(FOLDER), str(tmp_path), given],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    assert json.loads(driver.stdout.readline())["status"] == "passed"
    driver.kill()
    driver.wait()
    verdict = json.loads((tmp_path / "verdict.json").read_text(encoding="utf-8"))
    assert verdict["verdict"] == "unfinished"
    assert [phase["status"] for phase in verdict["phases"]] == ["passed"]


# -- the real list ---------------------------------------------------------------------------------


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("phases")


@pytest.mark.parametrize("tiny", [False, True])
def test_the_deadlines_of_all_phases_fit_into_eight_minutes(listed: Any, tiny: bool) -> None:
    found = listed.phases(Path("out"), tiny=tiny)
    assert [phase.number for phase in found] == list(range(6))
    assert sum(phase.deadline_s for phase in found) <= listed.LIMIT_S <= 480
    assert all(Path(phase.command[1]).is_file() for phase in found)


def test_the_first_three_phases_get_nothing_of_what_others_leave(listed: Any) -> None:
    found = listed.phases(Path("out"), tiny=False)
    assert [str(Path("out")) in phase.command for phase in found] == [False] * 3 + [True] * 3


def test_without_a_gpu_every_phase_is_skipped_for_a_reason_or_has_judged_the_sources(
    tmp_path: Path,
) -> None:
    """The device file alone, which needs neither GPU nor vLLM to see that there are no steps."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / "run_phases.py"), "--out", str(tmp_path), "--only", "5"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )
    assert done.returncode == 1, done.stderr
    (line,) = map(json.loads, done.stdout.splitlines())
    assert line["status"] == "skipped" and "left no ledger" in line["reason"]


# -- what engines are compared by ------------------------------------------------------------------


def result(*waves: tuple[list[dict[str, int]], list[int]], logprob: float = -1.0) -> dict[str, Any]:
    """An engine's answers: by wave, its schedule and the tokens of its only request."""
    return {
        "waves": [
            {
                "schedule": schedule,
                "outputs": [
                    {
                        "tokens": tokens,
                        "logprobs": [
                            {str(token): logprob, str(token + 1): logprob - 0.01, "99": -9.0}
                            for token in tokens
                        ],
                    }
                ],
            }
            for schedule, tokens in waves
        ]
    }


ONE, OTHER = [{"0": 5}, {"0": 1}], [{"0": 4}, {"0": 2}]


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("compare_waves").compare


def test_equal_schedules_ask_for_equal_bits(compare: Any) -> None:
    same = compare("", result((ONE, [3, 4])), result((ONE, [3, 4])))
    assert (same.faults, same.in_bits) == ([], 1)
    near = compare("", result((ONE, [3, 4]), logprob=-1.0000001), result((ONE, [3, 4])))
    assert near.faults == ["wave 0, request 0: bits of probabilities differ under one schedule"]


def test_other_schedules_ask_for_tokens_and_count_ties(compare: Any) -> None:
    same = compare("", result((ONE, [3, 4]), logprob=-1.1), result((OTHER, [3, 4])))
    assert (same.faults, same.in_bits, same.ties) == ([], 0, 0)
    tie = compare("", result((ONE, [3, 5, 80])), result((OTHER, [3, 4, 8])))
    assert (tie.faults, tie.ties) == ([], 1)
    wrong = compare("", result((ONE, [3, 99])), result((OTHER, [3, 4])))
    assert wrong.faults == ["wave 0, request 0: token 1 is 99, expected 4"]


def test_waves_that_have_to_have_one_schedule_may_not_differ_in_it(compare: Any) -> None:
    found = compare("", result((ONE, [3])), result((OTHER, [3])), bits_in=(0,))
    assert found.faults == ["wave 0: schedules differ"]


def test_after_another_schedule_the_same_one_asks_for_tokens_alone(compare: Any) -> None:
    """What is in the caches came from other batches by then."""
    ours = result((ONE, [3]), (ONE, [3]), logprob=-1.1)
    found = compare("", ours, result((OTHER, [3]), (ONE, [3])))
    assert (found.faults, found.in_bits) == ([], 0)


class EvenSteps:
    """Every step takes a millisecond."""

    reads_context = False

    def step_ns(self, decode_tokens: int, prefill_tokens: int, context: Any = None) -> int:
        return 1_000_000


@pytest.mark.parametrize("organization", ["s0", "s1", "s2", "d0"])
@pytest.mark.parametrize("size", ["FULL", "TINY"])
def test_the_last_wave_evicts_and_preempts_in_every_organization(
    size: str, organization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulator schedules it as vLLM does, so that no GPU is needed to see whether it fits."""
    for folder in (FOLDER, ROOT / "tests" / "engine"):
        monkeypatch.syspath_prepend(str(folder))
    engines = importlib.import_module("phase_engines")
    sizes = getattr(engines, size)
    chosen = EngineSettings.parse(engines.settings_of(sizes, organization))
    waves, max_tokens = engines.waves_of(sizes, 512)
    requests = [
        Request(
            request_id=index,
            arrival_s=0.0,
            prompt_tokens=len(prompt),
            output_tokens=max_tokens[-1],
            segments=(Segment(content_id=index % 3, end_tokens=2 * sizes.block),),
        )
        for index, prompt in enumerate(waves[-1])
    ]
    scheduler = SchedulerConfig.parse(read_option("scheduler", "v1") | {"fast_forward": False})
    memory = chosen.memory()
    SimScheduler(
        requests, memory, scheduler, EvenSteps(), cap=sizes.cap, max_model_tokens=sizes.max_tokens
    ).run()
    counters = memory.cache.counters
    assert counters.preemptions > 0
    assert counters.lost_checkpoints + counters.lost_blocks > 0
