"""The tables of Q10: predictions, grid, latency, ladder of rules, bounds, other workloads."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.holm import holm
from analysis.intervals import paired_t_percent
from analysis.ledgers import Ledgers, Need, common_origin, missing_cells
from analysis.q10 import Cell, cell_of, declaration
from analysis.signflip import sign_flip_test
from analysis.tables.registry import table
from analysis.tables.table import Column, Table

_LACKS = "any such experiment"

TTFT = "ttft_p99_s"

_PERCENT = "{%s:+.1f}"

_OF_CELL = (
    Column(heading="budget", templates=("{budget}",)),
    Column(heading="req/s", templates=("{rate_per_s:g}",)),
    Column(heading="q", templates=("{sharing:g}",)),
)


@table("q10-predictions", lacks=_LACKS)
def predictions(ledgers: Ledgers) -> Table:
    """The three primaries with Holm's p, and the controls with their margins."""
    config = declaration()
    declared = [*config.primaries, *config.controls]
    cells = [cell_of(ledgers, contrast) for contrast in declared]
    logs = [
        cell.logs(contrast.numerator, contrast.denominator)
        for cell, contrast in zip(cells, declared, strict=True)
    ]
    p_values = [
        np.nan if each is None else sign_flip_test(each.to_numpy()).p_value
        for each in logs[: len(config.primaries)]
    ]
    adjusted = holm(p_values)
    rows: list[dict[str, Any]] = []
    for index, (contrast, cell, each) in enumerate(zip(declared, cells, logs, strict=True)):
        known = each is not None and len(each) > 1
        interval = (
            paired_t_percent(each, level=config.level) if each is not None and known else None
        )
        row: dict[str, Any] = {
            "id": contrast.id,
            "numerator": contrast.numerator,
            "denominator": contrast.denominator,
            **_place(cell),
            "n": 0 if each is None else len(each),
            "change_percent": cell.change_percent(contrast.numerator, contrast.denominator),
            "low_percent": interval and interval.low,
            "high_percent": interval and interval.high,
        }
        if index < len(config.primaries):
            low, high = config.primaries[index].predicted_percent
            p = float(adjusted[index])
            row |= {"predicted": f"{low:+.1f} to {high:+.1f} %", "holm_p": p}
            row["found"] = _verdict(row["change_percent"], p, low, high, alpha=config.alpha)
        else:
            margin = config.controls[index - len(config.primaries)].margin_percent
            row |= {"predicted": f"above {margin:+.1f} %", "holm_p": None}
            row["found"] = (
                None if interval is None else "holds" if interval.low > margin else "fails"
            )
        rows.append(row)
    return _table(
        "q10-predictions",
        "What was predicted of the policies, and what fresh seeds show",
        rows,
        (
            (
                Column(heading="", templates=("{id}",)),
                Column(heading="arm", templates=("{numerator}",)),
                Column(heading="over", templates=("{denominator}",)),
                *_OF_CELL,
                Column(heading="n", templates=("{n}",)),
                Column(heading="predicted", templates=("{predicted}",)),
                Column(heading="change, %", templates=("{change_percent:+.2f}",)),
                Column(
                    heading="interval", templates=("{low_percent:+.2f} to {high_percent:+.2f}",)
                ),
                Column(heading="Holm p", templates=("{holm_p:.5f}",)),
                Column(heading="found", templates=("{found}",)),
            ),
        ),
        cells,
        notes=(
            "Change: geometric mean over seeds of paired throughput ratios. Interval: paired t of "
            f"log ratios, {100 * config.level:g} %.",
            f"P1 to P3: exact two-sided sign flips of log ratios, Holm over "
            f"{len(config.primaries)} at {config.alpha:g}. Controls: the interval must lie above "
            "the margin.",
        ),
        needs=[
            cell.need([contrast.numerator, contrast.denominator])
            for cell, contrast in zip(cells, declared, strict=True)
        ],
    )


def _verdict(
    change: float | None, p: float, low: float, high: float, *, alpha: float
) -> str | None:
    if change is None or np.isnan(p):
        return None
    if p > alpha:
        return "not shown"
    if change * (low + high) < 0.0:
        return "refuted: the other sign"
    if low <= change <= high:
        return "confirmed"
    return "confirmed, smaller" if change < low else "confirmed, larger"


@table("q10-grid", lacks=_LACKS)
def grid(ledgers: Ledgers) -> Table:
    """Throughput of the best baselines in each cell, and what each candidate changes."""
    config = declaration()
    cells = _cells(ledgers, config.grid)
    rows: list[dict[str, Any]] = []
    for cell in cells:
        plain, fair = cell.best(config.baselines), cell.best(config.all_baselines)
        row = _place(cell) | {
            "best": plain,
            "best_tok_per_s": None if plain is None else cell.mean(plain),
            "best_fair": fair,
            "best_fair_tok_per_s": None if fair is None else cell.mean(fair),
            "best_fair_sd": None if fair is None else float(cell.values(fair).std(ddof=1)),
        }
        row |= cell.changes_percent(config.candidates, fair)
        rows.append(row)
    return _table(
        "q10-grid",
        "The policies against the best baseline of each cell",
        rows,
        (
            (
                *_OF_CELL,
                Column(group="first come", heading="best", templates=("{best}",)),
                Column(group="first come", heading="tok/s", templates=("{best_tok_per_s:.0f}",)),
                Column(group="any order", heading="best", templates=("{best_fair}",)),
                Column(
                    group="any order",
                    heading="tok/s ± sd",
                    templates=("{best_fair_tok_per_s:.0f} ± {best_fair_sd:.0f}",),
                ),
                *_changes(config.candidates, group="over the best of any order, %"),
            ),
        ),
        cells,
        notes=(
            "Baselines: S2 and D0 without headroom, with the headroom of the tuning seeds (_f), S2 "
            "with retention, first come first served or hit-first (_hit). The best one is chosen "
            "on the seeds of this table, which favours it.",
            f"{_num_at_least(rows, 's3_p_percent', -0.5)} of {len(rows)} cells have s3_p at most "
            "0.5 % below the best baseline.",
        ),
        needs=[cell.need([*config.all_baselines, *config.candidates]) for cell in cells],
    )


@table("q10-latency", lacks=_LACKS)
def latency(ledgers: Ledgers) -> Table:
    """Time to the first token beside the throughput of the grid."""
    config = declaration()
    cells = _cells(ledgers, config.grid)
    rows: list[dict[str, Any]] = []
    for cell in cells:
        best = cell.best(config.all_baselines)
        base = None if best is None else cell.mean(best, TTFT)
        row = _place(cell) | {"best_fair": best, "best_fair_ttft_p99_s": base}
        worse = []
        for name in config.candidates:
            value = cell.mean(name, TTFT)
            row[f"{name}_ttft_p99_s"] = value
            if value is not None and base is not None and value > 1.05 * base:
                worse.append(name)
        row["worse"] = ", ".join(worse) or "none"
        rows.append(row)
    return _table(
        "q10-latency",
        "TTFT p99 of the policies and of the best baseline, seconds",
        rows,
        (
            (
                *_OF_CELL,
                Column(group="best baseline", heading="arm", templates=("{best_fair}",)),
                Column(
                    group="best baseline", heading="s", templates=("{best_fair_ttft_p99_s:.1f}",)
                ),
                *(
                    Column(heading=name, templates=(f"{{{name}_ttft_p99_s:.1f}}",))
                    for name in config.candidates
                ),
                Column(heading="more than 5 % above it", templates=("{worse}",)),
            ),
        ),
        cells,
        notes=("The best baseline is the one with the highest throughput. Means over seeds.",),
        needs=[cell.need([*config.all_baselines, *config.candidates]) for cell in cells],
    )


@table("q10-ladder", lacks=_LACKS)
def ladder(ledgers: Ledgers) -> Table:
    """The rules one after the other, over a flat LRU."""
    config = declaration().ladder
    cells = _cells(ledgers, [config.block])
    sharings = sorted({float(cell.place.sharing or 0.0) for cell in cells})
    first, arms = config.steps[0], (*config.steps[1:], *config.others)
    rows = []
    for name in arms:
        row: dict[str, Any] = {"arm": name}
        for sharing in sharings:
            changes = [
                np.log1p(change / 100.0)
                for cell in cells
                if cell.place.sharing == sharing
                and (change := cell.change_percent(name, first)) is not None
            ]
            wanted = sum(cell.place.sharing == sharing for cell in cells)
            complete = len(changes) == wanted > 0
            row[_of_sharing(sharing)] = (
                100.0 * float(np.expm1(np.mean(changes))) if complete else None
            )
        rows.append(row)
    return _table(
        "q10-ladder",
        f"The rules one after the other: change over {first}",
        rows,
        (
            (
                Column(heading="arm", templates=("{arm}",)),
                *(
                    Column(
                        group="change, %",
                        heading=f"q = {sharing:g}",
                        templates=(_PERCENT % _of_sharing(sharing),),
                    )
                    for sharing in sharings
                ),
            ),
        ),
        cells,
        notes=(
            "Geometric means over the budgets and rates of the block, each over its seeds.",
            f"Each step keeps the rules before it; {', '.join(config.others)} stand alone.",
        ),
        needs=[cell.need([first, *arms]) for cell in cells],
    )


@table("q10-bounds", lacks=_LACKS)
def bounds(ledgers: Ledgers) -> Table:
    """How much of what is possible the policies reach, on the seeds of the bounds."""
    config = declaration()
    fine, boundless = config.bounds.fine, config.bounds.boundless
    of_fine = _cells(ledgers, [fine.block])
    of_boundless = _cells(ledgers, [boundless.block])
    ladder_cells = _cells(ledgers, [config.ladder.block])
    rows: list[dict[str, Any]] = []
    for cell in of_fine:
        same = _same_place(ladder_cells, cell, ("budget", "rate_per_s", "sharing"))
        free = _same_place(of_boundless, cell, ("rate_per_s", "sharing"))
        limit = None if free is None else free.mean(boundless.arm)
        fine_mean = cell.mean(fine.arm)
        row = _place(cell) | {"boundless_tok_per_s": limit, "fine_tok_per_s": fine_mean}
        for name in ("s2_p", "s3_p"):
            mean = None if same is None else same.mean(name)
            row[f"{name}_tok_per_s"] = mean
            row[f"{name}_of_fine_percent"] = _share(mean, fine_mean)
            row[f"{name}_of_boundless_percent"] = _share(mean, limit)
        rows.append(row)
    return _table(
        "q10-bounds",
        "The policies and what bounds them, output tokens per second",
        rows,
        (
            (
                *_OF_CELL,
                Column(heading="boundless", templates=("{boundless_tok_per_s:.0f}",)),
                Column(heading="fine pages", templates=("{fine_tok_per_s:.0f}",)),
                *(
                    Column(group=name, heading=heading, templates=(f"{{{name}_{key}",))
                    for name in ("s2_p", "s3_p")
                    for heading, key in (
                        ("tok/s", "tok_per_s:.0f}"),
                        ("of fine, %", "of_fine_percent:.0f}"),
                        ("of boundless, %", "of_boundless_percent:.0f}"),
                    )
                ),
            ),
        ),
        [*of_fine, *of_boundless, *ladder_cells],
        notes=(
            "Boundless: S2 with hit-first and memory that nothing fills. Fine pages: the policy on "
            "pages of 32 tokens, which stand for the bytes that are live. Neither is an upper "
            "bound in the strict sense.",
        ),
        needs=[cell.need([fine.arm]) for cell in of_fine]
        + [cell.need([boundless.arm]) for cell in of_boundless],
    )


@table("q10-stress", lacks=_LACKS)
def stress(ledgers: Ledgers) -> Table:
    """The candidates on other workloads."""
    config = declaration()
    rows: list[dict[str, Any]] = []
    cells = []
    for block in config.stress:
        for cell in Cell.of(ledgers, block):
            cells.append(cell)
            fair = cell.best(config.all_baselines)
            row: dict[str, Any] = {
                "workload": block,
                "budget": cell.place.budget,
                "best_fair": fair,
                "rate_per_s": cell.place.rate_per_s,
                "best_fair_tok_per_s": None if fair is None else cell.mean(fair),
                "best_fair_ttft_p99_s": None if fair is None else cell.mean(fair, TTFT),
                "s3_p_ttft_p99_s": cell.mean("s3_p", TTFT),
            }
            row |= cell.changes_percent(config.candidates, fair)
            rows.append(row)
    return _table(
        "q10-stress",
        "The policies on other workloads",
        rows,
        (
            (
                Column(heading="workload", templates=("{workload}",)),
                Column(heading="budget", templates=("{budget}",)),
                Column(heading="req/s", templates=("{rate_per_s:g}",)),
                Column(group="best baseline", heading="arm", templates=("{best_fair}",)),
                Column(
                    group="best baseline", heading="tok/s", templates=("{best_fair_tok_per_s:.0f}",)
                ),
                *_changes(config.candidates, group="over it, %"),
                Column(
                    group="TTFT p99, s", heading="best", templates=("{best_fair_ttft_p99_s:.1f}",)
                ),
                Column(group="TTFT p99, s", heading="s3_p", templates=("{s3_p_ttft_p99_s:.1f}",)),
            ),
        ),
        cells,
        notes=("docs/workloads.md describes the workloads.",),
        needs=[cell.need([*config.all_baselines, *config.candidates]) for cell in cells],
    )


# -- shared by the tables ------------------------------------------------------------------------


def _cells(ledgers: Ledgers, blocks: Iterable[str]) -> list[Cell]:
    return [cell for block in blocks for cell in Cell.of(ledgers, block)]


def _place(cell: Cell) -> dict[str, Any]:
    axes = ("budget", "rate_per_s", "sharing")
    return {axis: cell.place.axes.get(axis) for axis in axes}


def _of_sharing(sharing: float) -> str:
    """Name of a column; a template cannot name one with a point."""
    return f"q{100 * sharing:.0f}_percent"


def _same_place(cells: Iterable[Cell], like: Cell, axes: Sequence[str]) -> Cell | None:
    wanted = {axis: like.place.axes.get(axis) for axis in axes}
    found = (cell for cell in cells if {axis: cell.place.axes.get(axis) for axis in axes} == wanted)
    return next(found, None)


def _share(value: float | None, whole: float | None) -> float | None:
    return None if value is None or not whole else 100.0 * value / whole


def _changes(names: Iterable[str], *, group: str) -> tuple[Column, ...]:
    return tuple(
        Column(group=group, heading=name, templates=(_PERCENT % f"{name}_percent",))
        for name in names
    )


def _num_at_least(rows: Iterable[dict[str, Any]], name: str, least: float) -> int:
    return sum(row[name] is not None and row[name] >= least for row in rows)


def _table(
    name: str,
    title: str,
    rows: list[dict[str, Any]],
    views: tuple[tuple[Column, ...], ...],
    cells: Iterable[Cell],
    *,
    notes: tuple[str, ...],
    needs: Iterable[Need],
) -> Table:
    frame = pd.DataFrame(rows)
    if "sharing" in frame and frame["sharing"].dtype == object:
        frame["sharing"] = frame["sharing"].astype("float64")
    return Table(
        name=name,
        title=title,
        rows=frame,
        views=views,
        origin=common_origin([cell.runs for cell in cells]),
        notes=notes,
        missing=missing_cells(needs),
    )
