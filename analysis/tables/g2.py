"""Table G-2: throughput effects at three shares of common contexts, and their interactions (Q3)."""

from dataclasses import dataclass

import pandas as pd

from analysis.effects import Pairs, differences, relative_changes
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
from analysis.tables.registry import derived, table
from analysis.tables.table import Column, Table
from hsexp.config.arm import Arm


@dataclass(frozen=True, kw_only=True)
class Step:
    """One organization over another."""

    numerator: str
    denominator: str

    @property
    def name(self) -> str:
        return f"{self.numerator}_{self.denominator}"

    @property
    def label(self) -> str:
        return f"{self.numerator}/{self.denominator}".upper()

    @property
    def quantity(self) -> Quantity:
        return Quantity(name=f"{self.name}_pct", heading=f"{self.label} − 1, %", spec="+.3f")


STEPS = (
    Step(numerator="s1", denominator="s0"),
    Step(numerator="s2", denominator="s1"),
    Step(numerator="d0", denominator="s2"),
)
_QUANTITIES = tuple(step.quantity for step in STEPS)
_KEY = Column(heading="q", templates=("{sharing:g}", "{row}"))
_ENDPOINTS = "1 minus 0"


@table("G-2", block=("q3", "sharing"))
def from_runs(runs: Runs) -> Table:
    """Means of seedwise relative changes; interactions are seedwise too (Appendix G.1)."""
    levels = runs.design.sharing
    rows = []
    for level in levels:
        pairs = [step_pairs(runs, step, level) for step in STEPS]
        here = {
            quantity.name: None if each.undefined else float(relative_changes(each).mean())
            for quantity, each in zip(_QUANTITIES, pairs, strict=True)
        }
        n = min(len(each.numerator) for each in pairs)
        rows.append(_row(f"{level:g}", level, here, _paper(level), n=n))
    if {0.0, 1.0} <= set(levels):
        rows.append(
            _row(
                _ENDPOINTS,
                None,
                {step.quantity.name: interaction_pp(runs, step) for step in STEPS},
                _paper_interactions(),
                n=rows[0]["n"],
            )
        )
    organizations = dict.fromkeys(name for s in STEPS for name in (s.numerator, s.denominator))
    arms = [Arm(organization=name, sharing=q) for q in levels for name in organizations]
    return Table(
        name="G-2",
        title=f"Throughput effects by share q of common contexts, seeds {runs.seeds_text}, "
        "beside the published means",
        rows=pd.DataFrame(rows),
        views=((_KEY, Column(heading="n", templates=("{n}",)), *columns(_QUANTITIES)),),
        origin=runs.origin,
        notes=(
            "Mean over seeds of 100 (numerator / denominator − 1). Last row: mean over seeds of "
            "the effect at q = 1 minus that at q = 0, in percentage points.",
            *runs.notes,
        ),
        missing=missing_cells([(runs, arms, [THROUGHPUT])]),
    )


@derived("G-2")
def from_paper() -> Table:
    """Endpoint interactions as differences of the printed means."""
    levels = [float(row["sharing"]) for row in printed_rows("G-2")]
    rows = [_row(f"{level:g}", level, _paper(level), _paper(level)) for level in levels]
    at_one, at_zero = _paper(1.0), _paper(0.0)
    changes = {name: less(at_one[name], at_zero[name]) for name in at_one}
    rows.append(_row(_ENDPOINTS, None, changes, _paper_interactions()))
    return Table(
        name="G-2",
        title="Throughput effects by share q of common contexts: interactions of the printed means",
        rows=pd.DataFrame(rows),
        views=((_KEY, *columns(_QUANTITIES, here="recomputed")),),
        origin=PAPER,
        notes=(
            "Known rounding: the S2/S1 interaction is a paired statistic of its own; the "
            "difference of the two printed means is 0.001 pp smaller (Appendix G.1).",
        ),
    )


def step_pairs(runs: Runs, step: Step, sharing: float | None) -> Pairs:
    """The two organizations of a step, paired by seed, at one level of sharing."""
    numerator, denominator = (
        Arm(organization=name, sharing=sharing) for name in (step.numerator, step.denominator)
    )
    return runs.pairs(numerator, denominator, THROUGHPUT)


def interaction_pp(runs: Runs, step: Step) -> float | None:
    """Mean over seeds of the effect at q = 1 minus that at q = 0; None if a seed is incomplete."""
    ends = [step_pairs(runs, step, sharing) for sharing in (1.0, 0.0)]
    if any(pairs.undefined for pairs in ends):
        return None
    return float(differences(*(relative_changes(pairs) for pairs in ends)).mean())


def _row(
    label: str,
    sharing: float | None,
    here: dict[str, Number],
    paper: dict[str, Number],
    *,
    n: object = None,
) -> dict[str, object]:
    counted = {} if n is None else {"n": n}
    return {"row": label, "sharing": sharing, **counted, **compare(_QUANTITIES, here, paper)}


def _paper(sharing: float | None) -> dict[str, Number]:
    row = printed_row("G-2", sharing=sharing)
    return renamed(row, ((f"mean_{step.name}_minus1", step.quantity.name) for step in STEPS))


def _paper_interactions() -> dict[str, Number]:
    return {
        step.quantity.name: published_value("text", "G.1", f"{step.label} endpoint interaction")
        for step in STEPS
    }
