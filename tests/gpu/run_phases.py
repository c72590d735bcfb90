"""python tests/gpu/run_phases.py [--out DIR] [--limit-s 480] [--only N ...] [--tiny]

Tries everything that needs a GPU, in eight minutes at most, and says what came of it
(docs/gpu.md). Each phase is a process of its own, which is killed with its children at its
deadline; none waits for what another one has not done. One line of JSON a phase is printed, and
DIR has them with their facts and logs. The exit status is that of the worst: 0 passed, 1 skipped,
2 late, 3 failed.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from phase import Phase, Verdict, run  # noqa: E402
from phases import LIMIT_S, phases  # noqa: E402

from hsexp.descent import adopt_orphans  # noqa: E402


def drive(chosen: Sequence[Phase], folder: Path, limit_s: float) -> list[Verdict]:
    """Run phases one after the other; what has been found is on disk after each.

    A phase gets its deadline and what earlier ones have left of theirs. Where time is short all the
    same, it is the last ones that lack it.
    """
    adopt_orphans()
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + limit_s
    found: list[Verdict] = []
    for index, phase in enumerate(chosen):
        left = end - time.monotonic()
        kept = sum(later.deadline_s for later in chosen[index + 1 :])
        granted_s = max(min(phase.deadline_s, left), left - kept)
        found.append(
            run(phase, folder, granted_s) if granted_s > 0 else _without_time(phase, limit_s)
        )
        _write(folder, found, limit_s, complete=index + 1 == len(chosen))
        short = found[-1].plain()
        del short["facts"]
        print(json.dumps(short), flush=True)  # noqa: T201
    return found


def _without_time(phase: Phase, limit_s: float) -> Verdict:
    return Verdict(
        phase=phase.number,
        name=phase.name,
        status="late",
        seconds=0.0,
        granted_s=0.0,
        reason=f"the {limit_s:.0f} s of the whole were spent before it began",
        facts=None,
    )


def _write(folder: Path, found: Sequence[Verdict], limit_s: float, *, complete: bool) -> None:
    latest = found[-1]
    _write_json(folder / f"phase-{latest.phase}.json", latest.plain())
    whole: dict[str, Any] = {
        "verdict": worst(found).status if complete else "unfinished",
        "seconds": round(sum(verdict.seconds for verdict in found), 2),
        "limit_s": limit_s,
        "phases": [verdict.plain() for verdict in found],
    }
    _write_json(folder / "verdict.json", whole)


def _write_json(path: Path, value: Any) -> None:
    half = path.with_suffix(".tmp")
    half.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    half.replace(path)


def worst(found: Sequence[Verdict]) -> Verdict:
    return max(found, key=lambda verdict: verdict.severity)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    begun = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")  # a new folder: old steps are not taken
    parser.add_argument("--out", type=Path, default=Path("build/test-gpu") / begun)
    parser.add_argument("--limit-s", type=float, default=LIMIT_S)
    parser.add_argument("--only", type=int, nargs="+", help="numbers of phases")
    parser.add_argument(
        "--tiny", action="store_true", help="tiny shapes on a CPU: tries the phases"
    )
    given = parser.parse_args(arguments)
    out = given.out.absolute()
    chosen = [
        phase
        for phase in phases(out, tiny=given.tiny)
        if given.only is None or phase.number in given.only
    ]
    if not chosen:
        parser.error(f"--only {given.only} names no phase")
    return worst(drive(chosen, out, given.limit_s)).severity


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
