"""Reads what the engine's scheduler wrote down (`hsexp.engine.recording`) about one episode."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from hsexp.measure.records import STEP_COLUMNS
from runners.vllm.clock import Episode
from runners.vllm.faults import RecordTorn

_FINISHED = "FINISHED_LENGTH_CAPPED"
_REQUEST_ID = re.compile(r"hsexp-(\d+)-(\d+)")


@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """What the scheduler did with a request; see `REQUEST_COLUMNS`."""

    status: str
    first_scheduled_ns: int
    num_preemptions: int
    adopted_tokens: int
    prefill_tokens: int
    replayed_tokens: int
    replayed_output_tokens: int

    @property
    def is_finished(self) -> bool:
        return self.status == _FINISHED


@dataclass(frozen=True, kw_only=True)
class EngineRecord:
    """Steps, requests and counters of one episode."""

    steps: pd.DataFrame
    """Columns of `STEP_COLUMNS`, one row a step."""
    requests: dict[tuple[int, int], EngineRequest]
    """By index in the load and number of retries."""
    counters: dict[str, int]


def read_engine_record(path: Path, episode: Episode) -> EngineRecord:
    """The part of the record that belongs to the episode.

    Raises:
        RecordTorn: it has no end, or the engine did not give its memory back.
    """
    steps: list[list[int]] = []
    requests: dict[tuple[int, int], EngineRequest] = {}
    before: dict[str, int] = {}
    ended = False
    for kind, *values in _lines(path):
        match kind:
            case "step" if values[0] >= episode.begin_ns:
                steps.append(values)
            case "request":
                name, *fields = values
                if key := find_request(name):
                    requests[key] = EngineRequest(
                        **dict(zip(EngineRequest.__dataclass_fields__, fields, strict=True))
                    )
            case "mark" if values[0] < episode.begin_ns:
                before = values[1]
            case "end":
                ended, (_, after, num_live, num_kept) = True, values
    if not ended:
        raise RecordTorn(f"the engine's record has no end: {len(steps)} steps were recorded")
    if num_live or num_kept:
        raise RecordTorn(f"the engine ended with {num_live} live requests, {num_kept} pages held")
    return EngineRecord(
        steps=_step_table(steps, episode),
        requests=requests,
        counters={name: total - before.get(name, 0) for name, total in after.items()},
    )


def find_request(engine_id: str) -> tuple[int, int] | None:
    """Index in the load and number of retries, from the name that the engine gave a request.

    None for a warm-up.
    """
    found = _REQUEST_ID.search(engine_id)
    return None if found is None else (int(found[1]), int(found[2]))


def _lines(path: Path) -> Iterator[list[Any]]:
    """Whole lines; a killed engine may leave a torn last one."""
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                if not line.endswith("\n"):
                    return
                yield json.loads(line)
    except FileNotFoundError:
        raise RecordTorn("the engine has written no record") from None


def _step_table(steps: list[list[int]], episode: Episode) -> pd.DataFrame:
    columns: dict[str, Any] = {
        "first_step": range(len(steps)),
        "num_steps": 1,
        "start_s": [episode.seconds(start) for start, *_ in steps],
        "step_s": [(end - start) / 1e9 for start, end, *_ in steps],
    }
    columns |= {
        name: [step[place] for step in steps]
        for place, name in enumerate(
            ("decode_tokens", "prefill_tokens", "running", "waiting"), start=2
        )
    }
    return pd.DataFrame(columns).astype(STEP_COLUMNS)
