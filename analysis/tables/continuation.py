"""Continuation checks: treated requests against their isolated recomputations (Appendix D.5).

A check counts if its fidelity conditions hold: the treatment really happened, and every reference
was repeatable. The verdict of a setting covers only the checks that count.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pandas as pd

from analysis.errors import NoRunsError
from analysis.ledgers import Ledgers
from analysis.published import published_row
from analysis.runs import Origin
from analysis.tables.registry import table
from analysis.tables.table import Column, Table
from hsexp.config.catalog import read_option
from hsexp.plan.cells import format_seeds

CAMPAIGN = "continuation"

_SETTING = ["exact", "organization", "dtype", "treatment"]
_MODES = {False: "stock", True: "exact"}
_SUMS = (
    "num_requests",
    "num_adopted",
    "num_equal_tokens",
    "num_equal_logprobs",
    "num_states",
    "num_equal_states",
    "num_preemptions",
    "num_preempted_outputs",
    "num_lost_checkpoints",
    "num_reclaimed_slabs",
    "num_retained_checkpoints",
)

EXACT, TOKENS, DIFFERENT, NOT_EVALUATED = (
    "bit-identical",
    "equal tokens",
    "tokens differ",
    "not evaluated",
)
"""Verdicts: equal logprobs and state bytes; only equal tokens; neither; no check that counts."""


@table("continuation", lacks="continuation outputs")
def verdicts(ledgers: Ledgers) -> Table:
    """One row per mode, organization, dtype and treatment, over depths and seeds."""
    frame, origin = _read(ledgers)
    rows = pd.DataFrame(
        [
            dict(zip(_SETTING, setting, strict=True)) | _sums(group)
            for setting, group in frame.groupby(_SETTING, sort=False)
        ]
    )
    rows = _as_planned(rows)
    rows["mode"] = rows["exact"].map(_MODES)
    return Table(
        name="continuation",
        title="Treated requests against their isolated recomputations, depths "
        f"{', '.join(map(str, sorted(frame['depth_tokens'].unique())))}, seeds "
        f"{format_seeds(sorted(frame['seed'].unique()))}",
        rows=rows,
        views=(_COLUMNS,),
        origin=origin,
        notes=(
            "A check counts if its treatment happened and its references were stable; requests, "
            "states and the largest difference cover the checks that count.",
        ),
        missing=_failed(ledgers),
    )


def _as_planned(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows in the order in which the campaign lists its settings."""
    campaign = read_option("campaign", CAMPAIGN)["campaign"]
    ranks = {
        name: {value: rank for rank, value in enumerate(campaign[values])}
        for name, values in (("organization", "organizations"), ("treatment", "treatments"))
    }
    return rows.sort_values(
        ["exact", "dtype", "organization", "treatment"],
        key=lambda column: column.map(ranks[column.name]) if column.name in ranks else column,
        ignore_index=True,
    )


def _sums(group: pd.DataFrame) -> dict[str, Any]:
    counted = group[(group["happened"] == 1) & (group["stable"] == 1)]
    sums: dict[str, Any] = {name: int(counted[name].sum()) for name in _SUMS}
    sums |= {
        "num_checks": len(group),
        "num_counted": len(counted),
        "num_unstable": int((group["stable"] == 0).sum()),
        "max_logprob_difference": counted["max_logprob_difference"].max(),
    }
    return sums | {"verdict": verdict(sums)}


def verdict(sums: dict[str, Any]) -> str:
    """Verdict of the checks that count."""
    if not sums["num_counted"]:
        return NOT_EVALUATED
    if sums["num_equal_tokens"] < sums["num_requests"]:
        return DIFFERENT
    same_bits = sums["num_equal_logprobs"] == sums["num_requests"]
    same_states = sums["num_equal_states"] == sums["num_states"]
    return EXACT if same_bits and same_states else TOKENS


# -- Table D-1 -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Invariant:
    """One of the paper's four invariants, and the treatments that would fail if it were broken."""

    name: str
    treatments: tuple[str, ...]
    happened: str
    """Required evidence, as a template over the sums."""


_INVARIANTS = (
    _Invariant(
        name="Complete checkpoint",
        treatments=("hit", "turns"),
        happened="{num_adopted:,} adoptions",
    ),
    _Invariant(
        name="Protected access",
        treatments=("batch", "retention"),
        happened="{num_adopted:,} adoptions, {num_retained_checkpoints:,} retained states",
    ),
    _Invariant(
        name="Invalidate before reuse",
        treatments=("eviction", "slabs", "preemption"),
        happened="{num_lost_checkpoints:,} lost checkpoints, {num_reclaimed_slabs:,} reclaimed "
        "slabs, {num_preemptions:,} preemptions",
    ),
    _Invariant(
        name="Valid location or absence",
        treatments=("repeat", "isolation"),
        happened="{num_requests:,} requests, {num_adopted:,} of them on an adopted state",
    ),
)


@table("D-1", lacks="evidence of its invariants")
def d1(ledgers: Ledgers) -> Table:
    """The four invariants with evidence from exact runs, where any difference is a fault."""
    frame, origin = _read(ledgers)
    exact = frame[frame["exact"]]
    if exact.empty:
        raise NoRunsError(f"campaign {CAMPAIGN}: no run with exact continuation")
    rows = []
    for invariant in _INVARIANTS:
        sums = _sums(exact[exact["treatment"].isin(invariant.treatments)])
        rows.append(
            {
                "invariant": invariant.name,
                "treatments": ", ".join(invariant.treatments),
                "happened": invariant.happened.format(**sums) if sums["num_counted"] else None,
            }
            | sums
        )
    return Table(
        name="D-1",
        title="Design invariants, and what exact runs show of them",
        rows=pd.DataFrame(rows),
        views=(_D1_COLUMNS,),
        origin=origin,
        notes=(
            "The paper states the invariants and leaves their evidence to tests. Here a page that "
            "was reused too early, a half state or a wrong place would change bits that are equal.",
            "Stock runs are left out: their bits differ for reasons of arithmetic "
            "(docs/continuation.md), which would hide a fault.",
        ),
        missing=_failed(ledgers),
    )


# -- Table D-3 -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Check:
    """A published check, and our closest one."""

    name: str
    row: str = ""
    """Row of the published table; empty if it equals the name."""
    published: str
    """The paper's result, as a template over that row."""
    ours: str
    """Our check, as a template over its depth."""
    treatments: tuple[str, ...]
    depth: Literal["least", "deepest"] | None = None
    """Which of our depths is used; None uses all."""
    counted: Literal["states", "logprobs", "tokens"]

    def published_text(self) -> str:
        return self.published.format(**published_row("D-3", self.row or self.name))


_MISMATCHES = (
    "{hash_mismatches_depth_2400:.0f} of {hash_mismatches_depth_2400_of:.0f} hashes and "
    "{token_mismatches_depth_2400:.0f} of {token_mismatches_depth_2400_of:.0f} tokens differ at "
    "depth 2,400"
)
_pre_logit = partial(_Check, name="Falcon pre-logit checks", treatments=("hit",))
_repeats = partial(
    _Check,
    name="Concurrent reference repeats",
    row="Concurrent non-preemptive reference repeats",
    treatments=("batch",),
)

_CHECKS = (
    _pre_logit(
        published="{hash_matches_depth_600_to_1800:.0f} of "
        "{hash_matches_depth_600_to_1800_of:.0f} hashes equal at depths 600 to 1,800",
        ours="hits at every boundary, depth {depth:,}: logprobs",
        depth="least",
        counted="logprobs",
    ),
    _pre_logit(
        published=_MISMATCHES,
        ours="hits at every boundary, depth {depth:,}: logprobs",
        depth="deepest",
        counted="logprobs",
    ),
    _pre_logit(
        published=_MISMATCHES,
        ours="hits at every boundary, depth {depth:,}: tokens",
        depth="deepest",
        counted="tokens",
    ),
    _Check(
        name="Falcon state-byte check",
        published="agreement at depth 1,200, one thread, seed 0",
        ours="hits at every boundary: state bytes",
        treatments=("hit",),
        counted="states",
    ),
    _repeats(
        published="{state_byte_agreement:.0f} of {state_byte_agreement_of:.0f} requests agree in "
        "state bytes",
        ours="hits in changing batches: state bytes",
        counted="states",
    ),
    _repeats(
        published="{token_agreement:.0f} of {token_agreement_of:.0f} requests agree in tokens",
        ours="hits in changing batches: tokens",
        counted="tokens",
    ),
    _Check(
        name="Granite forced reclaim",
        published="{comparison_tests:.0f} comparisons, outcome not printed",
        ours="eviction and slab reclaim: logprobs",
        treatments=("eviction", "slabs"),
        counted="logprobs",
    ),
)


@table("D-3", lacks="outputs and states of its checks")
def d3(ledgers: Ledgers) -> Table:
    """The published checks beside ours, stock and exact."""
    frame, origin = _read(ledgers)
    depths = {"least": frame["depth_tokens"].min(), "deepest": frame["depth_tokens"].max()}
    return Table(
        name="D-3",
        title="Numerical validation: the printed checks beside ours",
        rows=pd.DataFrame([_d3_row(check, frame, depths) for check in _CHECKS]),
        views=(_D3_COLUMNS,),
        origin=origin,
        notes=(
            "The paper's rows are of other models, kernels and devices; ours ask the nearest "
            "question of real vLLM on CPU cores. Printed checks without one are left out.",
        ),
        missing=_failed(ledgers),
    )


def _d3_row(check: _Check, frame: pd.DataFrame, depths: Mapping[str, int]) -> dict[str, Any]:
    chosen = frame[frame["treatment"].isin(check.treatments)]
    depth = None
    if check.depth is not None:
        depth = int(depths[check.depth])
        chosen = chosen[chosen["depth_tokens"] == depth]
    row: dict[str, Any] = {
        "check": check.name,
        "published": check.published_text(),
        "ours": check.ours.format(depth=depth),
    }
    for exact, mode in _MODES.items():
        sums = _sums(chosen[chosen["exact"] == exact])
        total = sums["num_states" if check.counted == "states" else "num_requests"]
        row |= {
            f"{mode}_equal": sums[f"num_equal_{check.counted}"] if total else None,
            f"{mode}_of": total or None,
        }
    return row | {"counted": check.counted}


# -- shared by the tables --------------------------------------------------------------------------


def _read(ledgers: Ledgers) -> tuple[pd.DataFrame, Origin]:
    """Adopted checks and their origin.

    Raises:
        NoRunsError: there is no check.
    """
    frame = _of_seeds(ledgers.frame(CAMPAIGN), ledgers)
    if frame.empty:
        raise NoRunsError(f"campaign {CAMPAIGN}: no check has a result")
    return frame, Origin.of(frame)


def _of_seeds(rows: pd.DataFrame, ledgers: Ledgers) -> pd.DataFrame:
    """The rows of the requested seeds."""
    if ledgers.seeds is None or rows.empty:
        return rows
    return rows[rows["seed"].isin(ledgers.seeds)]


def _failed(ledgers: Ledgers) -> tuple[str, ...]:
    """Checks that failed in every attempt."""
    attempts = _of_seeds(ledgers.attempts(CAMPAIGN), ledgers)
    failed = attempts[~attempts["cell_id"].isin(attempts["cell_id"][attempts["status"] == "ok"])]
    last = failed.drop_duplicates("cell_id", keep="last")
    return tuple(
        f"{row['organization']} {row['dtype']} {_MODES[row['exact']]} {row['treatment']} depth "
        f"{row['depth_tokens']} seed {row['seed']}: {row['reason']}"
        for row in last.to_dict("records")
    )


def _share(heading: str, equal: str, of: str, group: str = "") -> Column:
    return Column(heading=heading, templates=(f"{{{equal}:,.0f}}/{{{of}:,.0f}}",), group=group)


_COUNTED = (
    Column(heading="checks", templates=("{num_counted:d}/{num_checks:d}",)),
    _share("tokens", "num_equal_tokens", "num_requests", "equal"),
    _share("logprobs", "num_equal_logprobs", "num_requests", "equal"),
    _share("states", "num_equal_states", "num_states", "equal"),
    Column(heading="largest diff.", templates=("{max_logprob_difference:.1e}",)),
    Column(heading="verdict", templates=("{verdict}",)),
)

_COLUMNS = (
    Column(heading="mode", templates=("{mode}",)),
    Column(heading="org.", templates=("{organization}",)),
    Column(heading="dtype", templates=("{dtype}",)),
    Column(heading="treatment", templates=("{treatment}",)),
    *_COUNTED,
)

_D1_COLUMNS = (
    Column(heading="invariant", templates=("{invariant}",)),
    Column(heading="treatments", templates=("{treatments}",)),
    Column(heading="what happened", templates=("{happened}",)),
    *_COUNTED,
)

_D3_COLUMNS = (
    Column(heading="check", templates=("{check}",)),
    Column(heading="published", templates=("{published}",)),
    Column(heading="ours", templates=("{ours}",)),
    *(_share(mode, f"{mode}_equal", f"{mode}_of", "equal") for mode in _MODES.values()),
)
