"""Real launches that take a second or two: four requests, or a trace of three."""

import io
import subprocess
from pathlib import Path

import commands
from hydra import compose, initialize_config_dir
from rich.console import Console

from hsexp.config.catalog import CONF
from hsexp.config.launch import parse_launch
from runners.launch import Result, run_launch

SMALL = ("stage=run", "workers=1", "workload.num_requests=4", "seeds=[7]", "organization=s2")

SPILL = (
    "campaign=trace",
    "workload.path=spill.csv",
    "organization=s2",
    "budget=bytes",
    "budget.bytes=12000000",
    "scheduler.stall_steps=1",
)
"""With `admission.cap=63` the cell fails: requests outgrow the memory and preempt each other. With
a cap of 1 or 2 none is preempted."""


def carried_out(*overrides: str, analyse: bool = False) -> tuple[Result, str]:
    """A launch in this process; its result and what it printed.

    Args:
        analyse: make tables and figures, as a command that is not a job of a sweep.
    """
    console = Console(file=io.StringIO(), width=200)
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        launch = parse_launch(compose("config", list(overrides)))
        result = run_launch(launch, list(overrides), console, analyse=analyse)
    assert isinstance(console.file, io.StringIO)
    return result, console.file.getvalue()


def start_sweep(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """`python -m hsexp -m ARGUMENTS` in a folder and a process group of its own."""
    return commands.start(
        "-m",
        *arguments,
        cwd=folder,
        env=commands.environment(RAY_USAGE_STATS_ENABLED="0"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def swept(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run a sweep to its end; exit code, everything printed."""
    process = start_sweep(folder, *arguments)
    printed, _ = process.communicate()
    return process.returncode, printed


def write_trace(path: Path, *requests: str) -> None:
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *requests, ""]))
