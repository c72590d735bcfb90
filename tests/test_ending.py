"""How commands end: signals, lost output, folders that cannot be written, no metadata."""

import ctypes
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import commands
import pytest

from hsexp import ending
from hsexp.ending import Stopped, end_well
from hsexp.ledger import Ledger
from runners.interrupt import STOPS

SMALL = ("campaign=q6", "seeds=[76400]", "workload.num_requests=20", "workers=1", "stage=run")
ONE = (*SMALL, "organization=s2", "budget=b63", "admission.headroom=0")
LONG = ("campaign=q6", "workers=1", "stage=run")
"""Minutes of cells."""


def shell(command: str, *, cwd: Path, **how: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=cwd,
        env={**commands.environment(), "PY": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        **how,  # type: ignore[call-overload]
    )


# -- signals ---------------------------------------------------------------------------------------


def group_ends(group: int) -> bool:
    """Whether nothing of a process group is left in a moment."""
    give_up = time.monotonic() + 10.0
    while time.monotonic() < give_up:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def _hear_all() -> None:
    """A shell ignores SIGINT in its background, and nohup SIGHUP; both would stay so."""
    for number in STOPS:
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("sweep", [(), ("-m",)], ids=["launch", "sweep"])
@pytest.mark.parametrize("number", STOPS, ids=lambda number: signal.Signals(number).name)
def test_a_signal_stops_a_launch_with_one_line_and_keeps_what_has_ended(
    number: signal.Signals, sweep: tuple[str, ...], tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    process = commands.start(
        *sweep, *LONG, f"ledger={ledger}", cwd=tmp_path, start_new_session=True,
        preexec_fn=_hear_all,
    )  # fmt: skip
    commands.wait_for_attempts(ledger, 2)
    os.killpg(process.pid, number)  # as a terminal does, and `timeout`, and a service manager
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert err == ""
    stopped = [line for line in out.splitlines() if "stopped" in line and "│" not in line]
    assert re.fullmatch(
        r"q6: stopped; \d+ runs of this launch are recorded; rerun the command to resume",
        stopped[0],
    )
    attempts = Ledger.read(ledger).attempts()
    assert len(attempts) >= 2
    assert set(attempts["status"]) == {"ok"}
    assert group_ends(process.pid)


@pytest.mark.parametrize("number", STOPS, ids=lambda number: signal.Signals(number).name)
@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("hsexp", ("campaign=q6", "stage=plan")),
        ("hsexp", ("analysis", "compare=paper")),
        ("analysis", ("compare=paper",)),
        ("figures", ("source=paper",)),
        ("runners.replay", ("ledger=ledgers",)),
    ],
    ids=["plan", "hsexp analysis", "analysis", "figures", "replay"],
)
def test_a_signal_at_any_time_ends_a_command_without_a_traceback(
    number: signal.Signals, module: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    process = commands.start(
        *arguments, cwd=tmp_path, module=module, preexec_fn=_hear_all, start_new_session=True
    )
    time.sleep(1.0)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 1
    # Before the first line of ours the signal ends the process; a command that was faster is done.
    assert process.returncode in (-number, 128 + number, 0)


def test_a_signal_inside_of_an_exec_ends_with_its_own_code(tmp_path: Path) -> None:
    """Python ends itself by SIGINT where a bare KeyboardInterrupt leaves the `exec` of a text."""
    (tmp_path / "program.py").write_text(
        "import sys\n"
        "from hsexp.ending import end_well\n"
        "def run():\n"
        "    exec('import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)')\n"
        "sys.exit(end_well(run))\n"
    )
    done = commands.run(cwd=tmp_path, module="program", env=commands.environment(tmp_path))
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "stopped by SIGTERM\n")


def test_a_stop_is_one_line_and_its_code_and_a_reported_one_is_the_code_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def terminate() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    def stop_reported() -> None:
        raise Stopped

    assert end_well(terminate) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "stopped by SIGTERM\n"
    assert end_well(stop_reported) == 128 + signal.SIGINT
    assert capsys.readouterr().err == ""
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert end_well(lambda: os.kill(os.getpid(), signal.SIGHUP)) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


# -- output that is lost ---------------------------------------------------------------------------

SINKS = {
    "closed": (">&-", "error: standard output cannot be written: Bad file descriptor\n"),
    "full": (">/dev/full", "error: standard output cannot be written: No space left on device\n"),
    "a reader who leaves": ("| head -1", ""),
    "nothing at all": (">&- 2>&- <&-", ""),
    "full for all": (">/dev/full 2>&1", ""),
}


@pytest.mark.parametrize(("sink", "said"), SINKS.values(), ids=SINKS)
@pytest.mark.parametrize("sweep", ["", "-m"], ids=["launch", "sweep"])
def test_output_that_is_lost_costs_a_line_and_the_exit_code_and_no_run(
    sink: str, said: str, sweep: str, tmp_path: Path
) -> None:
    done = shell(f"$PY -m hsexp {sweep} {shlex.join(ONE)} ledger=l {sink}", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, said)
    assert Ledger.read(tmp_path / "l").attempts()["status"].tolist() == ["ok"]


@pytest.mark.parametrize(("sink", "said"), SINKS.values(), ids=SINKS)
def test_tables_are_written_although_nobody_can_see_them(
    sink: str, said: str, tmp_path: Path
) -> None:
    done = shell(f"$PY -m analysis table=E-5 source=paper out=out {sink}", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, said)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "E-5.csv", "E-5.md", "E-5.tex",
    ]  # fmt: skip


def test_a_closed_descriptor_is_no_files(tmp_path: Path) -> None:
    # Otherwise the first file that is opened becomes descriptor 1, and children print into it.
    program = (
        "import sys; from hsexp.ending import end_well\n"
        "def command():\n"
        f"    file = open({str(tmp_path / 'journal')!r}, 'w')\n"
        "    return 0 if file.fileno() > 2 else 9\n"
        "sys.exit(end_well(command))"
    )
    done = shell(f'$PY -c "{program}" >&- 2>&- <&-', cwd=tmp_path)
    assert done.returncode == 0


# -- files and folders -----------------------------------------------------------------------------

_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 24, 1, 2


def _obey_permissions() -> None:
    """Even as root: drop what root may do with any file, for the program that is executed."""
    if os.geteuid() == 0:
        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
            ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (f"hsexp {shlex.join(ONE)}", "ledgers/q6/sim"),
        (f"hsexp -m {shlex.join(ONE)}", "hydra.sweep.dir, "),
        ("analysis table=E-5 source=paper", "ledgers/analysis/paper: "),
        ("figures source=paper", "ledgers/analysis/paper"),
        ("analysis calibrate source=paper", "ledgers/analysis/paper: "),
    ],
    ids=["launch", "sweep", "analysis", "figures", "calibrate"],
)
def test_a_folder_that_cannot_be_written_is_named_in_one_line(
    command: str, reason: str, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o555)
    done = shell(f"$PY -m {command}", cwd=folder, preexec_fn=_obey_permissions)
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and reason in line and "Permission denied" in line
    assert done.returncode == 2


def test_only_a_fault_of_a_file_or_disk_is_one_line() -> None:
    def missing() -> None:
        Path("/nowhere/at/all").read_text()

    with pytest.raises(FileNotFoundError):  # a bug of ours, whose traceback is wanted
        end_well(missing)
    assert ending.file_fault(OSError(28, "No space left on device", "a/b")) == (
        "a/b: No space left on device"
    )


# -- no metadata -----------------------------------------------------------------------------------

NO_METADATA = """
from importlib.metadata import MetadataPathFinder as Finder

stock = Finder.find_distributions
Finder.find_distributions = staticmethod(
    lambda *args, **kwargs: [
        found for found in stock(*args, **kwargs) if found.metadata["Name"] != "hsexp"
    ]
)
"""
"""A `sitecustomize`: as if the sources had been copied and not installed."""


@pytest.fixture
def from_sources(tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(NO_METADATA)
    env = commands.environment()
    env["PYTHONPATH"] = os.pathsep.join([str(folder), env["PYTHONPATH"]])
    return lambda *arguments: commands.run(*arguments, cwd=tmp_path, env=env)


def test_sources_that_are_not_installed_run_and_say_so_in_the_ledger(
    from_sources: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    done = from_sources(*ONE, "ledger=l")
    assert (done.returncode, done.stderr) == (0, "")
    (version,) = Ledger.read(tmp_path / "l").attempts()["code_version"]
    assert version.startswith("unknown+")


def test_vllm_is_refused_where_it_would_not_find_the_plugin(
    from_sources: Callable[..., "subprocess.CompletedProcess[str]"],
) -> None:
    pytest.importorskip("vllm", reason="another reason comes first without vllm")
    done = from_sources("campaign=q1", "engine=vllm", "device=cpu", "model=falcon_h1_mini")
    assert done.returncode == 2
    assert "finds its plugin only when it is installed" in done.stderr
