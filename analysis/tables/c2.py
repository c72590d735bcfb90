"""Table C-2: how the joint depth of a request changed between queue entry and first admission."""

from collections import Counter

import pandas as pd

from analysis.histories import History, whole
from analysis.ledgers import missing_cells
from analysis.published import published_value
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
from hsexp.trace.episodes import DEPTH_CLASSES

CLASSES = {
    "zero_to_zero": ("depth_stays_zero_fraction", "0 to 0"),
    "positive_equal": ("depth_equal_fraction", "equal"),
    "zero_to_positive": ("depth_from_zero_fraction", "0 to more"),
    "deeper": ("depth_deeper_fraction", "deeper"),
    "shallower": ("depth_shallower_fraction", "shallower"),
}
"""Ledger metric and heading, by the paper's column."""

_QUANTITIES = tuple(
    Quantity(name=f"{name}_fraction", heading=heading, spec=".3f")
    for name, (_, heading) in CLASSES.items()
)
_SEEDS = 3
"""Traced runs behind each row (Table C-3)."""

_KEYS = (
    Column(heading="org.", templates=("{organization}",)),
    Column(heading="f", templates=("{headroom:.2f}",)),
)


@table("C-2", block=("q7", "availability"))
def from_runs(runs: Runs) -> Table:
    """Fractions of a run's requests, averaged over seeds (Section 4.5)."""
    arms = traced_arms(runs)
    metrics = [metric for metric, _ in CLASSES.values()]
    rows = [
        {
            **_key(arm.organization_label, arm.headroom),
            "n": len(runs.seeds) - len(runs.missing_seeds(arm)),
            **_episode_counts(complete_histories(runs, arm)),
            **compare(
                _QUANTITIES,
                {
                    f"{name}_fraction": complete_mean(runs.values(arm, metric))
                    for name, (metric, _) in CLASSES.items()
                },
                _printed(arm.organization_label, arm.headroom),
            ),
        }
        for arm in arms
    ]
    keys = (*_KEYS, Column(heading="n", templates=("{n}",)))
    is_traced = any(row["episodes"] is not None for row in rows)
    return Table(
        name="C-2",
        title=f"Joint depth at first admission against queue entry, seeds {runs.seeds_text}, "
        "beside the published fractions",
        rows=pd.DataFrame(rows),
        views=(
            (*keys, *columns(_QUANTITIES[:3])),
            (*keys, *columns(_QUANTITIES[3:])),
            *((_episodes_view(keys),) if is_traced else ()),
        ),
        origin=runs.origin,
        notes=(
            "Fractions of a run's requests, mean over n seeds. A request counts once, at its first "
            "admission.",
            *(("Episodes of the n traces: admissions after a preemption too.",) * is_traced),
            *runs.notes,
        ),
        missing=missing_cells([(runs, arms, metrics)]),
    )


@derived("C-2")
def from_paper() -> Table:
    """The request counts behind the printed fractions."""
    per_row = _SEEDS * int(published_value("text", "G.2", "INITIAL requests per arm"))
    rows = []
    for printed in printed_rows("C-2"):
        counts = {name: round(printed[name] * per_row) for name in CLASSES}
        rows.append(
            {
                **_key(printed["organization"], printed["headroom"]),
                **{f"{name}_requests": count for name, count in counts.items()},
                "requests": sum(counts.values()),
                **compare(
                    _QUANTITIES,
                    {f"{name}_fraction": count / per_row for name, count in counts.items()},
                    _printed(printed["organization"], printed["headroom"]),
                ),
            }
        )
    counts_view = tuple(
        Column(heading=heading, templates=(f"{{{name}_requests:d}}",))
        for name, (_, heading) in CLASSES.items()
    )
    return Table(
        name="C-2",
        title="Joint depth at first admission against queue entry: requests behind the fractions",
        rows=pd.DataFrame(rows),
        views=(
            (*_KEYS, *counts_view, Column(heading="all", templates=("{requests:d}",))),
            (*_KEYS, *columns(_QUANTITIES[:3], here="count/all")),
            (*_KEYS, *columns(_QUANTITIES[3:], here="count/all")),
        ),
        origin=PAPER,
        notes=(
            f"Reconstructed: the fractions are those of {per_row} first admissions a row, the "
            f"requests of {_SEEDS} traced runs.",
        ),
    )


def traced_arms(runs: Runs) -> list[Arm]:
    """The cells of the traced runs, in the order of the paper."""
    arms = [arm for arm in runs.design.cells() if arm.trace]
    return sorted(arms, key=lambda arm: (str(arm.organization), arm.headroom or 0.0))


def complete_histories(runs: Runs, arm: Arm) -> list[History] | None:
    """The histories of all seeds of an arm; None if a run has no whole trace."""
    found = whole(runs.histories(arm).values())
    return found if found and len(found) == len(runs.seeds) else None


def _episode_counts(histories: list[History] | None) -> dict[str, int | None]:
    """Episodes by class; None if they are not known."""
    names = ("episodes", "resume_episodes", *(f"{name}_episodes" for name in CLASSES))
    if histories is None:
        return dict.fromkeys(names)
    episodes = [episode for history in histories for episode in history.episodes]
    classes = Counter(episode.depth_class for episode in episodes)
    num_resumes = sum(not episode.is_initial for episode in episodes)
    return {
        "episodes": len(episodes),
        "resume_episodes": num_resumes,
        **{f"{name}_episodes": classes[name] for name in DEPTH_CLASSES},
    }


def _episodes_view(keys: tuple[Column, ...]) -> tuple[Column, ...]:
    headings = {name: heading for name, (_, heading) in CLASSES.items()}
    headings |= {"resume": "of them RESUME"}
    return (
        *keys,
        *(
            Column(group="episodes", heading=heading, templates=(f"{{{name}_episodes:,.0f}}",))
            for name, heading in headings.items()
        ),
        Column(group="episodes", heading="all", templates=("{episodes:,.0f}",)),
    )


def _key(organization: str, headroom: float | None) -> dict[str, object]:
    return {"organization": organization, "headroom": headroom}


def _printed(organization: str, headroom: float | None) -> dict[str, Number]:
    row = printed_row("C-2", organization=organization, headroom=headroom)
    return renamed(row, ((name, f"{name}_fraction") for name in CLASSES))
