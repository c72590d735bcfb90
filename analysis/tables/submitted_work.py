"""Tables B-4 and E-6 to E-10: submitted tokens, forwards and event time at three operating points.

Appendices B.8 and E.2. The paper runs each point with and without instrumentation (TRACE, REF).
Watching a simulated run costs nothing, so the same runs are shown beside both.
"""

from collections.abc import Callable

import pandas as pd

from analysis.config import block_design
from analysis.effects import pair_up
from analysis.ledgers import Ledgers, common_origin, missing_cells
from analysis.published import published_table, published_value
from analysis.runs import Origin, Runs
from analysis.tables.beside import Quantity, complete_mean
from analysis.tables.cells import (
    Layout,
    Measure,
    Place,
    cell_table,
    mean_change,
    measure,
    text_column,
)
from analysis.tables.registry import computed, table
from analysis.tables.relations import Relation, relations_table
from analysis.tables.table import Table
from hsexp.config.arm import Arm

CAMPAIGN = "submitted_work"
POINTS = ("L", "M", "H")
"""Blocks of the campaign, as Table B-4 names them."""
D0, S2 = Arm(organization="d0"), Arm(organization="s2")
CONDITIONS = ("REF", "TRACE")

_KEYS = (text_column("point", "point"), text_column("org.", "organization"))
_POINT = _KEYS[0]


@computed("B-4")
def b4() -> Table:
    """The operating points, as planned in conf/campaign."""
    relations = []
    for point in POINTS:
        design = block_design(CAMPAIGN, point)
        amounts = {
            "rate": design.rate_per_s[0],
            "cap": design.cap[0],
            "seed_first": design.seeds[0],
            "seed_last": design.seeds[-1],
            "runs": len(design.organization) * len(design.seeds) * len(CONDITIONS),
        }
        relations += [
            Relation(row=point, column=column, computed=float(value or 0), formula=formula)
            for (column, value), formula in zip(
                amounts.items(),
                (*4 * (f"conf/campaign/{CAMPAIGN}",), "organizations x seeds x REF, TRACE"),
                strict=True,
            )
        ]
    return relations_table(
        "B-4",
        "Operating points of the submitted-work diagnostic",
        relations,
        origin=Origin(data_kind="read from conf/campaign"),
        notes=("Simulated REF and TRACE runs are the same runs.",),
    )


@table("E-6")
def e6(ledgers: Ledgers) -> Table:
    """Throughput, submitted tokens, forwards and event time."""
    return _cells(
        ledgers,
        name="E-6",
        title="Work and event time of the same runs",
        measures=(
            measure(
                "throughput_tok_per_s", "tokens/s", ".3f", "throughput_tok_per_s", "throughput"
            ),
            measure(
                "submitted_tokens",
                "submitted, tokens",
                ",.1f",
                "submitted_tokens",
                "submitted_tokens",
            ),
            measure("forwards", "forwards", ",.1f", "k_records", "token_bearing_forwards"),
            measure("event_time_s", "event time, s", ".3f", "event_time_s", "event_time"),
        ),
        parts=(2, 2),
        notes=(
            "Forwards: steps that carry tokens. Event time: sum of step durations, which the time "
            "model gives; in the paper, of CUDA events.",
        ),
    )


@table("E-7")
def e7(ledgers: Ledgers) -> Table:
    """Ratios of pooled work and time, and the mean paired gap."""
    quantities = {
        "submitted_token_ratio_d0_s2": ("tokens D0/S2", ".4f", "submitted_tokens"),
        "event_time_ratio_d0_s2": ("event time D0/S2", ".4f", "event_time_s"),
        "ref_gap": ("REF gap, %", "+.3f", None),
        "trace_gap": ("TRACE gap, %", "+.3f", None),
    }
    shown = {name: Quantity(name=name, heading=h, spec=s) for name, (h, s, _) in quantities.items()}
    rows = []
    for point in POINTS:
        runs = ledgers.runs(CAMPAIGN, point)
        gap = mean_change(runs, D0, S2, "throughput_tok_per_s")
        entries: dict[str, object] = {"point": point}
        for name, (_, _, metric) in quantities.items():
            here = gap if metric is None else _pooled_ratio(runs, metric)
            entries |= shown[name].compare(here, published_value("E-7", point, name))
        rows.append(entries)
    first, second = list(shown.values())[:2], list(shown.values())[2:]
    return Table(
        name="E-7",
        title="Pooled work and time ratios, and mean paired throughput gaps",
        rows=pd.DataFrame(rows),
        views=tuple(
            (_POINT, *(column for quantity in part for column in quantity.columns()))
            for part in (first, second)
        ),
        origin=common_origin(ledgers.runs(CAMPAIGN, point) for point in POINTS),
        notes=(
            "Ratios of totals over all seeds; gaps are means of seedwise 100 (D0/S2 − 1). Watching "
            "a simulated run changes nothing: one gap stands beside REF and TRACE.",
        ),
        missing=_missing(ledgers, ["submitted_tokens", "event_time_s", "throughput_tok_per_s"]),
    )


@table("E-8")
def e8(ledgers: Ledgers) -> Table:
    """D0 minus S2 in the event time of prefill-only, decode-only and mixed steps."""
    shown = {point: Quantity(name=point, heading=f"{point}, s", spec="+.4f") for point in POINTS}
    differences = {point: _phase_differences(ledgers, point) for point in POINTS}
    rows = []
    for phase in published_table("E-8").index:
        entries: dict[str, object] = {"phase": phase}
        for point, quantity in shown.items():
            entries |= quantity.compare(
                differences[point].get(phase), published_value("E-8", phase, point)
            )
        rows.append(entries)
    steps = "step tables (run the campaign with record_steps=true)"
    return Table(
        name="E-8",
        title="D0 minus S2: event time by phase",
        rows=pd.DataFrame(rows),
        views=(
            (
                text_column("phase", "phase"),
                *(column for quantity in shown.values() for column in quantity.columns()),
            ),
        ),
        origin=common_origin(ledgers.runs(CAMPAIGN, point) for point in POINTS),
        notes=(
            "Means over seeds of the sums of step durations. A mixed step prefills and decodes.",
        ),
        missing=(
            *_missing(ledgers, []),
            *(f"{point}: {steps}" for point in POINTS if not differences[point]),
        ),
    )


@table("E-9")
def e9(ledgers: Ledgers) -> Table:
    """Chunk work by label, and replayed tokens."""
    return _cells(
        ledgers,
        name="E-9",
        title="Submitted chunks by label, and replayed tokens",
        measures=(
            measure("prefill_tokens", "prefill", ",.1f", "prefill_tokens", "chunk_prefill"),
            measure("decode_tokens", "decode input", ",.1f", "decode_tokens", "chunk_decode_input"),
            measure(
                "replayed_tokens",
                "replay",
                ",.1f",
                "replayed_tokens",
                "planned_prompt_replay",
                "planned_generated_history_replay",
            ),
            measure(
                "replayed_output_tokens",
                "of it outputs",
                ",.1f",
                "replayed_output_tokens",
                "planned_generated_history_replay",
            ),
        ),
        parts=(2, 2),
        notes=(
            "Tokens a run. Replay: tokens prefilled again after a preemption, of the prompt and of "
            "outputs generated before; in the paper, as planned at the resume (the sum of its two "
            "columns).",
        ),
    )


@table("E-10")
def e10(ledgers: Ledgers) -> Table:
    """D0's failed allocation checks by what followed them."""
    shown = {
        "defer_label": (Quantity(name="defer_label", heading="defer", spec=",.1f"), "refusals"),
        "preempt_label": (
            Quantity(name="preempt_label", heading="preempt", spec=",.1f"),
            "num_preemptions",
        ),
    }
    rows = []
    for point in POINTS:
        runs = ledgers.runs(CAMPAIGN, point)
        entries: dict[str, object] = {"point": point}
        for column, (quantity, metric) in shown.items():
            here = complete_mean(runs.values(D0, metric))
            entries |= quantity.compare(here, published_value("E-10", point, column))
        rows.append(entries)
    return Table(
        name="E-10",
        title="D0's failed allocation checks by what followed",
        rows=pd.DataFrame(rows),
        views=(
            (_POINT, *(column for quantity, _ in shown.values() for column in quantity.columns())),
        ),
        origin=common_origin(ledgers.runs(CAMPAIGN, point) for point in POINTS),
        notes=(
            "Means over seeds of events a run. Defer: refused admissions; preempt: preemptions. "
            "The paper's causes (which pool, empty or not) are left out: no run keeps a trace of "
            "its allocation checks.",
        ),
        missing=_missing(ledgers, ["refusals", "num_preemptions"], arms=(D0,)),
    )


# -- shared by the tables ------------------------------------------------------------------------


def _cells(
    ledgers: Ledgers,
    *,
    name: str,
    title: str,
    measures: tuple[Measure, ...],
    parts: tuple[int, ...],
    notes: tuple[str, ...],
) -> Table:
    places = [
        Place(
            keys={"point": point, "organization": arm.organization_label},
            runs=ledgers.runs(CAMPAIGN, point),
            arm=arm,
            row=f"{point}/{arm.organization_label}",
        )
        for point in POINTS
        for arm in (D0, S2)
    ]
    layout = Layout(name=name, title=title, keys=_KEYS, measures=measures, parts=parts, notes=notes)
    return cell_table(layout, places)


def _missing(
    ledgers: Ledgers, metrics: list[str], *, arms: tuple[Arm, ...] = (D0, S2)
) -> tuple[str, ...]:
    return missing_cells((ledgers.runs(CAMPAIGN, point), arms, metrics) for point in POINTS)


def _pooled_ratio(runs: Runs, metric: str) -> float | None:
    """Total of D0 divided by total of S2 over the same seeds; None if a seed is missing."""
    pairs = pair_up(runs.values(D0, metric), runs.values(S2, metric))
    if pairs.undefined or not pairs.num_pairs:
        return None
    return float(pairs.numerator.sum() / pairs.denominator.sum())


PHASES: dict[str, Callable[[pd.DataFrame], "pd.Series[bool]"]] = {
    "Prefill-only": lambda steps: (steps["prefill_tokens"] > 0) & (steps["decode_tokens"] == 0),
    "Decode-only": lambda steps: (steps["prefill_tokens"] == 0) & (steps["decode_tokens"] > 0),
    "Mixed": lambda steps: (steps["prefill_tokens"] > 0) & (steps["decode_tokens"] > 0),
    "ALL": lambda steps: (steps["prefill_tokens"] > 0) | (steps["decode_tokens"] > 0),
}
"""Predicates that select stretches of steps by the kinds of tokens they carry."""


def phase_times_s(steps: pd.DataFrame) -> dict[str, float]:
    """Sum of step durations by phase."""
    event_s = steps["num_steps"] * steps["step_s"]
    return {phase: float(event_s[of(steps)].sum()) for phase, of in PHASES.items()}


def _phase_differences(ledgers: Ledgers, point: str) -> dict[str, float]:
    """Mean over seeds of D0 minus S2 by phase; empty if any step table is missing."""
    runs = ledgers.runs(CAMPAIGN, point)
    means = []
    for arm in (D0, S2):
        cells = runs.cell_ids(arm)
        tables = [ledgers.step_table(CAMPAIGN, cells[s]) for s in runs.seeds if s in cells]
        known = [phase_times_s(steps) for steps in tables if steps is not None]
        if len(known) < len(runs.seeds):
            return {}
        means.append(pd.DataFrame(known).mean())
    return {str(phase): float(value) for phase, value in (means[0] - means[1]).items()}
