"""What retention kept and who profited: skipped frees and the ownership of adopted states (Q8).

The paper's observe-only logs recorded neither (Sections 4.5 and 5.5).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import pandas as pd

from analysis.ledgers import missing_cells
from analysis.runs import Runs
from analysis.tables.g3 import ARMS
from analysis.tables.registry import table
from analysis.tables.table import Column, Table
from hsexp.trace.ownership import Adoption, KeptState, Ownership

Measure = Callable[[Ownership], float | int | None]


@dataclass(frozen=True, kw_only=True)
class _Quantity:
    """A number of one run."""

    name: str
    heading: str
    measure: Measure
    spec: str = ",.0f"


def _retained(audit: Ownership) -> list[KeptState]:
    return [kept for kept in audit.kept if kept.cause == "retained"]


def _adoptions(matches: Callable[[Adoption], bool]) -> Measure:
    return lambda audit: sum(map(matches, audit.adoptions))


def _median_age(audit: Ownership) -> float | None:
    ages = [each.age_s for each in audit.adoptions if each.age_s is not None]
    return median(ages) if ages else None


_KEPT: Sequence[_Quantity] = (
    _Quantity(name="keeps", heading="keeps", measure=lambda audit: len(_retained(audit))),
    _Quantity(
        name="free_skips",
        heading="skipped frees",
        measure=lambda audit: sum(kept.is_free_skip for kept in audit.kept),
    ),
    _Quantity(
        name="kept_states",
        heading="states",
        measure=lambda audit: len({kept.state for kept in _retained(audit)}),
    ),
    _Quantity(
        name="kept_prefixes",
        heading="prefixes",
        measure=lambda audit: len({kept.key for kept in _retained(audit)}),
    ),
    _Quantity(
        name="keeping_requests",
        heading="requests",
        measure=lambda audit: len({kept.request for kept in _retained(audit)}),
    ),
)
_ADOPTED: Sequence[_Quantity] = (
    _Quantity(name="adoptions", heading="all", measure=lambda audit: len(audit.adoptions)),
    _Quantity(name="own", heading="own", measure=_adoptions(lambda each: each.is_own)),
    _Quantity(name="others", heading="another's", measure=_adoptions(lambda each: not each.is_own)),
    _Quantity(
        name="retained", heading="retained", measure=_adoptions(lambda each: each.was_retained)
    ),
    _Quantity(name="pinned", heading="pinned", measure=_adoptions(lambda each: each.was_pinned)),
    _Quantity(
        name="referenced",
        heading="in use",
        measure=_adoptions(lambda each: each.was_referenced),
    ),
    _Quantity(
        name="adopted_states",
        heading="states",
        measure=lambda audit: len({each.state for each in audit.adoptions}),
    ),
    _Quantity(name="median_age_s", heading="median age, s", measure=_median_age, spec=",.1f"),
)


@table("q8-ownership", block=("q8", "lifetime"), lacks="skipped frees and owners")
def from_runs(runs: Runs) -> Table:
    """One row a traced run."""
    rows = []
    for seed in runs.seeds:
        for name, arm in ARMS.items():
            history = runs.histories(arm).get(seed)
            audit = None if history is None else history.ownership
            rows.append(
                {
                    "seed": seed,
                    "arm": name,
                    **{
                        quantity.name: None if audit is None else quantity.measure(audit)
                        for quantity in (*_KEPT, *_ADOPTED)
                    },
                }
            )
    keys = (
        Column(heading="seed", templates=("{seed}",)),
        Column(heading="arm", templates=("{arm}",)),
    )
    return Table(
        name="q8-ownership",
        title=f"States that retention kept, and owners of adopted states, seeds {runs.seeds_text}",
        rows=pd.DataFrame(rows),
        views=(
            (*keys, *_columns(_KEPT, "kept by a running request")),
            (*keys, *_columns(_ADOPTED, "adopted states")),
        ),
        origin=runs.origin,
        notes=(
            "A keep is a superseded state that its request did not release; it skips a free if "
            "nobody else held the state. Prefixes are distinct boundaries; the paper records 48 "
            "eligible ones and 283 to 284 keeping requests a run of Q9.",
            "Adopted: states that admissions reused, RESUME ones too. Own: published by the same "
            "request before a preemption. Retained, pinned: a policy had kept the state at any "
            "time before. In use: somebody held it. Age: from publication to adoption.",
            *runs.notes,
        ),
        missing=missing_cells([(runs, ARMS.values(), ())]),
    )


def _columns(quantities: Sequence[_Quantity], group: str) -> tuple[Column, ...]:
    return tuple(
        Column(
            group=group,
            heading=quantity.heading,
            templates=(f"{{{quantity.name}:{quantity.spec}}}",),
        )
        for quantity in quantities
    )
