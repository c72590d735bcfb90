"""`python -m analysis beside`: simulated runs beside the measured runs of the same requests.

The two ledgers have different engines and are never mixed: each side is averaged over seeds on its
own, then the means are compared arm by arm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from analysis.command import parse_pairs
from analysis.errors import AnalysisError, NoRunsError
from analysis.ledgers import read_ledger
from analysis.runs import Origin, axis_of
from analysis.tables.table import Column, Table
from hsexp.config.axes import ARM_AXES
from hsexp.ledger import is_simulated
from hsexp.plan.cells import format_seeds

SIDES = ("measured", "simulated")

AXES = tuple(axis.name for axis in ARM_AXES)
"""Axes that distinguish the arms of a serving campaign; the seed is not one of them."""


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A metric that both sides have, and how close they should be."""

    name: str
    heading: str
    limit_pct: float | None = None
    """Largest allowed relative difference of an arm's means; None sets no limit."""


QUANTITIES = (
    Quantity(name="prefill_tokens", heading="prefill tokens", limit_pct=5.0),
    Quantity(name="decode_tokens", heading="decode tokens", limit_pct=5.0),
    Quantity(name="adopted_tokens_mean", heading="adopted tokens a request", limit_pct=5.0),
    Quantity(name="num_preemptions", heading="preemptions", limit_pct=5.0),
    Quantity(name="refusals", heading="refused admissions, by try", limit_pct=5.0),
    Quantity(name="published_checkpoints", heading="published checkpoints", limit_pct=5.0),
    Quantity(name="lost_checkpoints", heading="lost checkpoints", limit_pct=5.0),
    Quantity(name="lost_blocks", heading="lost blocks", limit_pct=5.0),
    Quantity(name="retained_checkpoints", heading="retained checkpoints", limit_pct=5.0),
    Quantity(name="num_steps", heading="steps", limit_pct=5.0),
    Quantity(name="h_per_k_mean", heading="tokens a step", limit_pct=5.0),
    Quantity(name="stranded_fraction", heading="stranded fraction", limit_pct=5.0),
    Quantity(name="slab_occupancy", heading="slab occupancy", limit_pct=5.0),
    Quantity(name="running_mean", heading="running, as polled", limit_pct=5.0),
    Quantity(name="waiting_mean", heading="waiting, as polled", limit_pct=5.0),
    Quantity(name="throughput_tok_per_s", heading="throughput, tokens/s", limit_pct=10.0),
    Quantity(name="e2e_p50_s", heading="E2E p50, s"),
    Quantity(name="e2e_p99_s", heading="E2E p99, s"),
    Quantity(name="ttft_p50_s", heading="TTFT p50, s"),
    Quantity(name="ttft_p99_s", heading="TTFT p99, s"),
)


def compare_ledgers(arguments: Sequence[str]) -> tuple[list[Table], Path]:
    """The tables, and their output folder, by default next to the measured ledger's own tables.

    Raises:
        AnalysisError: an argument is refused, a ledger cannot be read, or the two have no cell of
            the same requests in common.
    """
    given = parse_pairs(arguments, keys=(*SIDES, "out"))
    for side in SIDES:
        if side not in given:
            raise AnalysisError(f"{side}= is required: the folder of a ledger")
    frames = {side: _read(Path(given[side]), side) for side in SIDES}
    tables = compare(frames["measured"], frames["simulated"])
    return tables, Path(given.get("out", Path(given["measured"]) / "analysis"))


def compare(measured: pd.DataFrame, simulated: pd.DataFrame) -> list[Table]:
    """Two tables: one with a row per arm, one with a row per quantity.

    Args:
        measured, simulated: adopted attempts (`Ledger.frame`), each of one origin.

    Raises:
        NoRunsError: no cell is in both.
        AnalysisError: a cell served different requests on the two sides.
    """
    measured, simulated = _naming_the_same(measured, simulated)
    axes = [axis for axis in AXES if axis in measured and axis in simulated]
    keys = [*axes, "seed"]
    both = measured[[*keys, "workload_digest"]].merge(
        simulated[[*keys, "workload_digest"]], on=keys, suffixes=("", "_simulated")
    )
    if both.empty:
        raise NoRunsError("the two ledgers have no cell in common")
    other = both[both["workload_digest"] != both["workload_digest_simulated"]]
    if not other.empty:
        cell = _describe(_records(other)[0], keys)
        raise AnalysisError(f"{cell}: the two sides served different requests")
    common = [frame.merge(both[keys], on=keys) for frame in (measured, simulated)]
    origin = Origin(data_kind=f"{Origin.of(measured)} beside {Origin.of(simulated)}")
    seeds = format_seeds(sorted(both["seed"].unique()))
    lonely = {
        side: len(frame) - len(both)
        for side, frame in zip(SIDES, (measured, simulated), strict=True)
    }
    notes = tuple(
        f"{count} {side} cells have no counterpart." for side, count in lonely.items() if count
    )
    notes += _over_fewer_seeds(both, axes)
    rows = _differences(_means(common[0], axes), _means(common[1], axes), axes)
    return [_arms_table(rows, seeds, origin, notes), _quantities_table(rows, seeds, origin)]


def _read(path: Path, side: str) -> pd.DataFrame:
    _, frame = read_ledger(path)
    if frame.empty:
        raise NoRunsError(f"{path}: no run was adopted")
    kind = frame["data_kind"].iloc[0]
    if is_simulated(kind) != (side == "simulated"):
        raise AnalysisError(f"{side}={path}: its runs are {kind}")
    return frame


def _naming_the_same(*frames: pd.DataFrame) -> list[pd.DataFrame]:
    """The frames with a column for each axis that a cell of any of them names."""
    named = [
        axis.name
        for axis in ARM_AXES
        if axis.is_implied and any(axis.name in frame for frame in frames)
    ]
    return [frame.assign(**{axis: axis_of(frame, axis) for axis in named}) for frame in frames]


def _over_fewer_seeds(cells: pd.DataFrame, axes: list[str]) -> tuple[str, ...]:
    """A note that names the arms without all seeds; their means are over the seeds they have."""
    seeds = cells.groupby(axes, sort=True)["seed"].nunique().reset_index()
    num_seeds = cells["seed"].nunique()
    varied = _varied(seeds)
    arms = [
        f"{_describe(row, varied)} ({row['seed']} of {num_seeds})"
        for row in _records(seeds[seeds["seed"] < num_seeds])
    ]
    return (f"Means over fewer seeds: {', '.join(arms)}.",) if arms else ()


def _means(frame: pd.DataFrame, axes: list[str]) -> pd.DataFrame:
    """Means over seeds by arm; a metric that any seed lacks has no mean."""
    names = [quantity.name for quantity in QUANTITIES if quantity.name in frame]
    values = frame[names].apply(pd.to_numeric, errors="coerce")
    groups = values.groupby([frame[axis] for axis in axes], sort=True)
    means: pd.DataFrame = groups.mean().where(groups.count().eq(groups.size(), axis=0))
    return means


def _differences(measured: pd.DataFrame, simulated: pd.DataFrame, axes: list[str]) -> pd.DataFrame:
    """One row per arm and quantity: both means and 100 (simulated / measured - 1).

    Equal values have a difference of 0, even if both are 0; a nonzero value over 0 has no ratio.
    """
    long = [
        side.reset_index().melt(axes, var_name="quantity", value_name=name)
        for name, side in zip(SIDES, (measured, simulated), strict=True)
    ]
    rows = long[0].merge(long[1], on=[*axes, "quantity"]).dropna(subset=list(SIDES))
    difference = 100.0 * (rows["simulated"] - rows["measured"])
    ratio = difference / rows["measured"].where(rows["measured"] != 0.0)
    rows["difference_pct"] = ratio.where(difference != 0.0, 0.0)
    return rows


def _arms_table(rows: pd.DataFrame, seeds: str, origin: Origin, notes: tuple[str, ...]) -> Table:
    shown = ("throughput_tok_per_s", "prefill_tokens", "num_steps", "lost_checkpoints")
    axes = [axis for axis in AXES if axis in rows]
    wide = pd.concat(
        [
            # Not pivot_table, which leaves out a quantity without a single ratio.
            rows.pivot(index=axes, columns="quantity", values=value).add_suffix(  # noqa: PD010
                f"_{value}"
            )
            for value in (*SIDES, "difference_pct")
        ],
        axis="columns",
    )
    headings = {quantity.name: quantity.heading for quantity in QUANTITIES}
    columns = [Column(heading=axis, templates=(f"{{{axis}}}",)) for axis in _varied(rows)]
    for name in shown:
        columns += [
            Column(group=headings[name], heading=heading, templates=(f"{{{name}_{key}:{form}}}",))
            for heading, key, form in (
                ("measured", "measured", ",.0f"),
                ("simulated", "simulated", ",.0f"),
                ("%", "difference_pct", "+.1f"),
            )
        ]
    return Table(
        name="simulated-beside-measured",
        title=f"Simulated beside measured runs of the same requests, seeds {seeds}",
        rows=wide.reset_index(),
        views=(tuple(columns),),
        origin=origin,
        notes=("Means over seeds; % is simulated over measured.", *notes),
    )


def _quantities_table(rows: pd.DataFrame, seeds: str, origin: Origin) -> Table:
    axes = _varied(rows)
    return Table(
        name="simulated-beside-measured-summary",
        title=f"How far simulated runs are from measured ones, seeds {seeds}",
        rows=pd.DataFrame(
            [
                _summary(quantity, found, axes)
                for quantity in QUANTITIES
                if not (found := rows[rows["quantity"] == quantity.name]).empty
            ]
        ),
        views=(_SUMMARY,),
        origin=origin,
        notes=(
            "Over arms, from their means over seeds. Without a ratio: measured 0, simulated more.",
            "Polled: a server's gauges show the state after its last step, so they miss a request "
            "during the step that admits it; the simulator counts it from then on.",
        ),
    )


def _summary(quantity: Quantity, rows: pd.DataFrame, axes: list[str]) -> dict[str, object]:
    known = _records(rows.dropna(subset=["difference_pct"]))
    sizes = [abs(row["difference_pct"]) for row in known]
    farthest = max(known, key=lambda row: abs(row["difference_pct"]), default=None)
    measured, simulated = rows["measured"].sum(), rows["simulated"].sum()
    limit = quantity.limit_pct
    return {
        "quantity": quantity.heading,
        "num_arms": len(rows),
        "num_without_ratio": len(rows) - len(known),
        "pooled_pct": 100.0 * (simulated / measured - 1.0) if measured else None,
        "mean_size_pct": fmean(sizes) if sizes else None,
        "largest_pct": None if farthest is None else farthest["difference_pct"],
        "farthest": _describe(farthest, axes) if farthest and farthest["difference_pct"] else None,
        "limit_pct": limit,
        "num_within": None if limit is None else sum(size <= limit for size in sizes),
    }


_SUMMARY = (
    Column(heading="quantity", templates=("{quantity}",)),
    Column(heading="arms", templates=("{num_arms:d}",)),
    Column(heading="without ratio", templates=("{num_without_ratio:d}",)),
    Column(heading="of the sums, %", templates=("{pooled_pct:+.1f}",)),
    Column(heading="mean size, %", templates=("{mean_size_pct:.1f}",)),
    Column(heading="largest, %", templates=("{largest_pct:+.1f}",)),
    Column(heading="farthest", templates=("{farthest}",)),
    Column(heading="wanted, %", templates=("{limit_pct:.0f}",)),
    Column(heading="within", templates=("{num_within:.0f}/{num_arms:d}",)),
)


def _varied(rows: pd.DataFrame) -> list[str]:
    """The organization, and the axes that distinguish these arms."""
    return [
        axis
        for axis in AXES
        if axis in rows and (axis == "organization" or len(rows[axis].unique()) > 1)
    ]


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = frame.to_dict("records")  # type: ignore[assignment]
    return records


def _describe(row: Mapping[str, Any], axes: Sequence[str]) -> str:
    return " ".join(f"{axis} {row[axis]}" if axis == "seed" else str(row[axis]) for axis in axes)
