"""Continuation checks: treated requests against their isolated recomputations (Appendix D.5).

A check counts if its fidelity conditions hold: what was wanted really happened, and every reference
was repeatable. The verdict of a setting speaks of the checks that count and of nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
"""Verdicts: on logprobs and state bytes, on tokens alone, neither, and no check that counts."""


@table("continuation", lacks="continuation outputs")
def verdicts(ledgers: Ledgers) -> Table:
    """One row a mode, organization, dtype and treatment, over depths and seeds."""
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
            "states and the largest difference are of the checks that count.",
        ),
        missing=_failed(ledgers),
    )


def _as_planned(rows: pd.DataFrame) -> pd.DataFrame:
    """In the order in which the campaign names its settings."""
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
    """What the checks that count say."""
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
    """One of the paper's four, and the treatments that would break if it did not hold."""

    name: str
    treatments: tuple[str, ...]
    happened: str
    """What has to be seen, as a template over the sums."""


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
    """The four invariants with the evidence of exact runs, where a difference means a fault."""
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
                "happened": invariant.happened.format(**sums),
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
    )


# -- Table D-3 -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Check:
    """A printed check, and the one of ours that is nearest to it."""

    name: str
    published: Callable[[], str]
    ours: str
    select: Callable[[pd.DataFrame], pd.DataFrame]
    counted: str
    """"states", "logprobs" or "tokens"."""


@table("D-3", lacks="outputs and states of its checks")
def d3(ledgers: Ledgers) -> Table:
    """The printed checks beside ours, stock and exact."""
    frame, origin = _read(ledgers)
    rows = []
    for check in _checks(int(frame["depth_tokens"].min()), int(frame["depth_tokens"].max())):
        row: dict[str, Any] = {
            "check": check.name,
            "published": check.published(),
            "ours": check.ours,
        }
        for exact, mode in _MODES.items():
            chosen = check.select(frame[frame["exact"] == exact])
            sums = _sums(chosen)
            total = sums["num_states" if check.counted == "states" else "num_requests"]
            row |= {
                f"{mode}_equal": sums[f"num_equal_{check.counted}"] if total else None,
                f"{mode}_of": total or None,
            }
        rows.append(row | {"counted": check.counted})
    return Table(
        name="D-3",
        title="Numerical validation: the printed checks beside ours",
        rows=pd.DataFrame(rows),
        views=(_D3_COLUMNS,),
        origin=origin,
        notes=(
            "The paper's rows are of other models, kernels and devices; ours are the nearest "
            "question asked of real vLLM on CPU cores. Printed checks without one are left out.",
        ),
    )


def _checks(least: int, deepest: int) -> tuple[_Check, ...]:
    def matches() -> str:
        row = published_row("D-3", "Falcon pre-logit checks")
        count, of = "hash_matches_depth_600_to_1800", "hash_matches_depth_600_to_1800_of"
        return f"{row[count]:.0f} of {row[of]:.0f} hashes equal at depths 600 to 1,800"

    def mismatches() -> str:
        row = published_row("D-3", "Falcon pre-logit checks")
        hashes, tokens = (
            f"{row[name]:.0f} of {row[f'{name}_of']:.0f}"
            for name in ("hash_mismatches_depth_2400", "token_mismatches_depth_2400")
        )
        return f"{hashes} hashes and {tokens} tokens differ at depth 2,400"

    def repeats(what: str, words: str) -> Callable[[], str]:
        def text() -> str:
            row = published_row("D-3", "Concurrent non-preemptive reference repeats")
            name = f"{what}_agreement"
            return f"{row[name]:.0f} of {row[f'{name}_of']:.0f} requests agree in {words}"

        return text

    def reclaim() -> str:
        row = published_row("D-3", "Granite forced reclaim")
        return f"{row['comparison_tests']:.0f} comparisons, outcome not printed"

    def hits(depth: int) -> Callable[[pd.DataFrame], pd.DataFrame]:
        return lambda frame: frame[(frame["treatment"] == "hit") & (frame["depth_tokens"] == depth)]

    def treated(*names: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
        return lambda frame: frame[frame["treatment"].isin(names)]

    return (
        _Check(
            name="Falcon pre-logit checks",
            published=matches,
            ours=f"hits at every boundary, depth {least:,}: logprobs",
            select=hits(least),
            counted="logprobs",
        ),
        _Check(
            name="Falcon pre-logit checks",
            published=mismatches,
            ours=f"hits at every boundary, depth {deepest:,}: logprobs",
            select=hits(deepest),
            counted="logprobs",
        ),
        _Check(
            name="Falcon pre-logit checks",
            published=mismatches,
            ours=f"hits at every boundary, depth {deepest:,}: tokens",
            select=hits(deepest),
            counted="tokens",
        ),
        _Check(
            name="Falcon state-byte check",
            published=lambda: "agreement at depth 1,200, one thread, seed 0",
            ours="hits at every boundary: state bytes",
            select=treated("hit"),
            counted="states",
        ),
        _Check(
            name="Concurrent reference repeats",
            published=repeats("state_byte", "state bytes"),
            ours="hits in changing batches: state bytes",
            select=treated("batch"),
            counted="states",
        ),
        _Check(
            name="Concurrent reference repeats",
            published=repeats("token", "tokens"),
            ours="hits in changing batches: tokens",
            select=treated("batch"),
            counted="tokens",
        ),
        _Check(
            name="Granite forced reclaim",
            published=reclaim,
            ours="eviction and slab reclaim: logprobs",
            select=treated("eviction", "slabs"),
            counted="logprobs",
        ),
    )


# -- what they share -------------------------------------------------------------------------------


def _read(ledgers: Ledgers) -> tuple[pd.DataFrame, Origin]:
    """Adopted checks, and what produced them.

    Raises:
        NoRunsError: there is no check.
    """
    frame = ledgers.frame(CAMPAIGN)
    if ledgers.seeds is not None and not frame.empty:
        frame = frame[frame["seed"].isin(ledgers.seeds)]
    if frame.empty:
        raise NoRunsError(f"campaign {CAMPAIGN}: no check has a result")
    return frame, Origin.of(frame)


def _failed(ledgers: Ledgers) -> tuple[str, ...]:
    """Checks of which every attempt failed."""
    attempts = ledgers.attempts(CAMPAIGN)
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
