"""Table G-4: what retention adds to the state depths of a seed, and the attention bracket (Q8)."""

import pandas as pd

from analysis.effects import log_effect_percent, log_ratios
from analysis.intervals import paired_t_percent
from analysis.ledgers import missing_cells
from analysis.published import published_value
from analysis.runs import THROUGHPUT, Runs
from analysis.tables.beside import (
    PAPER,
    Number,
    Quantity,
    columns,
    compare,
    less,
    printed_row,
    printed_rows,
    renamed,
)
from analysis.tables.g3 import ARMS, DEPTHS, METRICS, depths, grid_depths
from analysis.tables.registry import derived, table
from analysis.tables.table import Column, Table

_QUANTITIES = tuple(
    Quantity(name=f"delta_{name}_tokens", heading=f"{heading}, increase", spec="+,.2f")
    for name, (_, heading) in DEPTHS.items()
)
_ENDS = ("low", "high")
_BRACKET = tuple(
    Quantity(name=f"delta_a_max_{end}_tokens", heading=f"Amax increase, {end}", spec="+,.2f")
    for end in _ENDS
)
_BRACKET_NOTE = (
    "Bracket: from M0 with retention less M1 without, to M1 with less M0 without. It "
    "bounds a reconstruction and is not a confidence interval (Appendix G.2)."
)
_KEY = Column(heading="seed", templates=("{seed}",))


@table("G-4", block=("q8", "lifetime"))
def from_runs(runs: Runs) -> Table:
    """S2+Retention minus S2, seed by seed."""
    rows = []
    for seed in runs.seeds:
        base, kept = (depths(runs, arm, seed) for arm in ARMS.values())
        here = {f"delta_{name}_tokens": less(kept[name], base[name]) for name in DEPTHS}
        here["delta_a_max_low_tokens"] = less(kept["m0_a_max"], base["m1_a_max"])
        here["delta_a_max_high_tokens"] = less(kept["m1_a_max"], base["m0_a_max"])
        rows.append({"seed": seed, **compare((*_QUANTITIES, *_BRACKET), here, _paper(seed))})
    is_traced = any(row["delta_a_max_low_tokens"] is not None for row in rows)
    return Table(
        name="G-4",
        title=f"Depth increases with retention, tokens a request, seeds {runs.seeds_text}, "
        "beside the published ones",
        rows=pd.DataFrame(rows),
        views=(
            (_KEY, *columns(_QUANTITIES)),
            *(((_KEY, *columns(_BRACKET)),) if is_traced else ()),
        ),
        origin=runs.origin,
        notes=(
            "Means over the first admissions of a run.",
            *((_BRACKET_NOTE,) if is_traced else ()),
            *_throughput_note(runs),
            *runs.notes,
        ),
        missing=missing_cells([(runs, ARMS.values(), METRICS)]),
    )


@derived("G-4")
def from_paper() -> Table:
    """Differences of the depths of Table G-3, exact on the grid, and the brackets of Section 6."""
    base_name, kept_name = ARMS
    rows = []
    for seed in (int(row["seed"]) for row in printed_rows("G-4")):
        base, kept = (grid_depths(seed, name) for name in (base_name, kept_name))
        here: dict[str, Number] = {
            f"delta_{name}_tokens": float(kept[name] - base[name]) for name in DEPTHS
        }
        here["delta_a_max_low_tokens"] = float(kept["m0_a_max"] - base["m1_a_max"])
        here["delta_a_max_high_tokens"] = float(kept["m1_a_max"] - base["m0_a_max"])
        rows.append({"seed": seed, **compare((*_QUANTITIES, *_BRACKET), here, _paper(seed))})
    return Table(
        name="G-4",
        title="Depth increases with retention: differences of the depths of Table G-3",
        rows=pd.DataFrame(rows),
        views=(
            (_KEY, *columns(_QUANTITIES, here="from G-3")),
            (_KEY, *columns(_BRACKET, here="from G-3")),
        ),
        origin=PAPER,
        notes=(_BRACKET_NOTE,),
    )


def _throughput_note(runs: Runs) -> tuple[str, ...]:
    """Note on the effect of retention on throughput (Section 5.5)."""
    base, kept = ARMS.values()
    pairs = runs.pairs(kept, base, THROUGHPUT)
    if pairs.undefined or pairs.num_pairs < 2:
        return ()
    logs = log_ratios(pairs)
    interval = paired_t_percent(logs)
    name = "Q8 aggregate throughput effect, {} timebase"
    span = published_value("text", "5.5", name.format("request-span"))
    ledger = published_value("text", "5.5", name.format("ledger"))
    return (
        f"Throughput on the request span: {log_effect_percent(logs):+.1f} % (95 % paired t "
        f"interval {interval.low:+.1f} to {interval.high:+.1f}, n = {interval.n}); the paper gives "
        f"{span:+.1f} % on this timebase and {ledger:+.1f} % on the ledger's.",
    )


def _paper(seed: int) -> dict[str, Number]:
    names = [(f"delta_{name}", f"delta_{name}_tokens") for name in DEPTHS]
    names += [(f"delta_a_max_bracket_{end}", f"delta_a_max_{end}_tokens") for end in _ENDS]
    return renamed(printed_row("G-4", seed=seed), names)
