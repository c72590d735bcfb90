"""Tables E-6 to E-10 from the published values: sums and ratios that must agree (E.2)."""

import math

from analysis.published import published_row, published_table, published_value
from analysis.tables.registry import derived
from analysis.tables.relations import Relation, relations_table
from analysis.tables.submitted_work import POINTS
from analysis.tables.table import Table


@derived("E-6")
def e6() -> Table:
    """Check the joined totals of Appendix E.2 against the printed means."""
    means = published_table("E-6")
    seeds = int(published_value("text", "B.8", "diagnostic seeds"))
    totals = {
        "token_bearing_forwards": "token-bearing forwards joined",
        "submitted_tokens": "valid tokens joined",
    }
    return relations_table(
        "E-6",
        "Work and event time of the same runs: totals of Appendix E.2",
        [
            Relation(
                table="text",
                row="E.2",
                column=fact,
                computed=float(seeds * means[column].sum()),
                formula=f"{seeds} seeds x sum of the six means",
            )
            for column, fact in totals.items()
        ],
        notes=("The means themselves need the runs, which are not printed one by one.",),
    )


@derived("E-7")
def e7() -> Table:
    """Ratios of the means of E-6, and the change of the gap."""
    relations = []
    for point in POINTS:
        d0, s2 = (published_row("E-6", f"{point}/{name}") for name in ("D0", "S2"))
        gaps = published_row("E-7", point)
        relations += [
            Relation(
                row=point,
                column=column,
                computed=d0[mean] / s2[mean],
                formula="ratio of the means of E-6",
            )
            for column, mean in (
                ("submitted_token_ratio_d0_s2", "submitted_tokens"),
                ("event_time_ratio_d0_s2", "event_time"),
            )
        ]
        relations += [
            Relation(
                row=point,
                column="trace_gap",
                computed=100.0 * (d0["throughput"] / s2["throughput"] - 1.0),
                formula="ratio of the means of E-6",
                approximate="the TRACE gap averages ratios of single seeds",
            ),
            Relation(
                row=point,
                column="trace_minus_ref",
                computed=gaps["trace_gap"] - gaps["ref_gap"],
                formula="TRACE gap − REF gap",
                known="the printed gaps of L are rounded (E-7)",
            ),
        ]
    return relations_table("E-7", "Work and time ratios from the means of E-6", relations)


@derived("E-8")
def e8() -> Table:
    """The total from the phases, and from the event times of E-6."""
    phases = [phase for phase in published_table("E-8").index if phase != "ALL"]
    relations = []
    for point in POINTS:
        parts = [published_value("E-8", phase, point) for phase in phases]
        relations.append(
            Relation(
                row="ALL",
                column=point,
                computed=math.fsum(parts),
                formula="sum of the phases",
                known="the phases miss the total by 0.0004 to 0.0007 s",
            )
        )
    relations += [
        Relation(
            row="ALL",
            column=point,
            computed=published_value("E-6", f"{point}/D0", "event_time")
            - published_value("E-6", f"{point}/S2", "event_time"),
            formula="D0 − S2 of E-6",
            approximate="E-6 prints event times to 0.001 s only",
        )
        for point in POINTS
    ]
    return relations_table("E-8", "D0 minus S2: event time by phase, and its total", relations)


@derived("E-9")
def e9() -> Table:
    """Check that prefill and decode chunks add up to the submitted tokens of E-6."""
    return relations_table(
        "E-9",
        "Submitted chunks by label: their sum",
        [
            Relation(
                table="E-6",
                row=row,
                column="submitted_tokens",
                computed=published_value("E-9", row, "chunk_prefill")
                + published_value("E-9", row, "chunk_decode_input"),
                formula="prefill + decode input of E-9",
            )
            for row in published_table("E-9").index
        ],
        notes=("The labels themselves need the runs' schedules, which are not printed.",),
    )


@derived("E-10")
def e10() -> Table:
    """Check that failures by cause and by consequence have the same total."""
    causes = [
        "attention_fail_need_gt_free_gt0",
        "attention_fail_free0",
        "recurrent_fail_need_gt_free_gt0",
    ]
    return relations_table(
        "E-10",
        "D0's failed allocation checks: causes against consequences",
        [
            Relation(
                row=point,
                column="defer_label",
                computed=math.fsum(published_value("E-10", point, cause) for cause in causes)
                - published_value("E-10", point, "preempt_label"),
                formula="failures by cause − preempt label",
                known="causes and consequences differ by one event over three runs at L and M",
            )
            for point in published_table("E-10").index
        ],
        notes=("The counts themselves need the runs' checks, which are not printed.",),
    )
