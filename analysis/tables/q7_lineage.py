"""Appendix C.1 in numbers: episodes, depth classes and the lineage of depths of the traced runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.histories import History
from analysis.ledgers import missing_cells
from analysis.published import published_value
from analysis.runs import Runs
from analysis.tables.beside import less
from analysis.tables.c2 import complete_histories, traced_arms
from analysis.tables.registry import table
from analysis.tables.table import Column, Table
from hsexp.config.arm import Arm
from hsexp.trace.lineage import Beneficiary, Change, Lineage

Count = Callable[[History], int]


@dataclass(frozen=True, kw_only=True)
class _Quantity:
    """A count of one run, and the paper's name of its total over all runs."""

    heading: str
    count: Count
    published: str | None = None


def _episodes(matches: Callable[[Lineage], bool]) -> Count:
    return lambda history: sum(map(matches, history.lineages))


def _of_class(name: str) -> Count:
    return _episodes(lambda lineage: lineage.episode.depth_class == name)


def _losses(matches: Callable[[Lineage, Change], bool]) -> Count:
    return lambda history: sum(
        matches(lineage, loss) for lineage in history.lineages for loss in lineage.losses
    )


def _lost_for(whom: Beneficiary) -> Count:
    return _losses(lambda lineage, loss: lineage.beneficiary(loss) == whom)


def _publications(name: str) -> Count:
    return lambda history: int(getattr(history.publications, name))


_QUANTITIES = (
    _Quantity(
        heading="admission episodes",
        count=lambda history: len(history.lineages),
        published="admission episodes",
    ),
    _Quantity(
        heading="of them RESUME", count=_episodes(lambda lineage: not lineage.episode.is_initial)
    ),
    _Quantity(
        heading="scalar replay and lineage end at Jadopt",
        count=_episodes(lambda lineage: lineage.episode.is_replayed and lineage.is_replayed),
        published="scalar replay and lineage endpoints matched",
    ),
    _Quantity(
        heading="zero to zero",
        count=_of_class("zero_to_zero"),
        published="zero-to-zero episodes",
    ),
    _Quantity(
        heading="positive equal",
        count=_of_class("positive_equal"),
        published="positive-equal episodes",
    ),
    _Quantity(
        heading="newly reusable",
        count=_of_class("zero_to_positive"),
        published="newly reusable episodes",
    ),
    _Quantity(heading="deeper", count=_of_class("deeper"), published="deeper episodes"),
    _Quantity(heading="reduced", count=_of_class("shallower"), published="reduced-depth episodes"),
    _Quantity(
        heading="reduced, with a loss to an allocation of another request",
        count=_episodes(
            lambda lineage: (
                lineage.episode.depth_class == "shallower" and bool(lineage.lost_to_others)
            )
        ),
        published="reduced-depth episodes that include an other-request loss",
    ),
    _Quantity(
        heading="depth-decreasing losses",
        count=_losses(lambda lineage, loss: True),
        published="depth-decreasing loss events",
    ),
    _Quantity(heading="of a state", count=_losses(lambda lineage, loss: loss.entry == "state")),
    _Quantity(
        heading="of attention", count=_losses(lambda lineage, loss: loss.entry == "attention")
    ),
    _Quantity(heading="for another request", count=_lost_for("other")),
    _Quantity(heading="for the waiting request itself", count=_lost_for("own")),
    _Quantity(heading="for nobody (reset)", count=_lost_for("none")),
    _Quantity(
        heading="depth-increasing publications",
        count=lambda history: sum(len(lineage.publications) for lineage in history.lineages),
        published="depth-increasing publication events",
    ),
    _Quantity(heading="all publications of pages and states", count=_publications("total")),
    _Quantity(heading="of them in a step with other publishers", count=_publications("same_step")),
    _Quantity(
        heading="of these with an ambiguous producer",
        count=_publications("ambiguous"),
        published="same-step publications with ambiguous producer",
    ),
)


@table("q7-lineage", block=("q7", "availability"), lacks="the events behind its totals")
def from_runs(runs: Runs) -> Table:
    """Totals over the seeds of each arm, and over all arms beside the published ones."""
    arms = traced_arms(runs)
    histories = {_name(arm): complete_histories(runs, arm) for arm in arms}
    rows = [_row(quantity, histories) for quantity in _QUANTITIES]
    untraced = [_label(arm) for arm in arms if histories[_name(arm)] is None]
    notes = [
        "Sums over the seeds of an arm. A loss or a publication counts once for each waiting "
        "request whose joint depth it changes.",
        "Every loss and publication names its page by life, its producer and the request it was "
        "for; ambiguous ones are counted from the events.",
    ]
    if untraced:
        notes.append(f"Not every run has a whole trace: {', '.join(untraced)}.")
    return Table(
        name="q7-lineage",
        title=f"Lineage of joint depths, seeds {runs.seeds_text}, beside the published totals",
        rows=pd.DataFrame(rows),
        views=(
            (
                Column(heading="count", templates=("{quantity}",)),
                *(
                    Column(heading=_label(arm), templates=(f"{{{_name(arm)}:,.0f}}",))
                    for arm in arms
                ),
                Column(group="all", heading="here", templates=("{total:,.0f}",)),
                Column(group="all", heading="paper", templates=("{total_published:,.0f}",)),
                Column(group="all", heading="diff", templates=("{total_difference:+,.0f}",)),
            ),
        ),
        origin=runs.origin,
        notes=(*notes, *runs.notes),
        missing=missing_cells([(runs, arms, ())]),
    )


def _row(
    quantity: _Quantity, histories: dict[str, list[History] | None]
) -> dict[str, str | float | None]:
    by_arm = {name: _sum(quantity.count, found) for name, found in histories.items()}
    known = [count for count in by_arm.values() if count is not None]
    total = sum(known) if len(known) == len(by_arm) else None
    paper = None
    if quantity.published is not None:
        paper = published_value("text", "C.1", quantity.published)
    return {
        "quantity": quantity.heading,
        **by_arm,
        "total": total,
        "total_published": paper,
        "total_difference": less(total, paper),
    }


def _sum(count: Count, histories: Sequence[History] | None) -> int | None:
    return None if histories is None else sum(map(count, histories))


def _name(arm: Arm) -> str:
    """Column of an arm; a template would read a decimal point as an attribute."""
    return f"{arm.organization}_f{round(100 * (arm.headroom or 0.0))}"


def _label(arm: Arm) -> str:
    return f"{arm.organization_label} f = {arm.headroom or 0.0:g}"
