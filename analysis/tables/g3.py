"""Table G-3: absolute state depths of S2 and S2+Retention by seed (Q8)."""

from collections.abc import Callable
from fractions import Fraction

import pandas as pd

from analysis.ledgers import missing_cells
from analysis.published import published_value
from analysis.runs import Runs
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
from analysis.tables.registry import derived, table
from analysis.tables.table import Column, Table
from hsexp.config.arm import Arm
from hsexp.trace.episodes import Episode

ARMS = {
    "S2": Arm(organization="s2", retention="off"),
    "S2+Retention": Arm(organization="s2", retention="k2"),
}
"""The paper's name of each arm."""

DEPTHS = {
    "j_adopt": ("adopted_tokens_mean", "Jadopt"),
    "m1_r_max": ("recurrent_depth_mean", "Rmax (M1)"),
    "m1_a_max": ("attention_depth_mean", "Amax (M1)"),
}
"""Ledger metric and heading, by the paper's column."""

METRICS = tuple(metric for metric, _ in DEPTHS.values())
_QUANTITIES = tuple(
    Quantity(name=f"{name}_tokens", heading=heading, spec=",.2f")
    for name, (_, heading) in DEPTHS.items()
)
_LOWER_MASK = {"m0_r_max": "Rmax (M0)", "m0_a_max": "Amax (M0)"}
_COMPUTED: dict[str, Callable[[Episode], int]] = {
    "m0_r_max": lambda episode: episode.computed.recurrent,
    "m0_a_max": lambda episode: episode.computed.attention,
}
_LOWER = tuple(
    Quantity(name=f"{name}_tokens", heading=heading, spec=",.2f")
    for name, heading in _LOWER_MASK.items()
)
_KEYS = (
    Column(heading="seed", templates=("{seed}",)),
    Column(heading="arm", templates=("{arm}",)),
)


_GAPS = tuple(
    Column(group="GapR", heading=mask, templates=(f"{{gap_r_{mask.lower()}_tokens:,.2f}}",))
    for mask in ("M0", "M1")
)


@table("G-3", block=("q8", "lifetime"))
def from_runs(runs: Runs) -> Table:
    """Means over the first admissions of each traced run."""
    rows = []
    for seed in runs.seeds:
        for name, arm in ARMS.items():
            found = depths(runs, arm, seed)
            here = {f"{depth}_tokens": value for depth, value in found.items()}
            rows.append(
                {
                    "seed": seed,
                    "arm": name,
                    **compare((*_QUANTITIES, *_LOWER), here, _paper(seed, name)),
                    **{
                        f"gap_r_{mask}_tokens": less(found[f"{mask}_r_max"], found["j_adopt"])
                        for mask in ("m0", "m1")
                    },
                }
            )
    is_traced = any(row["m0_a_max_tokens"] is not None for row in rows)
    brackets = ((*_KEYS, *columns(_LOWER), *_GAPS),) if is_traced else ()
    return Table(
        name="G-3",
        title=f"Mean state depths by seed and arm, tokens a request, seeds {runs.seeds_text}, "
        "beside the published ones",
        rows=pd.DataFrame(rows),
        views=((*_KEYS, *columns(_QUANTITIES)), *brackets),
        origin=runs.origin,
        notes=(
            "M0 counts what earlier steps computed; M1 also what the step of the admission has "
            "published and not yet computed. GapR = Rmax − Jadopt lies between both.",
            *(() if is_traced else ("These runs keep no trace, so M0 is not known.",)),
            *runs.notes,
        ),
        missing=missing_cells([(runs, ARMS.values(), METRICS)]),
    )


@derived("G-3")
def from_paper() -> Table:
    """The sums of depths behind the printed means: whole numbers of grid steps."""
    rows = []
    for printed in printed_rows("G-3"):
        seed, arm = int(printed["seed"]), printed["arm"]
        exact = grid_depths(seed, arm)
        rows.append(
            {
                "seed": seed,
                "arm": arm,
                **{f"{name}_units": int(exact[name] / grid_unit()) for name in exact},
                **compare(
                    (*_QUANTITIES, *_LOWER),
                    {f"{name}_tokens": float(value) for name, value in exact.items()},
                    _paper(seed, arm),
                ),
            }
        )
    units = tuple(
        Column(heading=f"{heading}, steps", templates=(f"{{{name}_units:,d}}",))
        for name, heading in (
            *((name, heading) for name, (_, heading) in DEPTHS.items()),
            *_LOWER_MASK.items(),
        )
    )
    return Table(
        name="G-3",
        title="Mean state depths by seed and arm: grid steps behind the printed means",
        rows=pd.DataFrame(rows),
        views=(
            (*_KEYS, *units),
            (*_KEYS, *columns(_QUANTITIES, here="on the grid")),
            (*_KEYS, *columns(_LOWER, here="on the grid")),
        ),
        origin=PAPER,
        notes=(
            "Reconstructed: a depth is a multiple of 512 tokens, so a mean over 300 requests "
            "is a whole number of steps of 512/300 tokens (Appendix G.2).",
        ),
    )


def depths(runs: Runs, arm: Arm, seed: int) -> dict[str, float | None]:
    """The five depths of one run; None where the run, or for M0 its trace, is missing."""
    found: dict[str, float | None] = {}
    for name, (metric, _) in DEPTHS.items():
        value = float(runs.values(arm, metric)[seed])
        found[name] = None if pd.isna(value) else value
    history = runs.histories(arm).get(seed)
    for name, depth in _COMPUTED.items():
        found[name] = None if history is None else history.mean(depth)
    return found


def grid_unit() -> Fraction:
    """Tokens that one grid step of one request adds to the mean of a run (G.2)."""
    step = published_value("text", "G.2", "grid step")
    requests = published_value("text", "G.2", "INITIAL requests per arm")
    return Fraction(int(step), int(requests))


def on_grid(printed: float) -> Fraction:
    """The value on the grid that rounds to a printed mean."""
    unit = grid_unit()
    return round(Fraction(str(printed)) / unit) * unit


def grid_depths(seed: int, arm: str) -> dict[str, Fraction]:
    """All five printed depths of one run, exact."""
    row = printed_row("G-3", seed=seed, arm=arm)
    return {name: on_grid(row[name]) for name in (*DEPTHS, *_LOWER_MASK)}


def _paper(seed: int, arm: str) -> dict[str, Number]:
    row = printed_row("G-3", seed=seed, arm=arm)
    return renamed(row, ((name, f"{name}_tokens") for name in (*DEPTHS, *_LOWER_MASK)))
