"""Table C-4: prefix adopted and input submitted by D0 and S2 on the same 512-token boundaries."""

import pandas as pd

from analysis.ledgers import missing_cells
from analysis.runs import Runs
from analysis.tables.beside import (
    PAPER,
    Number,
    Quantity,
    columns,
    compare,
    complete_mean,
    printed_row,
    printed_rows,
    renamed,
)
from analysis.tables.registry import derived, table
from analysis.tables.table import Column, Table
from hsexp.config.arm import Arm

_ADOPTED = Quantity(name="adopted_prefix_pct", heading="adopted / input, %", spec=".3f")
_TOKENS = (
    Quantity(name="initial_tokens_per_request", heading="initial, tok/req", spec=",.1f"),
    Quantity(name="resume_tokens_per_request", heading="resume, tok/req", spec=",.1f"),
    Quantity(name="total_tokens_per_request", heading="total, tok/req", spec=",.1f"),
)
_NEEDED = (
    "num_requests",
    "prompt_tokens",
    "adopted_tokens_mean",
    "initial_prefill_tokens",
    "replayed_tokens",
)
_KEYS = (
    Column(heading="setting", templates=("{budget_setting} ({budget})", "{budget_setting}")),
    Column(heading="org.", templates=("{organization}",)),
    Column(heading="f", templates=("{headroom:.2f}",)),
)


@table("C-4", block=("matched_boundary", "work"))
def from_runs(runs: Runs) -> Table:
    """Means over seeds of the tokens of a request (Appendix C.1)."""
    arms = runs.design.cells()
    settings = dict(zip(runs.design.budget, ("Low", "High"), strict=False))
    rows = [
        {
            "budget_setting": settings.get(str(arm.budget)),
            "budget": arm.budget,
            "organization": printed_name(arm),
            "headroom": arm.headroom,
            "n": len(runs.seeds) - len(runs.missing_seeds(arm)),
            **compare(
                (_ADOPTED, *_TOKENS), _here(runs, arm), _paper(settings.get(str(arm.budget)), arm)
            ),
        }
        for arm in arms
    ]
    keys = (*_KEYS, Column(heading="n", templates=("{n}",)))
    return Table(
        name="C-4",
        title="Adopted prefix and submitted input on 512-token boundaries, seeds "
        f"{runs.seeds_text}, beside the published values",
        rows=pd.DataFrame(rows),
        views=((*keys, *columns((_ADOPTED, _TOKENS[0]))), (*keys, *columns(_TOKENS[1:]))),
        origin=runs.origin,
        notes=(
            "Resume is everything prefilled after a request's first preemption, including prompt "
            "that was never computed before.",
            "The paper gives no bytes for the low and the high budget: the two totals planned at "
            "b63 are assumed (conf/campaign/matched_boundary.yaml).",
            *runs.notes,
        ),
        missing=missing_cells([(runs, arms, _NEEDED)]),
    )


@derived("C-4")
def from_paper() -> Table:
    """Totals from their parts, and the input of a request that was never resumed."""
    rows = []
    for printed in printed_rows("C-4"):
        paper = renamed(printed, _PRINTED)
        initial, resume = printed["initial"], printed["resume"]
        here = {**paper, "total_tokens_per_request": initial + resume}
        whole = 1.0 - printed["adopted_prefix_per_input"] / 100.0
        rows.append(
            {
                "budget_setting": printed["budget_setting"],
                "budget": None,
                "organization": printed["organization"],
                "headroom": printed["headroom"],
                "input_tokens_per_request": initial / whole if resume == 0.0 else None,
                **compare((_ADOPTED, *_TOKENS), here, paper),
            }
        )
    tokens = (
        *columns(_TOKENS[2:], here="initial + resume"),
        Column(heading="input, tok/req", templates=("{input_tokens_per_request:,.1f}",)),
    )
    return Table(
        name="C-4",
        title="Adopted prefix and submitted input on 512-token boundaries: sums of the printed "
        "parts",
        rows=pd.DataFrame(rows),
        views=((*_KEYS, *tokens),),
        origin=PAPER,
        notes=(
            "Input: initial / (1 − adopted share). Only where nothing was resumed, since adoption "
            "on resume is not printed separately.",
        ),
    )


def printed_name(arm: Arm) -> str:
    """D0-M512 for d0_m512, as the paper writes it."""
    return arm.organization_label.replace("_", "-")


def _here(runs: Runs, arm: Arm) -> dict[str, Number]:
    means = {name: runs.values(arm, name) for name in _NEEDED}
    requests = means["num_requests"]
    initial = complete_mean(means["initial_prefill_tokens"] / requests)
    resume = complete_mean(means["replayed_tokens"] / requests)
    adopted = complete_mean(means["adopted_tokens_mean"] * requests / means["prompt_tokens"])
    return {
        "adopted_prefix_pct": None if adopted is None else 100.0 * adopted,
        "initial_tokens_per_request": initial,
        "resume_tokens_per_request": resume,
        "total_tokens_per_request": _sum(initial, resume),
    }


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


def _paper(setting: str | None, arm: Arm) -> dict[str, Number]:
    row = printed_row(
        "C-4", budget_setting=setting, organization=printed_name(arm), headroom=arm.headroom
    )
    return renamed(row, _PRINTED)


_PRINTED = (
    ("adopted_prefix_per_input", "adopted_prefix_pct"),
    ("initial", "initial_tokens_per_request"),
    ("resume", "resume_tokens_per_request"),
    ("total", "total_tokens_per_request"),
)
"""Our quantity, by the paper's column."""
