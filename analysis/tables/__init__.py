"""The tables, each by one function, named as in the paper."""

from collections.abc import Callable
from dataclasses import dataclass

from analysis import config as configs
from analysis.errors import AnalysisError, NoInputsError
from analysis.families import Adoption, AnalysisConfig
from analysis.ledgers import Ledgers
from analysis.runs import Runs
from analysis.tables import (
    anchors,
    b7,
    b7_paper,
    b8,
    c2,
    c3,
    c4,
    caps,
    continuation,
    exact_cost,
    extension,
    extension_paper,
    fixed_work,
    g1,
    g2,
    g3,
    g4,
    g5,
    g6,
    g7,
    headroom_effects,
    isolation_pilot,
    labs,
    live_separation,
    no_sharing_index,
    original5,
    pinning,
    q6_summary,
    q7_depths,
    simultaneous_bounds,
    storage,
    submitted_work,
)
from analysis.tables.table import Table
from hsexp.plan.resolve import Resolved, standing


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Ways to one table."""

    from_ledgers: Callable[[Ledgers], Table]
    from_paper: Callable[[Adoption], Table] | None = None
    """None where the paper does not print the inputs."""
    lacks: str = ""
    """What it would have to print."""
    by_adoption: bool = False
    """Whether the adoption of runs in doubt changes the table."""


def of_q6(table: Callable[[Runs, AnalysisConfig], Table]) -> Callable[[Ledgers], Table]:
    """Tables of the confirmation take its runs and its analysis."""

    def from_ledgers(ledgers: Ledgers) -> Table:
        config = configs.load("q6")
        runs = ledgers.open_runs(config.campaign, config.design)
        return table(runs, config)

    return from_ledgers


def of_block(
    campaign: str, block: str, table: Callable[[Runs], Table]
) -> Callable[[Ledgers], Table]:
    """Tables of the runs of one block."""
    return lambda ledgers: table(ledgers.runs(campaign, block))


def always(table: Callable[[], Table]) -> Callable[[Adoption], Table]:
    """Published values that no adoption changes."""
    return lambda adoption: table()


def computed(campaign: str, table: Callable[[Resolved], Table]) -> Entry:
    """Tables of a counted campaign whose numbers the paper prints too: no run, no other input."""
    return Entry(
        from_ledgers=lambda ledgers: table(ledgers.resolved(campaign)),
        from_paper=lambda adoption: table(standing(campaign)),
    )


def counted(
    campaign: str, table: Callable[[Resolved], Table], lacks: str = "any such experiment"
) -> Entry:
    """Tables of a counted campaign that is not the paper's."""
    return Entry(from_ledgers=lambda ledgers: table(ledgers.resolved(campaign)), lacks=lacks)


TABLES: dict[str, Entry] = {
    "A-1": computed("capacity", storage.a1),
    "A-2": computed("capacity", storage.a2),
    "B-2": computed("capacity", storage.b2),
    "B-3": computed("capacity", storage.b3),
    "B-4": Entry(
        from_ledgers=lambda ledgers: submitted_work.b4(), from_paper=always(submitted_work.b4)
    ),
    "B-5": Entry(
        from_ledgers=extension.b5,
        from_paper=extension_paper.b5,
        by_adoption=True,
    ),
    "B-6": Entry(from_ledgers=extension.b6, from_paper=always(extension_paper.b6)),
    "B-7": Entry(from_ledgers=of_q6(b7.table), from_paper=always(b7_paper.from_paper)),
    "B-8": Entry(from_ledgers=of_q6(b8.table), lacks="run-level values of each cell"),
    "C-2": Entry(
        from_ledgers=of_block("q7", "availability", c2.from_runs),
        from_paper=always(c2.from_paper),
    ),
    "C-3": Entry(
        from_ledgers=of_block("q7", "availability", c3.from_runs),
        from_paper=always(c3.from_paper),
    ),
    "C-4": Entry(
        from_ledgers=of_block("matched_boundary", "work", c4.from_runs),
        from_paper=always(c4.from_paper),
    ),
    "D-1": Entry(from_ledgers=continuation.d1, lacks="evidence of its invariants"),
    "D-3": Entry(from_ledgers=continuation.d3, lacks="outputs and states of its checks"),
    "E-1": Entry(from_ledgers=anchors.e1, from_paper=always(anchors.e1_from_paper)),
    "E-2": Entry(from_ledgers=anchors.e2, from_paper=always(anchors.e2_from_paper)),
    "E-3": Entry(from_ledgers=anchors.e3, from_paper=always(anchors.e3_from_paper)),
    "E-4": Entry(from_ledgers=anchors.e4, lacks="run-level counters of its twenty-four runs"),
    "E-5": Entry(from_ledgers=original5.e5, from_paper=always(original5.e5_from_paper)),
    "E-6": Entry(from_ledgers=submitted_work.e6, from_paper=always(submitted_work.e6_from_paper)),
    "E-7": Entry(from_ledgers=submitted_work.e7, from_paper=always(submitted_work.e7_from_paper)),
    "E-8": Entry(from_ledgers=submitted_work.e8, from_paper=always(submitted_work.e8_from_paper)),
    "E-9": Entry(from_ledgers=submitted_work.e9, from_paper=always(submitted_work.e9_from_paper)),
    "E-10": Entry(
        from_ledgers=submitted_work.e10, from_paper=always(submitted_work.e10_from_paper)
    ),
    "E-11": Entry(
        from_ledgers=caps.e11,
        lacks="throughput and events of each run",
    ),
    "E-12": Entry(
        from_ledgers=extension.e12,
        from_paper=extension_paper.e12,
        by_adoption=True,
    ),
    "E-13": Entry(from_ledgers=original5.e13, lacks="the latencies of single requests"),
    "E-14": Entry(from_ledgers=original5.e14, from_paper=always(original5.e14_from_paper)),
    "E-15": Entry(from_ledgers=pinning.e15, from_paper=always(pinning.e15_from_paper)),
    "E-16": Entry(from_ledgers=pinning.e16, from_paper=always(pinning.e16_from_paper)),
    "E-17": Entry(from_ledgers=extension.e17, from_paper=always(extension_paper.e17)),
    "G-1": Entry(
        from_ledgers=of_block("q2", "no_sharing", g1.from_runs),
        from_paper=always(g1.from_paper),
    ),
    "G-2": Entry(
        from_ledgers=of_block("q3", "sharing", g2.from_runs),
        from_paper=always(g2.from_paper),
    ),
    "G-3": Entry(
        from_ledgers=of_block("q8", "lifetime", g3.from_runs),
        from_paper=always(g3.from_paper),
    ),
    "G-4": Entry(
        from_ledgers=of_block("q8", "lifetime", g4.from_runs),
        from_paper=always(g4.from_paper),
    ),
    "G-5": Entry(
        from_ledgers=of_block("q9", "confirmation", g5.from_runs),
        from_paper=always(g5.from_paper),
    ),
    "G-6": Entry(
        from_ledgers=of_block("q9", "confirmation", g6.from_runs),
        from_paper=always(g6.from_paper),
    ),
    "G-7": Entry(
        from_ledgers=of_block("q9", "confirmation", g7.from_runs),
        from_paper=always(g7.from_paper),
    ),
    "extension-22": Entry(
        from_ledgers=extension.extension22,
        from_paper=extension_paper.extension22,
        by_adoption=True,
    ),
    "headroom-effects": Entry(
        from_ledgers=of_q6(headroom_effects.table), lacks="run-level request rates"
    ),
    "q6-summary": Entry(from_ledgers=of_q6(q6_summary.table), lacks="runs to compare with"),
    "simultaneous-bounds": Entry(
        from_ledgers=of_q6(simultaneous_bounds.table), lacks="runs of every contrast"
    ),
    "no-sharing-index": Entry(
        from_ledgers=of_block("q2", "no_sharing", no_sharing_index.from_runs),
        from_paper=always(no_sharing_index.from_paper),
    ),
    "q7-depths": Entry(
        from_ledgers=of_block("q7", "availability", q7_depths.from_runs),
        from_paper=always(q7_depths.from_paper),
    ),
    "isolation-pilot": Entry(
        from_ledgers=of_block("isolation_pilot", "pilot", isolation_pilot.from_runs),
        lacks="throughput of its cells",
    ),
    "live-separation": Entry(
        from_ledgers=live_separation.from_ledgers, lacks="throughput and latencies of its cells"
    ),
    "exact-cost": Entry(from_ledgers=exact_cost.from_ledgers, lacks="any exact run"),
    "continuation": Entry(from_ledgers=continuation.verdicts, lacks="continuation outputs"),
    "branching-samples": counted("branching", labs.branching_samples),
    "branching-beams": counted("branching", labs.branching_beams),
    "speculation-passes": counted("speculation", labs.speculation_passes),
    "speculation-scratch": counted("speculation", labs.speculation_scratch),
    "state-units": counted("capacity", storage.state_units, lacks="the sizes of a model's layers"),
    "state-capacity": counted(
        "capacity", storage.state_capacity, lacks="them for every organization"
    ),
    "fixed-work-width": counted("fixed_work", fixed_work.fixed_work_width, lacks="its step times"),
    "fixed-work-mixing": counted(
        "fixed_work", fixed_work.fixed_work_mixing, lacks="its step times"
    ),
    "cachelab": counted("cachelab", labs.cachelab),
}


def make(name: str, ledgers: Ledgers) -> Table:
    """A table from runs.

    Raises:
        NoInputsError: no campaign of the table has a run.
        AnalysisError: a ledger is damaged, or the adoption asked for does not concern the table.
    """
    _require_adoption(name, ledgers.adoption)
    return TABLES[name].from_ledgers(ledgers)


def derive(name: str, adoption: Adoption = "current") -> Table:
    """A table from published values alone, beside the printed one.

    Raises:
        NoInputsError: the paper does not print the inputs.
        AnalysisError: the adoption does not concern the table.
    """
    _require_adoption(name, adoption)
    entry = TABLES[name]
    if entry.from_paper is None:
        raise NoInputsError(
            f"table {name} cannot be derived from published values; the paper does not print "
            f"{entry.lacks or 'its inputs'}"
        )
    return entry.from_paper(adoption)


def _require_adoption(name: str, adoption: Adoption) -> None:
    if adoption != "current" and not TABLES[name].by_adoption:
        concerned = [each for each, entry in TABLES.items() if entry.by_adoption]
        raise AnalysisError(f"adoption={adoption} concerns {', '.join(concerned)}, not {name}")
