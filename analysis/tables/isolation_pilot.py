"""Isolation pilot: the effect of headroom with and without reuse between requests (C.1)."""

import pandas as pd

from analysis.effects import relative_changes
from analysis.ledgers import missing_cells
from analysis.published import published_value
from analysis.runs import THROUGHPUT, Runs
from analysis.tables.beside import Number, Quantity, columns, compare
from analysis.tables.c4 import printed_name
from analysis.tables.registry import table
from analysis.tables.table import Column, Table
from hsexp.config.arm import Arm

_EFFECT = Quantity(name="headroom_effect_pct", heading="effect of f = 0.19, %", spec="+.2f")
_PRINTED = {
    ("s2", "share"): "isolation pilot S2 f=0.19 effect, reuse allowed",
    ("s2", "isolate"): "isolation pilot S2 f=0.19 effect, cross-request reuse blocked",
    ("d0_m512", "share"): "isolation pilot D0-M512 f=0.19 effect, reuse allowed",
    ("d0_m512", "isolate"): "isolation pilot D0-M512 f=0.19 effect, blocked",
}
"""Name of each effect in the published running text."""


@table("isolation-pilot", block=("isolation_pilot", "pilot"), lacks="throughput of its cells")
def from_runs(runs: Runs) -> Table:
    """Mean over seeds of the relative change from f = 0 to f = 0.19."""
    rows = []
    arms = []
    for organization, isolation in _PRINTED:
        reserved, base = (
            Arm(organization=organization, isolation=isolation, headroom=f) for f in (0.19, 0.0)
        )
        arms += [base, reserved]
        pairs = runs.pairs(reserved, base, THROUGHPUT)
        here: dict[str, Number] = {}
        if not pairs.undefined:
            here["headroom_effect_pct"] = float(relative_changes(pairs).mean())
        printed = published_value("text", "C.1", _PRINTED[organization, isolation])
        rows.append(
            {
                "organization": printed_name(base),
                "reuse": isolation.upper(),
                "n": len(pairs.numerator),
                **compare((_EFFECT,), here, {"headroom_effect_pct": printed}),
            }
        )
    keys = tuple(
        Column(heading=heading, templates=(template,))
        for heading, template in (("org.", "{organization}"), ("reuse", "{reuse}"), ("n", "{n}"))
    )
    return Table(
        name="isolation-pilot",
        title="Throughput effect of headroom with and without reuse between requests, seeds "
        f"{runs.seeds_text}, beside the published means",
        rows=pd.DataFrame(rows),
        views=((*keys, *columns((_EFFECT,))),),
        origin=runs.origin,
        notes=(
            "The paper does not give the pilot's budget: C-4's low one is assumed "
            "(conf/campaign/isolation_pilot.yaml).",
            *runs.notes,
        ),
        missing=missing_cells([(runs, arms, [THROUGHPUT])]),
    )
