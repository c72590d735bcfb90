"""Tables B-4 and E-6 to E-10: submitted tokens, forwards and event time at three operating points.

Appendices B.8 and E.2. The paper runs each point with and without instrumentation (TRACE, REF),
and so do we: blocks L and L_trace. Watching a simulated run costs no simulated time, so both have
the same results, and tables that need no trace are of the REF runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pandas as pd

from analysis.config import block_design
from analysis.effects import pair_up
from analysis.ledgers import Ledgers, common_origin, missing_cells
from analysis.published import published_row, published_table, published_value
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
from analysis.tables.table import Column, Table
from analysis.tables.traced_work import (
    CAMPAIGN,
    NS_PER_S,
    agreements,
    calls,
    central,
    mean_of,
    pool_use,
    replay,
    traced_runs,
    without_trace,
)
from hsexp.config.arm import Arm
from hsexp.trace import Trace
from hsexp.trace.work import work

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
    agreement = agreements(ledgers, POINTS, (D0, S2)).note
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
            *([agreement] if agreement else []),
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
        gaps = {"ref_gap": mean_change(runs, D0, S2, "throughput_tok_per_s")}
        traced = traced_runs(ledgers, point)
        gaps["trace_gap"] = mean_change(
            runs if traced.why_absent else traced, D0, S2, "throughput_tok_per_s"
        )
        entries: dict[str, object] = {"point": point}
        for name, (_, _, metric) in quantities.items():
            here = gaps[name] if metric is None else _pooled_ratio(runs, metric)
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
            "Ratios of totals over all seeds; gaps are means of seedwise 100 (D0/S2 − 1). Without "
            "traced runs the REF gap stands beside TRACE: watching a run changes nothing here.",
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
    table = _cells(
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
            "From traces: replay as planned at each resume, of prompt and of outputs; and the "
            "tokens that were prefilled again although an earlier admission had computed them.",
        ),
    )
    planned = (
        Quantity(name="planned_prompt_tokens", heading="planned prompt replay", spec=",.1f"),
        Quantity(name="planned_output_tokens", heading="planned output replay", spec=",.1f"),
    )
    printed = ("planned_prompt_replay", "planned_generated_history_replay")
    added = []
    for point in POINTS:
        for arm in (D0, S2):
            here = mean_of(traced_runs(ledgers, point), arm, replay)
            known = published_row("E-9", f"{point}/{arm.organization_label}")
            entries: dict[str, object] = {"recomputed_tokens": here.get("recomputed_tokens")}
            for quantity, column in zip(planned, printed, strict=True):
                entries |= quantity.compare(here.get(quantity.name), known.get(column))
            added.append(entries)
    recomputed = Column(heading="recomputed", templates=("{recomputed_tokens:,.1f}",))
    columns = (*(column for each in planned for column in each.columns()), recomputed)
    return replace(
        table,
        rows=pd.concat([table.rows, pd.DataFrame(added)], axis=1),
        views=(*table.views, (*_KEYS, *columns)),
        missing=(*table.missing, *_untraced(ledgers, (D0, S2))),
    )


@table("E-10")
def e10(ledgers: Ledgers) -> Table:
    """D0's failed allocation checks by what followed them."""
    causes = {
        "attention_short": ("A need>free>0", "attention_fail_need_gt_free_gt0"),
        "attention_empty": ("A free=0", "attention_fail_free0"),
        "attention_passed": ("passed, A free=0", "success_attention_free0"),
        "recurrent_short": ("R need>free>0", "recurrent_fail_need_gt_free_gt0"),
    }
    labels = {"defer_label": ("defer", "refusals"), "preempt_label": ("preempt", "num_preemptions")}
    shown = {
        name: Quantity(name=name, heading=heading, spec=",.1f")
        for name, (heading, _) in (causes | labels).items()
    }
    rows = []
    for point in POINTS:
        runs = ledgers.runs(CAMPAIGN, point)
        traced = mean_of(traced_runs(ledgers, point), D0, calls)
        entries: dict[str, object] = {"point": point, "other": traced.get("other")}
        for name, (_, column) in causes.items():
            entries |= shown[name].compare(traced.get(name), published_value("E-10", point, column))
        for name, (_, metric) in labels.items():
            here = complete_mean(runs.values(D0, metric))
            entries |= shown[name].compare(here, published_value("E-10", point, name))
        rows.append(entries)
    return Table(
        name="E-10",
        title="D0's failed allocation checks by what they found and by what followed",
        rows=pd.DataFrame(rows),
        views=(
            (
                _POINT,
                *(column for name in causes for column in shown[name].columns()),
                Column(heading="other", templates=("{other:,.1f}",)),
            ),
            (_POINT, *(column for name in labels for column in shown[name].columns())),
        ),
        origin=common_origin(ledgers.runs(CAMPAIGN, point) for point in POINTS),
        notes=(
            "Means over seeds of events a run. Defer: refused admissions; preempt: preemptions.",
            "Causes are those of the traced runs: which pool was short first, attention (A) or "
            "recurrent (R), and whether it had any free page. Passed: calls of running requests "
            "that needed no attention page while none was free. Other: R without a free page, or a "
            "call that found pages and may not have them.",
        ),
        missing=(
            *_missing(ledgers, ["refusals", "num_preemptions"], arms=(D0,)),
            *_untraced(ledgers, (D0,)),
        ),
    )


@table("submitted-work-central", lacks="the work inside a window")
def central_work(ledgers: Ledgers) -> Table:
    """Work and event time inside the window of the realised arrivals (B.8)."""
    return _from_traces(
        ledgers,
        name="submitted-work-central",
        title="Work of the steps that end inside the window of the realised arrivals",
        quantities=central,
        columns=(
            ("window, s", "{window_s:.3f}"),
            ("INITIAL", "{initial_tokens:,.1f}"),
            ("RESUME", "{resume_tokens:,.1f}"),
            ("NORMAL_DECODE", "{decode_tokens:,.1f}"),
            ("forwards", "{forwards:,.1f}"),
            ("event time, s", "{event_time_s:.3f}"),
        ),
        notes=(
            "Means over seeds. The window of a run reaches from the 20th to the 80th percentile of "
            "the times at which its requests joined the queue. The paper prints no such values.",
        ),
    )


@table("submitted-work-pools", lacks="the use of the pools in these runs")
def pools_in_use(ledgers: Ledgers) -> Table:
    """Stranded bytes, padding and slabs, by steps (E.1, E.12)."""
    return _from_traces(
        ledgers,
        name="submitted-work-pools",
        title="Use of the pools by steps: stranded bytes, padding and slabs",
        quantities=pool_use,
        columns=(
            ("stranded, %", "{stranded_percent:.4f}"),
            ("padding, %", "{padding_percent:.2f}"),
            ("slots in use, %", "{slot_percent:.2f}"),
            ("most slabs", "{max_slabs:.1f}"),
            ("most slots", "{max_used_slots:.1f}"),
            ("reclaimed slabs", "{reclaimed_slabs:.1f}"),
            ("cross-invalidations", "{cross_invalidations:.1f}"),
        ),
        notes=(
            "Means over seeds. Stranded: free bytes of one pool while another one is exhausted, "
            "of all bytes. Padding: room in the blocks of running requests that no token fills. "
            "Slots: of all slabs. Cross-invalidations: checkpoints of other requests that are lost "
            "when a slab's page gets a new owner. An empty cell does not apply.",
        ),
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


def _from_traces(
    ledgers: Ledgers,
    *,
    name: str,
    title: str,
    quantities: Callable[[Trace], Mapping[str, float | None]],
    columns: tuple[tuple[str, str], ...],
    notes: tuple[str, ...],
) -> Table:
    """Means over the seeds of what the traces say, by point and organization."""
    places = [(point, arm) for point in POINTS for arm in (D0, S2)]
    means = [mean_of(traced_runs(ledgers, point), arm, quantities) for point, arm in places]
    names = [template[1:].partition(":")[0] for _, template in columns]
    rows = [
        {"point": point, "organization": arm.organization_label}
        | {name: mean.get(name) for name in names}
        for (point, arm), mean in zip(places, means, strict=True)
    ]
    shown = (Column(heading=heading, templates=(template,)) for heading, template in columns)
    return Table(
        name=name,
        title=title,
        rows=pd.DataFrame(rows),
        views=((*_KEYS, *shown),),
        origin=common_origin(traced_runs(ledgers, point) for point in POINTS),
        notes=notes,
        missing=_untraced(ledgers, (D0, S2)),
    )


def _untraced(ledgers: Ledgers, arms: tuple[Arm, ...]) -> tuple[str, ...]:
    """What is missing of the traces."""
    return (
        *missing_cells((traced_runs(ledgers, point), arms, []) for point in POINTS),
        *without_trace(ledgers, POINTS, arms),
    )


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
    """Mean over seeds of D0 minus S2 by phase, from step tables or else from traces; empty if any
    is missing."""
    means = [
        _phase_means(ledgers, point, arm) or mean_of(traced_runs(ledgers, point), arm, _phases)
        for arm in (D0, S2)
    ]
    if not all(means):
        return {}
    return {phase: means[0][phase] - means[1][phase] for phase in PHASES}


def _phase_means(ledgers: Ledgers, point: str, arm: Arm) -> dict[str, float]:
    """Means over seeds of event time by phase; empty if any step table is missing."""
    runs = ledgers.runs(CAMPAIGN, point)
    cells = runs.cell_ids(arm)
    tables = [ledgers.step_table(CAMPAIGN, cells[s]) for s in runs.seeds if s in cells]
    known = [phase_times_s(steps) for steps in tables if steps is not None]
    if len(known) < len(runs.seeds):
        return {}
    return {str(phase): float(value) for phase, value in pd.DataFrame(known).mean().items()}


def _phases(trace: Trace) -> dict[str, float | None]:
    """Event time by phase, from a trace."""
    time_ns = work(trace).time_ns
    names = {"prefill": "Prefill-only", "decode": "Decode-only", "mixed": "Mixed"}
    times = {names[phase]: total / NS_PER_S for phase, total in time_ns.items()}
    return {**times, "ALL": sum(times.values())}
