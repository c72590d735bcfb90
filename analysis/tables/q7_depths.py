"""Figure 7(a) in numbers: S2's reusable depth with and without headroom, by seed (Q7)."""

import pandas as pd

from analysis.ledgers import missing_cells
from analysis.published import published, published_value
from analysis.runs import Runs
from analysis.tables.beside import PAPER, Number, Quantity, columns, compare
from analysis.tables.g3 import grid_unit, on_grid
from analysis.tables.registry import derived, table
from analysis.tables.table import Column, Table
from hsexp.config.arm import Arm

HEADROOMS = (0.0, 0.19)
_NAMES = ("at_0", "at_19")
_DEPTHS = tuple(
    Quantity(name=f"j_adopt_{name}_tokens", heading=f"Jadopt, f = {headroom:g}", spec=",.1f")
    for name, headroom in zip(_NAMES, HEADROOMS, strict=True)
)
_INCREASE = Quantity(name="increase_tokens", heading="increase", spec="+,.1f")
_KEY = Column(heading="seed", templates=("{seed}",))
_NAME = "q7-depths"


@table("q7-depths", block=("q7", "availability"))
def from_runs(runs: Runs) -> Table:
    """Mean adopted depth of a traced S2 run, and its gap below the recurrent depth."""
    arms = s2_arms()
    joint = [runs.values(arm, "adopted_tokens_mean") for arm in arms]
    recurrent = [runs.values(arm, "recurrent_depth_mean") for arm in arms]
    rows = []
    for seed in runs.seeds:
        low, high = (float(values[seed]) for values in joint)
        here = {
            "j_adopt_at_0_tokens": low,
            "j_adopt_at_19_tokens": high,
            "increase_tokens": high - low,
        }
        known: dict[str, Number] = {
            name: None if pd.isna(value) else value for name, value in here.items()
        }
        gaps = {
            f"gap_r_{name}_tokens": float(r[seed] - j[seed])
            for name, r, j in zip(_NAMES, recurrent, joint, strict=True)
        }
        rows.append(
            {"seed": seed, **compare((*_DEPTHS, _INCREASE), known, printed_depths(seed)), **gaps}
        )
    gaps_view = tuple(
        Column(heading=f"GapR, f = {headroom:g}", templates=(f"{{gap_r_{name}_tokens:.1f}}",))
        for name, headroom in zip(_NAMES, HEADROOMS, strict=True)
    )
    return Table(
        name=_NAME,
        title=f"S2's adopted depth by headroom, tokens a request, seeds {runs.seeds_text}, "
        "beside the published means",
        rows=pd.DataFrame(rows),
        views=((_KEY, *columns(_DEPTHS)), (_KEY, *columns((_INCREASE,)), *gaps_view)),
        origin=runs.origin,
        notes=(
            "GapR = Rmax − Jadopt: 0 where the recurrent checkpoints alone set the joint depth.",
            *runs.notes,
        ),
        missing=missing_cells([(runs, arms, ["adopted_tokens_mean", "recurrent_depth_mean"])]),
    )


@derived("q7-depths")
def from_paper() -> Table:
    """The increases as multiples of the grid step of 512/300 tokens."""
    rows = []
    for seed in printed_seeds():
        paper = printed_depths(seed)
        low, high = (on_grid(float(paper[quantity.name] or 0.0)) for quantity in _DEPTHS)
        rows.append(
            {
                "seed": seed,
                "units_at_0": int(low / grid_unit()),
                "units_at_19": int(high / grid_unit()),
                "difference_of_printed_tokens": round(
                    float(paper["j_adopt_at_19_tokens"] or 0.0)
                    - float(paper["j_adopt_at_0_tokens"] or 0.0),
                    1,
                ),
                **compare((_INCREASE,), {"increase_tokens": float(high - low)}, paper),
            }
        )
    return Table(
        name=_NAME,
        title="S2's adopted depth by headroom: increases on the grid",
        rows=pd.DataFrame(rows),
        views=(
            (
                _KEY,
                Column(heading="steps, f = 0", templates=("{units_at_0:,d}",)),
                Column(heading="steps, f = 0.19", templates=("{units_at_19:,d}",)),
                *columns((_INCREASE,), here="on the grid"),
                Column(
                    group="increase",
                    heading="of printed",
                    templates=("{difference_of_printed_tokens:+,.1f}",),
                ),
            ),
        ),
        origin=PAPER,
        notes=(
            "Known rounding: at seed 76602 the two displayed means differ by 0.1 less than the "
            "increase, which the grid of 512-token steps over 300 requests explains.",
        ),
    )


def s2_arms() -> tuple[Arm, Arm]:
    """S2's traced cells without and with headroom."""
    low, high = (Arm(organization="s2", headroom=f, trace=True) for f in HEADROOMS)
    return low, high


def printed_seeds() -> list[int]:
    """The seeds of Q7 (Appendix G.2)."""
    rows = published("text")
    named = rows[(rows["row"] == "G.2") & rows["column"].str.fullmatch(r"Q7 seed \d")]
    return [int(value) for value in named["value"]]


def printed_depths(seed: int) -> dict[str, Number]:
    """Both depths and their difference as printed; empty for a seed the paper does not report."""
    if seed not in printed_seeds():
        return {}
    at_zero, at_19 = (f"Jadopt=Rmax f={f:g} seed {seed}" for f in HEADROOMS)
    return {
        "j_adopt_at_0_tokens": published_value("text", "G.2", at_zero),
        "j_adopt_at_19_tokens": published_value("text", "G.2", at_19),
        "increase_tokens": published_value("text", "G.2", f"paired increase seed {seed}"),
    }
