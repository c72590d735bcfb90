"""Table G-6: geometric means of Q9's throughputs, and the effect between them (Eq. G1)."""

import pandas as pd

from analysis.effects import geometric_mean
from analysis.ledgers import missing_cells
from analysis.runs import Origin, Runs
from analysis.tables import q9
from analysis.tables.beside import (
    PAPER,
    Number,
    Quantity,
    columns,
    compare,
    printed_row,
    renamed,
)
from analysis.tables.registry import derived, table
from analysis.tables.table import Column, Table

_MEANS = (
    Quantity(name="s2_geomean_tok_per_s", heading="S2, tok/s", spec=".2f"),
    Quantity(name="s2_retention_geomean_tok_per_s", heading="S2+Retention, tok/s", spec=".2f"),
)
_EFFECT = Quantity(name="effect_pct", heading="effect, %", spec="+.4f")


@table("G-6", block=("q9", "confirmation"))
def from_runs(runs: Runs) -> Table:
    """Means over the seeds of the ledger; on the ledger timebase if the runs have one."""
    timebase = "ledger" if q9.has(q9.throughputs(runs, "ledger")) else "span"
    return _table(
        q9.throughputs(runs, timebase),
        timebase=timebase,
        title=f"Geometric mean throughputs, seeds {runs.seeds_text}, beside the published ones "
        "on the ledger timebase",
        origin=runs.origin,
        notes=(*q9.timebase_notes(runs, timebase), *runs.notes),
        missing=missing_cells([(runs, q9.ARMS.values(), [q9.TIMEBASES[timebase]])]),
    )


@derived("G-6")
def from_paper() -> Table:
    """Geometric means of the values of Table G-5."""
    return _table(
        q9.exact_throughputs(),
        timebase="ledger",
        title="Geometric mean ledger throughputs of the values of Table G-5",
        origin=PAPER,
        here="from G-5",
    )


def _table(
    by_seed: pd.DataFrame,
    *,
    timebase: str,
    title: str,
    origin: Origin,
    notes: tuple[str, ...] = (),
    missing: tuple[str, ...] = (),
    here: str = "here",
) -> Table:
    rows = []
    for mode in q9.MODES:
        means = {
            f"{policy}_geomean_tok_per_s": _geometric_mean(by_seed[f"{mode.lower()}_{policy}"])
            for policy in q9.POLICIES
        }
        effect = q9.effects(by_seed)[f"delta_{mode}"]
        values: dict[str, Number] = {
            **means,
            "effect_pct": None if effect is None else effect.percent,
        }
        rows.append(
            {
                "mode": mode,
                "timebase": timebase,
                "n": len(by_seed),
                **compare((*_MEANS, _EFFECT), values, _paper(mode)),
            }
        )
    keys = (
        Column(heading="reuse", templates=("{mode}",)),
        Column(heading="n", templates=("{n}",)),
    )
    return Table(
        name="G-6",
        title=title,
        rows=pd.DataFrame(rows),
        views=((*keys, *columns((*_MEANS, _EFFECT), here)),),
        origin=origin,
        notes=(
            "Effect: ratio of the two geometric means, equal to the mean log ratio; a mean of "
            "ratios or a ratio of arithmetic means is another number.",
            *notes,
        ),
        missing=missing,
    )


def _geometric_mean(values: pd.Series) -> float | None:
    return None if values.isna().any() else geometric_mean(values)


def _paper(mode: str) -> dict[str, Number]:
    names = [(f"{policy}_geomean", f"{policy}_geomean_tok_per_s") for policy in q9.POLICIES]
    return renamed(printed_row("G-6", mode=mode), [*names, ("relative_effect", "effect_pct")])
