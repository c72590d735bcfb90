"""Tables E-1 to E-4: recorded work beside throughput, S0 to S2 (Appendix E.1).

H, C_once, O_ctr and K are the counters of Appendix B.4; H/K is the mean of run ratios. Here they
cover the whole run; in the paper they cover a common poller window.
"""

from itertools import pairwise

from analysis.ledgers import Ledgers
from analysis.published import printed_number, published_table, published_value
from analysis.tables.cells import (
    Layout,
    Measure,
    Place,
    cell_table,
    measure,
    quantity_table,
    text_column,
)
from analysis.tables.registry import derived, table
from analysis.tables.relations import Relation, relations_table
from analysis.tables.table import Table
from hsexp.config.arm import Arm

ORGANIZATIONS = ("S0", "S1", "S2")
HIGH_LOAD = {"b63": "anchor_b63", "b108": "anchor_b108"}
"""Blocks of campaign q2."""
LOW_LOAD = {"b63": "low_b63", "b108": "low_b108"}
"""Blocks of campaign q1."""

_KEYS = (text_column("budget", "budget"), text_column("org.", "organization"))
_THROUGHPUT = measure(
    "throughput_tok_per_s",
    "tokens/s",
    ".3f",
    "throughput_tok_per_s",
    "throughput",
)
_H = measure("h_tokens", "H, tokens", ",.1f", "h_tokens", "h")
_C_ONCE = measure("c_once_tokens", "C_once, tokens", ",.1f", "c_once_tokens", "c_once")
_K = measure("k_records", "K, records", ",.1f", "k_records", "k")
_H_PER_K = measure("h_per_k_mean", "mean H/K", ".3f", "h_per_k_mean", "mean_h_per_k")
_WHOLE_RUN = (
    "H, C_once and K of whole runs; the paper's cover a common poller window. K counts steps that "
    "carry tokens."
)


@table("E-1")
def e1(ledgers: Ledgers) -> Table:
    """Run means at the high-load anchors."""
    return cell_table(
        Layout(
            name="E-1",
            title="High-load anchors: recorded work and throughput",
            keys=_KEYS,
            measures=(_THROUGHPUT, _H, _C_ONCE, _K, _H_PER_K),
            parts=(2, 3),
            notes=("H/K is the mean of run ratios.", _WHOLE_RUN),
        ),
        [
            _place(ledgers, "q2", block, budget, organization)
            for budget, block in HIGH_LOAD.items()
            for organization in ORGANIZATIONS
        ],
    )


@table("E-2")
def e2(ledgers: Ledgers) -> Table:
    """Paired changes from one organization to the next."""
    measures: list[Measure] = [
        measure(f"{name}_change", f"{heading}, %", "+.3f", metric, printed)
        for name, heading, metric, printed in (
            ("throughput", "throughput", "throughput_tok_per_s", "throughput_change"),
            ("c_once", "C_once", "c_once_tokens", "c_once_change"),
            ("h", "H", "h_tokens", "h_change"),
            ("k", "K", "k_records", "k_change"),
        )
    ]
    return cell_table(
        Layout(
            name="E-2",
            title="High-load anchors: paired changes",
            keys=(text_column("budget", "budget"), text_column("step", "step")),
            measures=tuple(measures),
            parts=(2, 2),
            notes=("Means over seeds of same-seed relative changes.", _WHOLE_RUN),
        ),
        [
            Place(
                keys={"budget": budget, "step": f"{first}->{second}"},
                runs=ledgers.runs("q2", block),
                arm=Arm(organization=second.lower()),
                base=Arm(organization=first.lower()),
                row=f"{budget}/{first}->{second}",
            )
            for budget, block in HIGH_LOAD.items()
            for first, second in pairwise(ORGANIZATIONS)
        ],
    )


@table("E-3")
def e3(ledgers: Ledgers) -> Table:
    """Run means at low load."""
    return cell_table(
        Layout(
            name="E-3",
            title="Low load, 0.8 requests/s: recorded work and throughput",
            keys=_KEYS,
            measures=(_THROUGHPUT, _H, _C_ONCE, _K),
            parts=(2, 2),
            notes=(_WHOLE_RUN,),
        ),
        [
            _place(ledgers, "q1", block, budget, organization)
            for budget, block in LOW_LOAD.items()
            for organization in ORGANIZATIONS
        ],
    )


_E4 = {
    "c_once": ("c_once_tokens", "C_once, tokens/run"),
    "k_recorded_iterations": ("k_records", "K, records/run"),
    "running_mean": ("running_mean", "running mean, requests"),
    "waiting_mean": ("waiting_mean", "waiting mean, requests"),
    "mean_run_level_e2e_p99": ("e2e_p99_s", "mean run-level E2E p99, s"),
    "mean_throughput": ("throughput_tok_per_s", "mean throughput, tokens/s"),
}
"""Metric and heading, by row of the published table."""


@table("E-4", lacks="run-level counters of its twenty-four runs")
def e4(ledgers: Ledgers) -> Table:
    """b108 of the extension: more throughput with fewer running requests."""
    runs = ledgers.runs("q1", "main")
    arms = {name: Arm(organization=name.lower(), budget="b108") for name in ("S1", "S2")}
    return quantity_table(
        "E-4",
        "Extension at b108, 3 requests/s, cap 63: higher throughput, fewer running requests",
        runs=runs,
        arms=arms,
        quantities=_E4,
        notes=(_WHOLE_RUN, "Running and waiting as a one-second poller sees them."),
    )


@derived("E-1")
def e1_from_paper() -> Table:
    """Check C_once = H - O_ctr."""
    return relations_table(
        "E-1",
        "High-load anchors: C_once from H and the mean O_ctr",
        _c_once_relations("E-1"),
        notes=("Throughput, K and H/K are means of run-level values, which are not printed.",),
    )


@derived("E-3")
def e3_from_paper() -> Table:
    """Check C_once = H - O_ctr, with the O_ctr of the high-load anchors."""
    return relations_table(
        "E-3",
        "Low load: C_once from H and the O_ctr of the high-load anchors",
        _c_once_relations("E-3"),
        notes=(
            "O_ctr is printed for the high-load anchors only; it also fits the low-load rows.",
            "Throughput and K are means of run-level values, which are not printed.",
        ),
    )


@derived("E-2")
def e2_from_paper() -> Table:
    """Changes of the printed means: only close, because the paper averages seedwise changes."""
    columns = {
        "throughput_change": "throughput",
        "c_once_change": "c_once",
        "h_change": "h",
        "k_change": "k",
    }
    relations = [
        Relation(
            row=row,
            column=change,
            computed=100.0
            * (
                published_value("E-1", f"{budget}/{second}", column)
                / published_value("E-1", f"{budget}/{first}", column)
                - 1.0
            ),
            formula="change of the means of E-1, %",
            approximate="E-2 averages changes of single seeds, whose values are not printed",
        )
        for row in published_table("E-2").index
        for budget, step in [row.split("/")]
        for first, second in [step.split("->")]
        for change, column in columns.items()
    ]
    return relations_table("E-2", "High-load anchors: changes of the printed means", relations)


def _c_once_relations(table: str) -> list[Relation]:
    o_ctr = published_value("text", "E.1", "mean O_ctr in the high-load cells")
    return [
        Relation(
            row=row,
            column="c_once",
            computed=printed_number(table, row, "h").value - o_ctr,
            formula=f"H − {o_ctr:,.0f}",
        )
        for row in published_table(table).index
    ]


def _place(ledgers: Ledgers, campaign: str, block: str, budget: str, organization: str) -> Place:
    return Place(
        keys={"budget": budget, "organization": organization},
        runs=ledgers.runs(campaign, block),
        arm=Arm(organization=organization.lower()),
        row=f"{budget}/{organization}",
    )
