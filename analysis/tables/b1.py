"""Table B-1: the environment of our runs, as each of them recorded it (Appendix B.1)."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis.ledgers import Ledgers
from analysis.runs import Origin
from analysis.tables.registry import table
from analysis.tables.table import Column, Table

_FACTS = {
    "engine": "engine",
    "device": "device",
    "time_model": "step times",
    "data_kind": "data",
    "code_version": "code",
}
_HOST = {"cpu": "CPU", "num_cores": "cores", "platform": "operating system"}


_CAMPAIGN = "submitted_work"


@table("B-1", lacks="the records behind its values")
def from_ledgers(ledgers: Ledgers) -> Table:
    """Every distinct value of the campaign's accepted runs, and how many runs have it."""
    attempts = ledgers.attempts(_CAMPAIGN)
    counts = Counter(
        fact
        for attempt in attempts[attempts["adopted"]].to_dict("records")
        for fact in _facts({str(name): value for name, value in attempt.items()})
    )
    rows = pd.DataFrame(
        [
            {"item": item, "value": value, "num_runs": count}
            for (item, value), count in counts.items()
        ],
        columns=["item", "value", "num_runs"],
    )
    return Table(
        name="B-1",
        title=f"Environment of the runs of {_CAMPAIGN}, as each recorded it",
        rows=rows,
        views=(
            (
                Column(heading="item", templates=("{item}",)),
                Column(heading="value", templates=("{value}",)),
                Column(heading="runs", templates=("{num_runs:,d}",)),
            ),
        ),
        origin=Origin.of(attempts),
        notes=(
            "An item with several values has a row for each. The paper's table adds what was read "
            "from its machine later.",
        ),
    )


def _facts(attempt: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for column, item in _FACTS.items():
        yield item, str(attempt[column])
    host = json.loads(attempt["host"])
    for key, item in _HOST.items():
        yield item, str(host[key])
    for package, version in json.loads(attempt["versions"]).items():
        yield package, str(version)
