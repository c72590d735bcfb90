"""The phases of `make test-gpu`, in order. None needs what a later one does, 0 to 2 need no
engine."""

import sys
from pathlib import Path

from phase import Phase

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

LIMIT_S = 480.0
"""Of the whole; the deadlines add up to a little less."""

_INTERPRETER = (("TRITON_INTERPRET", "1"), ("OMP_NUM_THREADS", "1"))


def phases(out: Path, *, tiny: bool) -> list[Phase]:
    """All phases.

    Args:
        out: folder for what a phase leaves to later ones.
        tiny: tiny shapes on this CPU, the kernels in Triton's interpreter.
    """
    size = ("--tiny",) if tiny else ()
    kernels = _INTERPRETER if tiny else ()
    benchmark = (
        (str(ROOT / "tests" / "engine" / "interpreted_benchmark.py"),)
        if tiny
        else (str(ROOT / "benchmarks" / "gpu_kernels.py"), "--min-ratio", "0.98", "--json")
    )
    engines = (*size, "--out", str(out))
    return [
        Phase(
            number=0,
            name="machine: GPU, driver, copy bandwidth, digests of vLLM's sources",
            command=_program("phase_machine", *size),
            deadline_s=25.0,
        ),
        Phase(
            number=1,
            name="kernels: bits against stock, Granite's states, pools of 40 GiB",
            command=_program("phase_kernels", *size),
            deadline_s=75.0,
            environment=kernels,
        ),
        Phase(
            number=2,
            name="speed: paged states against contiguous and padded ones",
            command=(sys.executable, *benchmark),
            deadline_s=45.0,
            environment=kernels,
        ),
        Phase(
            number=3,
            name="engines: one schedule, equal bits; another schedule, equal tokens",
            command=_program("phase_engines", *engines),
            deadline_s=150.0,
        ),
        Phase(
            number=4,
            name="campaign: two cells at the width of a 7B, recorded and replayed",
            command=_program("phase_campaign", *engines),
            deadline_s=165.0,
        ),
        Phase(
            number=5,
            name="device: step times fitted to the campaign",
            command=_program("phase_device", *engines),
            deadline_s=15.0,
        ),
    ]


def _program(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, str(HERE / f"{name}.py"), *arguments)
