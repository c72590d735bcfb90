"""python tests/gpu/phase_campaign.py [--tiny] --out DIR FACTS.json

Phase 4: a reduced campaign at the width of a 7B. Bursts of requests are served by D0 and by S2,
one cell after the other, each by a fresh engine; steps and traces are recorded, and the simulator
replays both runs with the measured step times. The ledger stays in DIR for phase 5.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import said

sys.path.insert(0, str(Path(__file__).parents[2]))

LEDGER, ENGINE_LOG = "ledger", "campaign.log"

FULL = {
    "batches": [1, 8, 32],
    "prompt_tokens": [64, 512, 1024],
    "output_tokens": 24,
    "gap_s": 1.5,
    "model": "falcon_h1_7b_seeded",
    "organizations": ["d0", "s2"],
    "budget_bytes": 400_000_000,  # of one layer: 17.6 GB of 44 layers, beside 15.2 GB of weights
}
TINY = FULL | {
    "batches": [1, 2],
    "prompt_tokens": [64, 520],
    "output_tokens": 8,
    "gap_s": 0.5,
    "model": "falcon_h1_mini",
    "budget_bytes": 30_000_000,
}


def device_of(gpu: str) -> str | None:
    """The option of conf/device that is this GPU's; a prior names the same GPU as a fitted one."""
    from runners.engines import devices_of

    served = (device.name for device in devices_of(gpu) if device.hardware is not None)
    return next(served, None)


def replayed(ledger: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """What the replay says of each run, and what is wrong with it."""
    from runners.replay import replays

    (table,), _ = replays([f"ledger={ledger}"])
    rows = table.rows.to_dict("records")
    found = [
        {
            "organization": row["organization"],
            "steps": row["num_steps"],
            "equal_steps": row["num_equal_steps"],
            "counters": row["different_counters"],
            "repeated": bool(row["repeated"]),
        }
        for row in rows
    ]
    faults = [
        f"{row['organization']}: the replay differs ({row['first_difference']}; "
        f"{row['different_counters']})"
        for row in rows
        if not row["repeated"]
    ]
    return found, faults


def main(arguments: Sequence[str]) -> int:
    given = said.arguments(__doc__, arguments)
    try:
        import torch
        import vllm  # noqa: F401

        from runners.probe import ProbeConfig, launch_of
    except ImportError as error:
        return said.skip(given.facts, f"cannot be imported: {error}")
    if not given.tiny and not torch.cuda.is_available():
        return said.skip(given.facts, "there is no CUDA device")
    hardware = "cpu" if given.tiny else device_of(torch.cuda.get_device_name())
    if hardware is None:
        gpu = torch.cuda.get_device_name()
        return said.end(given.facts, {}, faults=[f"no option of conf/device is {gpu}"])
    config = ProbeConfig.parse((TINY if given.tiny else FULL) | {"hardware": hardware})
    ledger = given.out / LEDGER
    given.out.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "hsexp", *launch_of(config, ledger)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    (given.out / ENGINE_LOG).write_text(done.stdout + done.stderr, encoding="utf-8")
    facts: dict[str, Any] = {
        "device": hardware,
        "model": config.model,
        "exit_status": done.returncode,
    }
    if done.returncode != 0:
        tail = (done.stdout + done.stderr)[-1000:].strip()
        return said.end(given.facts, facts, faults=[f"the campaign failed: {tail}"])
    runs, faults = replayed(ledger)
    if len(runs) != len(config.organizations):
        faults.append(f"{len(runs)} runs of {len(config.organizations)} are in the ledger")
    return said.end(given.facts, facts | {"runs": runs}, faults=faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
