"""Table G-7: effects of retention under SHARE and ISOLATE, and their interaction Kret (Q9)."""

import math

import pandas as pd

from analysis.ledgers import missing_cells
from analysis.runs import Origin, Runs
from analysis.tables import q9
from analysis.tables.beside import PAPER, Number, Quantity, columns, compare, printed_rows
from analysis.tables.registry import derived, table
from analysis.tables.table import Column, Table

_QUANTITIES = (
    Quantity(name="effect_pct", heading="effect, %", spec="+.4f"),
    Quantity(name="ci95_low_pct", heading="95 % low", spec="+.4f"),
    Quantity(name="ci95_high_pct", heading="95 % high", spec="+.4f"),
)
_METHOD = (
    "Mean log effect as percent, with a paired t interval in log space over n seeds (Eqs. G3, G4). "
    "Kret is the effect under SHARE over that under ISOLATE, not a difference of percentages."
)


@table("G-7", block=("q9", "confirmation"))
def from_runs(runs: Runs) -> Table:
    """Effects on both timebases; the ledger's is empty for runs without an episode."""
    effects = {base: q9.effects(q9.throughputs(runs, base)) for base in q9.TIMEBASES}
    has_ledger = q9.has(q9.throughputs(runs, "ledger"))
    positive = _positive_seeds(runs, "ledger" if has_ledger else "span")
    needed = [metric for base, metric in q9.TIMEBASES.items() if has_ledger or base == "span"]
    return _table(
        effects,
        n=len(runs.seeds),
        title=f"Retention effects and their interaction, seeds {runs.seeds_text}, beside the "
        "published ones",
        origin=runs.origin,
        notes=(
            _METHOD,
            *q9.timebase_notes(runs, "ledger" if has_ledger else "span"),
            *positive,
            *runs.notes,
        ),
        missing=missing_cells([(runs, q9.ARMS.values(), needed)]),
    )


@derived("G-7")
def from_paper() -> Table:
    """Ledger rows from Table G-5; span rows from the middle of each printed interval."""
    exact = q9.exact_throughputs()
    return _table(
        {"ledger": q9.effects(exact), "span": {}},
        n=len(exact),
        title="Retention effects and their interaction: ledger rows from Table G-5",
        origin=PAPER,
        here="recomputed",
        notes=(
            _METHOD,
            "Span rows: the paper prints no throughput on the request span, so only the effect in "
            "the middle of each printed interval, in logarithms, can be recomputed. The printed "
            "digits of the interval of delta ISOLATE leave its middle open by 0.0001.",
        ),
    )


def _table(
    effects: dict[str, dict[str, q9.Effect | None]],
    *,
    n: int,
    title: str,
    origin: Origin,
    notes: tuple[str, ...],
    missing: tuple[str, ...] = (),
    here: str = "here",
) -> Table:
    rows = []
    for printed in printed_rows("G-7"):
        base, name = str(printed["timebase"]), str(printed["estimand"])
        paper: dict[str, Number] = {
            "effect_pct": printed["effect"],
            "ci95_low_pct": printed["ci95_low"],
            "ci95_high_pct": printed["ci95_high"],
        }
        if effects[base]:
            values = _values(effects[base][name])
        else:
            values = {"effect_pct": _middle(printed["ci95_low"], printed["ci95_high"])}
        rows.append(
            {
                "timebase": base,
                "estimand": q9.ESTIMANDS[name],
                "role": printed["role"],
                "n": n,
                **compare(_QUANTITIES, values, paper),
            }
        )
    keys = (
        Column(heading="timebase", templates=("{timebase}",)),
        Column(heading="estimand", templates=("{estimand}",)),
        Column(heading="role", templates=("{role}",)),
        Column(heading="n", templates=("{n}",)),
    )
    return Table(
        name="G-7",
        title=title,
        rows=pd.DataFrame(rows),
        views=((*keys, *columns(_QUANTITIES, here)),),
        origin=origin,
        notes=notes,
        missing=missing,
    )


def _values(effect: q9.Effect | None) -> dict[str, Number]:
    if effect is None:
        return {}
    return {
        "effect_pct": effect.percent,
        "ci95_low_pct": effect.interval.low,
        "ci95_high_pct": effect.interval.high,
    }


def _middle(low: float, high: float) -> float:
    """The effect that a paired t interval in log space lies around."""
    logs = (math.log1p(low / 100.0), math.log1p(high / 100.0))
    return 100.0 * math.expm1(math.fsum(logs) / 2.0)


def _positive_seeds(runs: Runs, timebase: str) -> tuple[str, ...]:
    values = q9.log_effects(q9.throughputs(runs, timebase))["Kret"].dropna()
    if values.empty:
        return ()
    lacking = len(runs.seeds) - len(values)
    others = f"; {lacking} more lack a run" if lacking else ""
    return (f"Kret is positive in {int((values > 0.0).sum())} of {len(values)} seeds{others}.",)
